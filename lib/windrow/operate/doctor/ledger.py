"""Check the ledger: whether the books balance, how much a microbatch reads, and how long old files are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

from deltalake import DeltaTable

from windrow.delta.locations import local_path
from windrow.model.durations import format_duration, microseconds, to_toml
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.operate.doctor.opened import OpenLedger
from windrow.reading.log import log_retention
from windrow.reading.warnings import warnings_of

MANY_FILES = 1_000  # with more, a microbatch takes 1.4 times as long
MANY_COMMITS = 10_000  # on a local disk, with the files they removed, they cost a third of a second per microbatch
COUNTS = """
coalesce(sum(messages_read), 0) AS read, coalesce(sum(message_count), 0) AS in_batches,
count(*) FILTER (WHERE state = 'rejected') AS rejected, count(*) FILTER (WHERE state = 'microbatch') AS microbatches
"""


def check_books(ledger: OpenLedger) -> Iterator[Finding]:
    """Check with counts that messages read = messages in batches + rejected, and that the history has no gap."""
    [row] = ledger.book.rows(("open", "closed", "rejected", "microbatch"), COUNTS).to_pylist()
    counted = ledger.progress.microbatch
    books = f"{row['read']:,} messages read, {row['in_batches']:,} in batches, {row['rejected']:,} rejected"
    if row["read"] != row["in_batches"] + row["rejected"]:
        yield error("ledger-books", f"the books do not balance: {books}", "Run `windrow verify` to find the messages.")
    elif row["microbatches"] != counted:
        message = f"the history has {row['microbatches']:,} microbatches, the progress row counts {counted:,}"
        yield error("ledger-books", message, "Run `windrow verify` to find what is missing.")
    else:
        yield ok("ledger-books", f"the books balance: {books}")


def check_files(ledger: OpenLedger) -> Iterator[Finding]:
    """Count the files and the commits in a local log: every microbatch lists them."""
    if isinstance(ledger.table, DeltaTable):
        files = len(ledger.table.file_uris())
        hint = "Every microbatch lists them. Run `windrow maintain`, which compacts them without disturbing runs."
        yield _at_most(MANY_FILES, files, "ledger-files", f"{files:,} files", hint)
    if path := local_path(ledger.settings.ledger):
        commits = sum(entry.suffix == ".json" for entry in (path / "_delta_log").iterdir())
        hint = "Every microbatch lists them. Shorten retention and run `windrow maintain`, or run less often."
        yield _at_most(MANY_COMMITS, commits, "ledger-log", f"{commits:,} commits in the log", hint)


def _at_most(limit: int, count: int, code: str, message: str, hint: str) -> Finding:
    return ok(code, message) if count <= limit else warning(code, message, hint)


def check_retention(ledger: OpenLedger) -> Iterator[Finding]:
    """Compare `retention` with the properties of the ledger, which take precedence once it exists."""
    has, wants = log_retention(ledger.table), format_duration(microseconds(ledger.settings.retention))
    if has == wants:
        yield ok("ledger-retention", f"log and removed files are kept for {has}")
        return
    yield warning(
        "ledger-retention",
        f"the ledger keeps its log and removed files for {has or 'as long as Delta does (30 and 7 days)'}, "
        f"but the setting retention is {wants}",
        "The setting is applied when the ledger is created; `windrow maintain` applies the current setting.",
    )


def check_rules(ledger: OpenLedger) -> Iterator[Finding]:
    """Compare the rules in the settings with those in force; the next run changes them."""
    recorded = (ledger.progress.rules, ledger.settings.rules.build().to_json())
    now, then = (to_toml(json.loads(rules)) for rules in recorded)
    changed = [f"{name} from {now.get(name)} to {new}" for name, new in then.items() if now.get(name) != new]
    if changed:
        hint = "Nothing, if that is intended: the change is recorded, and open batches keep their windows."
        yield warning("ledger-rules", f"the next run changes the rules: {', '.join(changed)}", hint)


def check_paused(ledger: OpenLedger) -> Iterator[Finding]:
    """Report a paused ledger, which reads nothing."""
    if ledger.progress.paused:
        yield warning("ledger-paused", "the ledger is paused: nothing is read", "Continue with `windrow resume`.")


def check_warnings(ledger: OpenLedger) -> Iterator[Finding]:
    """Report windows that split early, shared and wrong clocks, and a `max_delay` that is too short."""
    for reason in warnings_of(ledger.book):
        yield warning(reason.code, reason.message, reason.hint, reason.sources)
