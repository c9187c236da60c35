"""Check the ledger: whether the books balance, how much a microbatch reads, and how long old files are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

from windrow.delta.locations import local_path
from windrow.model import durations
from windrow.model.durations import in_words
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.operate.doctor.opened import OpenLedger
from windrow.reading.log import kept
from windrow.reading.warnings import warnings_of

MANY_FILES = 1_000  # a microbatch takes 1.4 times as long
MANY_LIVE = 100_000
MANY_COMMITS = 10_000  # on a local disk, with the files they removed, a third of a second per microbatch
STATES = ("open", "closed", "rejected", "microbatch")
SUMS = {
    "messages_read": "coalesce(sum(messages_read), 0)",
    "in_batches": "coalesce(sum(message_count), 0)",
    "rejected": "count(*) FILTER (WHERE state = 'rejected')",
    "microbatches": "count(*) FILTER (WHERE state = 'microbatch')",
}


def check_books(ledger: OpenLedger) -> Iterator[Finding]:
    """Check by counts that messages read = messages in batches + rejected, and that the history has no gap."""
    columns = ", ".join(f"{sum_} AS {name}" for name, sum_ in SUMS.items())
    found = ledger.book.rows(STATES, columns).to_pylist()[0]
    held = found["in_batches"] + found["rejected"]
    books = (
        f"{found['messages_read']:,} messages read, {found['in_batches']:,} in batches, {found['rejected']:,} rejected"
    )
    if found["messages_read"] != held:
        yield error("ledger-books", f"the books do not balance: {books}", "Run `windrow verify` to find the messages.")
    elif found["microbatches"] != ledger.progress.microbatch:
        counted = ledger.progress.microbatch
        what = f"the history has {found['microbatches']:,} microbatches, the progress row counts {counted:,}"
        yield error("ledger-books", what, "Run `windrow verify` to find what is missing.")
    else:
        yield ok("ledger-books", f"the books balance: {books}")


def check_files(ledger: OpenLedger) -> Iterator[Finding]:
    """Count the files: final rows do not slow a microbatch down, but files do."""
    files = len(ledger.book.table.file_uris())
    if files <= MANY_FILES:
        yield ok("ledger-files", f"{files:,} files")
    else:
        todo = "Run `windrow maintain`, which compacts them without disturbing runs."
        yield warning("ledger-files", f"{files:,} files make every microbatch slower", todo)


def check_log(ledger: OpenLedger) -> Iterator[Finding]:
    """Count the commits in a local log: opening the table lists them all, and the removed files that are kept."""
    path = local_path(ledger.settings.ledger)
    if path is None:
        return
    commits = sum(entry.suffix == ".json" for entry in (path / "_delta_log").iterdir())
    if commits <= MANY_COMMITS:
        yield ok("ledger-log", f"{commits:,} commits in the log")
    else:
        what = f"the log has {commits:,} commits, and every microbatch lists them"
        yield warning("ledger-log", what, "Shorten keep and run `windrow maintain`, or run less often.")


def check_live(ledger: OpenLedger) -> Iterator[Finding]:
    """Count the open batches and clocks, which every microbatch reads."""
    counted = "count(*) FILTER (WHERE state = 'open') AS open, count(*) FILTER (WHERE state = 'progress') - 1 AS clocks"
    found = ledger.book.rows(("open", "progress"), counted).to_pylist()[0]
    what = f"{found['open']:,} open batches and {found['clocks']:,} clocks, which every microbatch reads"
    if found["open"] + found["clocks"] <= MANY_LIVE:
        yield ok("ledger-live", what)
    else:
        todo = "Shorten window or max_delay to close batches earlier; do not map a separate source for every message."
        yield warning("ledger-live", what, todo)


def check_retention(ledger: OpenLedger) -> Iterator[Finding]:
    """Compare `keep` with the properties of the ledger, which count once it is created."""
    has, wants = kept(ledger.book.table), durations.text(durations.microseconds(ledger.settings.keep))
    if has == wants:
        yield ok("ledger-retention", f"log and removed files are kept for {has}")
        return
    yield warning(
        "ledger-retention",
        f"the ledger keeps its log and removed files for {has or 'as long as Delta does (30 and 7 days)'}, "
        f"but keep is {wants}",
        "keep is applied when the ledger is created; `windrow maintain` applies the current setting.",
    )


def check_rules(ledger: OpenLedger) -> Iterator[Finding]:
    """Compare the rules in the settings with those in force; the next run changes them."""
    recorded = (ledger.progress.rules, ledger.settings.rules.build().to_json())
    now, then = (in_words(json.loads(rules)) for rules in recorded)
    changed = [f"{name} from {now.get(name)} to {new}" for name, new in then.items() if now.get(name) != new]
    if changed:
        todo = "Nothing, if that is intended: the change is recorded, and open batches keep their windows."
        yield warning("ledger-rules", f"the next run changes the rules: {', '.join(changed)}", todo)


def check_paused(ledger: OpenLedger) -> Iterator[Finding]:
    """Report a paused ledger, which reads nothing."""
    if ledger.progress.paused:
        yield warning("ledger-paused", "the ledger is paused: nothing is read", "Continue with `windrow resume`.")


def check_warnings(ledger: OpenLedger) -> Iterator[Finding]:
    """Report windows that split early, shared and wrong clocks, and a `max_delay` that is too short."""
    for one in warnings_of(ledger.book, ledger.settings.warn):
        yield warning(one.code, one.what, one.todo)
