"""Verify a ledger: its books at any version, what became of every message of the depot, and every decision.

The code that wrote the ledger is not used, and no clock is read: only the tables decide, read by delta-rs, so two runs
over the same versions give the same report. (A reader given by `reading_through` may copy the rows for delta-rs; then
the files and logs are not checked.) `decisions` derives again what the rules make of the log. `raw` formats a
raw depot again, in one piece, with the same code that formats for the ledger. It also checks the critical invariants
of `windrow check`, with the same SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.errors import ExpressionError
from windrow.reading.tables import DepotTable, Ledger, accepted_versions, open_depot, open_ledger
from windrow.verify.decisions import MOST, Decided, decide
from windrow.verify.depot import Depot, read_depot
from windrow.verify.files import check_states, check_table
from windrow.verify.log import Log, check_commits, check_finals
from windrow.verify.messages import Matched, check_messages, check_rejected_from, check_versions, match
from windrow.verify.quality.embedded import check_invariants
from windrow.verify.raw.checks import check_raw
from windrow.verify.report import Books, Difference, Found, Report, at_version, parted
from windrow.verify.snapshot import Snapshot, first_version, read_progress, read_snapshot

Progress = Callable[[str, int, int], None]

NOT_ON_DISK = "the files and logs of both tables, and what was final in an earlier version: Spark read the rows"

__all__ = ["Books", "Difference", "Report", "verify"]


def verify(
    depot: str,
    ledger: str,
    versions: Sequence[int] | None = None,
    progress: Progress = lambda what, done, total: None,
    columns: Mapping[str, str] | None = None,
    most: int | None = MOST,
) -> Report:
    """Check the books of a ledger at some of its versions (default: the latest), and compare them with the depot.

    Windows are derived for streams with `most` messages together, the smallest streams first; None: for all.
    `columns` is `[depot.columns]`; versions that were read are mapped as the history recorded it. `progress` is called
    with what was done, the number of steps done, and of all steps. Raises TableMissing, TableRefused, OtherDepot,
    TableUnreadable for a file that cannot be read in full, and NotFound for a ledger version that does not exist or
    can no longer be read.
    """
    book = open_ledger(ledger)
    wanted = sorted(set(versions or [book.version]))
    reached = [read_progress(ledger, version) for version in wanted]
    log = open_depot(depot, book, reached[-1])
    found, logs = _check_on_disk(book, wanted, log, depot)
    first, began = first_version(ledger, reached[-1])
    last = max(one.depot_version for one in reached)
    read = _depot(log, first, last, columns or {}, open_ledger(ledger, wanted[-1]))
    found = [*began, *read.findings(), *found]
    progress("depot", 1, len(wanted) + 1)
    books: list[Books] = []
    before = None
    for version in wanted:
        snapshot = read_snapshot(ledger, version)
        matched = match(snapshot, read)
        here: list[Found] = [*_differences(snapshot, read, matched)]
        if logs is not None:
            here += check_commits(ledger, snapshot, *logs)
        here += check_invariants(open_ledger(ledger, version))
        if before is not None and logs is not None:
            here += check_finals(logs[0], before, snapshot)
        decided = decide(snapshot, read, most, _message_progress(progress, version, len(books) + 1, len(wanted) + 1))
        found += at_version(version, [*here, *decided.differences, *decided.findings])
        books.append(_books(snapshot, read, matched, decided))
        before = snapshot
        progress(f"ledger version {version}", len(books) + 1, len(wanted) + 1)
    return Report(depot, ledger, tuple(books), *parted(found))


def _check_on_disk(
    book: Ledger, wanted: Sequence[int], log: DepotTable, depot: str
) -> tuple[list[Found], tuple[Log, Log] | None]:
    """Check the files of both tables and the end of each log; return the logs as well, None where Spark reads them."""
    if not isinstance(log, DeltaTable):
        return [NOT_ON_DISK], None
    handles = [open_ledger(book.location, version).table for version in wanted]
    last = read_progress(book.location, book.version).microbatch
    found, own = check_table(book.table, book.location, "ledger", handles, "state=microbatch", last)
    for table in handles:
        found += at_version(table.version(), check_states(table))
    others, read = check_table(log, depot, "depot")
    return [*found, *others], (own, read)


def _depot(log: DepotTable, first: int, last: int, columns: Mapping[str, str], ledger: Ledger) -> Depot:
    """Read the depot; if only Spark can map its columns, it is not checked and the report says so."""
    try:
        if ledger.raw:
            # It alone imports the settings, and with them the rules.
            from windrow.verify.raw.depot import read_raw_depot

            return read_raw_depot(log, first, last, ledger)
        history = ledger.rows("microbatch", "versions, columns", "kind = 'data'").to_pylist()
        recorded = {part["version"]: row["columns"] for row in history for part in row["versions"] or []}
        if not isinstance(log, DeltaTable):
            log, columns, recorded = log.mapped_as(recorded), {}, {}
        return read_depot(log, first, last, dict(columns), recorded, ledger.payload, accepted_versions(ledger))
    except ExpressionError as error:
        return Depot.unread(first, last, f"cannot be mapped without Spark (--engine spark): {error.message}")


def _differences(snapshot: Snapshot, depot: Depot, matched: Matched) -> list[Difference]:
    return [
        *check_versions(snapshot, depot),
        *check_messages(snapshot, depot, matched),
        *check_rejected_from(snapshot, depot),
        *check_raw(snapshot, depot),
    ]


def _message_progress(progress: Progress, version: int, done: int, total: int) -> Callable[[int, int], None]:
    """Return a callback that reports how many messages of a version were decided again."""
    return lambda so_far, of: progress(f"{so_far:,} of {of:,} messages of ledger version {version}", done, total)


def _books(snapshot: Snapshot, depot: Depot, matched: Matched, decided: Decided) -> Books:
    open_rows = pc.equal(snapshot.batches["state"], "open").to_numpy()
    in_open = int(open_rows[snapshot.messages["row"].to_numpy()].sum())
    partly = depot.readable > depot.first
    return Books(
        ledger_version=snapshot.version,
        depot_version=snapshot.progress.depot_version,
        microbatches=snapshot.history.num_rows,
        messages_read=snapshot.messages_read,
        in_open_batches=in_open,
        in_closed_batches=snapshot.messages.num_rows - in_open,
        rejected=snapshot.rejections.num_rows,
        rejected_by_format=snapshot.raw.rejected.num_rows if snapshot.raw else 0,
        ok=matched.ok,
        lost=int(matched.lost.sum()),
        duplicated=0 if partly else int(matched.duplicated.sum()),
        unexpected=0 if partly else int(matched.unexpected.sum()),
        unchecked=int(np.sum(matched.extra)) if partly else 0,
        decided=decided.messages,
        streams=decided.streams,
        derived_streams=decided.derived,
    )
