"""Verify a ledger: its books at any version, what became of every message of the depot, and every decision.

The code that wrote the ledger is not used, and no clock is read: only the tables decide, read by delta-rs, so two runs
over the same versions give the same report. (A reader given by `reading_through` may copy the rows for delta-rs; then
the files and logs are not checked.) `decisions` derives again what the rules make of the log. `raw` formats a
raw depot again, all versions at once, with the same code that formats for the ledger. It also checks the critical
invariants of `windrow check`, with the same SQL.

Memory does not grow with the tables. The messages of depot and ledger go to a temporary file by their stream
(`parts`), and all that concerns a stream is checked in DuckDB for as many streams at a time as fit: matching,
invariants, final rows, decisions. What sources sent is read once before, because the verdict on a message needs the
clock of its source, to which all parts contribute. Without messages, the rows of all streams are in DuckDB together,
and what needs no messages is checked over them. DuckDB has half of the memory and goes to disk beyond it. Counts of
parts are added up (`report.merged`). A raw depot is formatted some raw sources at a time; what the format refused stays
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from windrow.delta.database import MEMORY_BYTES
from windrow.errors import ExpressionError
from windrow.reading.tables import DepotTable, Ledger, accepted_versions, open_depot, open_ledger
from windrow.verify.decisions import MOST, Decisions
from windrow.verify.depot import Depot, read_depot
from windrow.verify.files import check_states, check_table
from windrow.verify.log import Log, check_commits, check_finals, check_part_finals
from windrow.verify.messages import Matched, check_counts, check_versions, match
from windrow.verify.parts import Part, PartedRows, divide
from windrow.verify.quality.parted import check_overall, check_part, create_views
from windrow.verify.raw.checks import check_raw
from windrow.verify.report import Books, Difference, Found, Report, at_version, merged, parted
from windrow.verify.snapshot import Snapshot, first_version, read_progress, read_snapshot
from windrow.verify.tables import OF_LEDGER, ledger_tables, load_part

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Progress = Callable[[str, int, int], None]
NOT_ON_DISK = "the files and logs of both tables, and what was final in an earlier version: Spark read the rows"

COUNTS = """
SELECT coalesce(sum(message_rows) FILTER (WHERE state = 'open'), 0)::BIGINT,
    coalesce(sum(message_rows) FILTER (WHERE state = 'closed'), 0)::BIGINT, (SELECT count(*) FROM all_rejected)
FROM all_batches
"""

__all__ = ["Books", "Difference", "Report", "verify"]


def verify(
    depot: str,
    ledger: str,
    versions: Sequence[int] | None = None,
    progress: Progress = lambda what, done, total: None,
    columns: Mapping[str, str] | None = None,
    most: int | None = MOST,
    max_memory_bytes: int = MEMORY_BYTES,
) -> Report:
    """Check the books of a ledger at some of its versions (default: the latest), and compare them with the depot.

    Windows are derived for streams with `most` messages together, the smallest streams first; None: for all.
    `columns` is `[depot.columns]`; versions that were read are mapped as the history recorded it. `progress` is called
    with what was done, the number of steps done, and of all steps. `max_memory_bytes` is about what all of it takes
    besides the process itself; a stream that is too large for it is a finding, not derived. Raises TableMissing,
    TableRefused, OtherDepot, TableUnreadable for a file that cannot be read in full, TableUnwritable for a full disk,
    and NotFound for a ledger version that does not exist or can no longer be read.
    """
    book = open_ledger(ledger)
    wanted = sorted(set(versions or [book.version]))
    reached = [read_progress(ledger, version) for version in wanted]
    log = open_depot(depot, book, reached[-1])
    found, logs = _check_on_disk(book, wanted, log, depot)
    first, began = first_version(ledger, reached[-1])
    last = max(one.depot_version for one in reached)
    with ExitStack() as stack:
        messages = stack.enter_context(PartedRows(max_memory_bytes))
        read = _depot(log, messages, first, last, columns or {}, open_ledger(ledger, wanted[-1]))
        found = [*began, *read.findings(), *found]
        progress("depot", 1, len(wanted) + 1)
        books, before = list[Books](), None
        for version in wanted:
            rows = stack.enter_context(PartedRows(max_memory_bytes))
            snapshot = read_snapshot(open_ledger(ledger, version), rows)
            here = [] if logs is None else [*check_commits(ledger, snapshot, *logs)]
            if logs is not None and before is not None:
                here += check_finals(logs[0], before, snapshot)
            done = _message_progress(progress, version, len(books) + 1, len(wanted) + 1)
            checked = VersionCheck(snapshot, read, logs[0] if logs else None, before, max_memory_bytes)
            books.append(checked.run(most, done))
            found += at_version(version, [*here, *checked.found])
            if before is not None:
                before.rows.close()
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


def _depot(
    log: DepotTable,
    rows: PartedRows,
    first: int,
    last: int,
    columns: Mapping[str, str],
    ledger: Ledger,
) -> Depot:
    """Read the depot; if only Spark can map its columns, it is not checked and the report says so."""
    try:
        if ledger.raw:
            # It alone imports the settings, and with them the rules.
            from windrow.verify.raw.depot import read_raw_depot

            with PartedRows(rows.max_memory_bytes, ["raw_source"]) as chunks:
                return read_raw_depot(log, rows, chunks, first, last, ledger)
        history = ledger.rows("microbatch", "versions, columns", "kind = 'data'").to_pylist()
        recorded = {part["version"]: row["columns"] for row in history for part in row["versions"] or []}
        if not isinstance(log, DeltaTable):
            log, columns, recorded = log.mapped_as(recorded), {}, {}
        return read_depot(log, rows, first, last, dict(columns), recorded, ledger.payload, accepted_versions(ledger))
    except ExpressionError as error:
        why = f"cannot be mapped without Spark (--engine spark): {error.message}"
        return Depot.unread(rows, first, last, why)


class VersionCheck:
    """The check of one ledger version against the depot: `found` has what is wrong, and what could not be checked."""

    def __init__(
        self, snapshot: Snapshot, depot: Depot, log: Log | None, before: Snapshot | None, max_memory_bytes: int
    ) -> None:
        """Check within so much memory. With a `log` final rows are compared with those of the version `before`."""
        self._snapshot, self._depot, self._log, self._before = snapshot, depot, log, before
        self._max_memory_bytes = max_memory_bytes
        self.found: list[Found] = []
        self._matched = Matched()

    def run(self, most: int | None, progress: Callable[[int, int], None]) -> Books:
        """Check part by part what concerns streams, and the rest over all parts; return the books."""
        snapshot, depot, room = self._snapshot, self._depot, self._max_memory_bytes
        stored = [snapshot.rows.byte_count, depot.rows.byte_count]
        parts = divide([*stored, self._before.rows.byte_count] if self._before else stored, room)
        with ledger_tables(snapshot, room) as connection:
            create_views(connection)
            decisions = Decisions(connection, snapshot, progress)
            decisions.check(depot, most, room)
            by_part = list[Found]()
            for part in parts:
                load_part(connection, part, {"depot": depot.rows} | dict.fromkeys(OF_LEDGER, snapshot.rows))
                by_part += self._check_part(connection, part)
                decisions.check_part()
            in_open, in_closed, rejected = _counts(connection)
            self.found += check_versions(snapshot, depot)
            self.found += check_counts(snapshot, depot, self._matched, in_open + in_closed + rejected)
            self.found += [*merged(by_part), *check_raw(snapshot, depot), *check_overall(connection)]
            self.found += merged(decisions.found)
        partly = depot.readable > depot.first
        return Books(
            ledger_version=snapshot.version,
            depot_version=snapshot.progress.depot_version,
            microbatches=snapshot.history.num_rows,
            messages_read=snapshot.messages_read,
            in_open_batches=in_open,
            in_closed_batches=in_closed,
            rejected=rejected,
            rejected_by_format=snapshot.raw.rejected.num_rows if snapshot.raw else 0,
            ok=self._matched.ok,
            lost=self._matched.lost,
            duplicated=0 if partly else self._matched.duplicated,
            unexpected=0 if partly else self._matched.unexpected,
            unchecked=self._matched.extra if partly else 0,
            decided=decisions.messages,
            streams=decisions.streams,
            derived_streams=decisions.derived,
        )

    def _check_part(self, connection: DuckDBPyConnection, part: Part) -> list[Found]:
        """Check the messages of the loaded part, the invariants of its streams, and its final rows."""
        matched, differences = match(connection, self._snapshot, self._depot)
        self._matched += matched
        found: list[Found] = [*differences, *check_part(connection)]
        if self._log is not None and self._before is not None:
            load_part(connection, part, dict.fromkeys(OF_LEDGER, self._before.rows), "_before")
            found += check_part_finals(connection, self._log, self._before, self._snapshot)
        return found


def _counts(connection: DuckDBPyConnection) -> tuple[int, int, int]:
    """Return the number of messages in open and in closed batches, and of rejections."""
    [counts] = connection.sql(COUNTS).fetchall()
    return counts


def _message_progress(progress: Progress, version: int, done: int, total: int) -> Callable[[int, int], None]:
    """Return a callback that reports how many messages of a version were decided again."""
    return lambda so_far, of: progress(f"{so_far:,} of {of:,} messages of ledger version {version}", done, total)
