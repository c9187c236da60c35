"""The ledger: whether its books balance, how much a microbatch reads of it, how long it keeps what it replaces."""

from __future__ import annotations

import json
from collections.abc import Iterator

from windrow.delta.locations import local_path
from windrow.model import durations
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.operate.doctor.opened import OpenLedger
from windrow.reading.log import kept

DURATIONS = {"window", "max_delay", "max_leap"}
MANY_FILES = 1_000  # a microbatch takes 1.4 times as long
MANY_LIVE = 100_000
MANY_COMMITS = 10_000  # on a local disk, with what they removed, a third of a second for each microbatch
STATES = ("open", "closed", "rejected", "microbatch")
SUMS = {
    "messages_read": "coalesce(sum(messages_read), 0)",
    "in_batches": "coalesce(sum(message_count), 0)",
    "rejected": "count(*) FILTER (WHERE state = 'rejected')",
    "microbatches": "count(*) FILTER (WHERE state = 'microbatch')",
}


def check_books(ledger: OpenLedger) -> Iterator[Finding]:
    """Messages read = messages in batches + rejected, and the history has no gap: by their counts."""
    columns = ", ".join(f"{sum_} AS {name}" for name, sum_ in SUMS.items())
    found = ledger.book.rows(STATES, columns).to_pylist()[0]
    held = found["in_batches"] + found["rejected"]
    books = (
        f"{found['messages_read']:,} messages read, {found['in_batches']:,} in batches, {found['rejected']:,} rejected"
    )
    if found["messages_read"] != held:
        yield error("ledger-books", f"the books do not balance: {books}", "`windrow verify` names the messages.")
    elif found["microbatches"] != ledger.progress.microbatch:
        counted = ledger.progress.microbatch
        what = f"the history has {found['microbatches']:,} microbatches, the progress row counts {counted:,}"
        yield error("ledger-books", what, "`windrow verify` names what is missing.")
    else:
        yield ok("ledger-books", f"the books balance: {books}")


def check_files(ledger: OpenLedger) -> Iterator[Finding]:
    """Rows of the past do not slow a microbatch down, files do."""
    files = len(ledger.book.table.file_uris())
    if files <= MANY_FILES:
        yield ok("ledger-files", f"{files:,} files")
    else:
        todo = "`windrow maintain` makes few large ones of them, which disturbs no run."
        yield warning("ledger-files", f"{files:,} files make every microbatch slower", todo)


def check_log(ledger: OpenLedger) -> Iterator[Finding]:
    """Who opens a table on a disk lists its log, and passes over what was removed and is kept."""
    path = local_path(ledger.settings.ledger)
    if path is None:
        return
    commits = sum(entry.suffix == ".json" for entry in (path / "_delta_log").iterdir())
    if commits <= MANY_COMMITS:
        yield ok("ledger-log", f"{commits:,} commits in the log")
    else:
        what = f"{commits:,} commits are in the log, which every microbatch goes through"
        yield warning("ledger-log", what, "With a shorter keep `windrow maintain` removes them; or run less often.")


def check_live(ledger: OpenLedger) -> Iterator[Finding]:
    """Every microbatch reads the open batches and the clocks."""
    counted = "count(*) FILTER (WHERE state = 'open') AS open, count(*) FILTER (WHERE state = 'progress') - 1 AS clocks"
    found = ledger.book.rows(("open", "progress"), counted).to_pylist()[0]
    what = f"{found['open']:,} open batches and {found['clocks']:,} clocks, which every microbatch reads"
    if found["open"] + found["clocks"] <= MANY_LIVE:
        yield ok("ledger-live", what)
    else:
        todo = "A shorter window or max_delay closes batches earlier; a source for each message is one too many."
        yield warning("ledger-live", what, todo)


def check_retention(ledger: OpenLedger) -> Iterator[Finding]:
    """`keep` counts when a ledger is made; afterwards its own properties do."""
    has, wants = kept(ledger.book.table), durations.text(durations.microseconds(ledger.settings.keep))
    if has == wants:
        yield ok("ledger-retention", f"log and removed files are kept for {has}")
        return
    yield warning(
        "ledger-retention",
        f"the ledger keeps its log and removed files for {has or 'as long as Delta does (30 and 7 days)'}, "
        f"keep says {wants}",
        "keep counts when the ledger is made; `windrow maintain` gives the table what the settings say now.",
    )


def check_rules(ledger: OpenLedger) -> Iterator[Finding]:
    """Rules that differ from those in force change with the next run."""
    now, then = json.loads(ledger.progress.rules), json.loads(ledger.settings.rules.build().to_json())
    differ = {name: (now.get(name), value) for name, value in then.items() if now.get(name) != value}
    changed = [f"{name} from {_said(name, old)} to {_said(name, new)}" for name, (old, new) in differ.items()]
    if changed:
        said = ", ".join(changed)
        todo = "Nothing, if it is meant: the change is recorded, and open batches keep their windows."
        yield warning("ledger-rules", f"the next run changes the rules: {said}", todo)


def check_paused(ledger: OpenLedger) -> Iterator[Finding]:
    """A paused ledger reads nothing."""
    if ledger.progress.paused:
        yield warning("ledger-paused", "the ledger is paused: nothing is read", "`windrow resume` lets it go on.")


def _said(name: str, value: object) -> str:
    """Return a rule as it stands in windrow.toml."""
    return durations.text(value) if name in DURATIONS and isinstance(value, int) else str(value)
