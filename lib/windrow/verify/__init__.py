"""Verify a ledger: its books at any version, what became of every message of the depot, and every decision.

The code that wrote the ledger is not used, and no clock is read: only the tables decide, read by delta-rs, so two runs
over the same versions give the same report. (Inside `reading_through` Spark reads them, and the files and logs are not
checked.) `decisions` derives again what the rules make of the log. `raw` formats a
raw depot again, all versions at once, with the same code that formats for the ledger. It also checks the critical
invariants of `windrow quality`, with the same SQL.

Memory does not grow with the tables. The messages of depot and ledger go to a temporary file by their stream
(`parts`), and all that concerns a stream is checked in DuckDB for as many streams at a time as fit: matching,
invariants, decisions. What sources sent is read once before, because the verdict on a message needs the
clock of its source, to which all parts contribute. Without messages, the rows of all streams are in DuckDB together,
and what needs no messages is checked over them. DuckDB has half of the memory and goes to disk beyond it. Counts of
parts are added up (`report.merge_findings`). On Spark each task does so with its streams (`executors`), and what
concerns all of them is asked in SQL. A raw depot is formatted some raw sources at a time, here even with Spark; what
the format refused stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from windrow.delta.database import MEMORY_BYTES
from windrow.errors import ExpressionError, NotFoundError
from windrow.model.chain import CHAIN
from windrow.reading.tables import Ledger, open_depot, open_ledger, skipped_versions
from windrow.verify.amendments import check_amendments
from windrow.verify.base import NOTHING, Base, NoBaseError, Reliance, find_base, identify
from windrow.verify.chain import check_fingerprints, check_links
from windrow.verify.decisions import MOST
from windrow.verify.depot import DepotMessages, read_depot
from windrow.verify.files import check_states, check_table
from windrow.verify.finals import check_finals
from windrow.verify.log import Log, check_commits, read_log
from windrow.verify.part_check import Parts
from windrow.verify.parts import PartedRows
from windrow.verify.report import Books, Difference, Found, Report, VerifiedRange, VerifyProgress, at_version, parted
from windrow.verify.snapshot import LedgerContents, first_version, read_progress, read_snapshot
from windrow.verify.stored_parts import StoredParts
from windrow.verify.tables import ledger_tables
from windrow.verify.version_check import Progress, VersionCheck

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

NOT_ON_DISK = "the files and logs of both tables, and what was final in an earlier version: Spark read the rows"

__all__ = ["Books", "Difference", "Reliance", "Report", "verify"]


def verify(
    depot: str,
    ledger: str,
    versions: Sequence[int] | None = None,
    progress: Progress = lambda standing: None,
    columns: Mapping[str, str] | None = None,
    max_messages: int | None = MOST,
    max_memory_bytes: int = MEMORY_BYTES,
    relying_on: Reliance = NOTHING,
) -> Report:
    """Check the books of a ledger at some of its versions (default: the latest), and compare them with the depot.

    Windows are derived for streams with `max_messages` messages together, the smallest streams first; None: for all.
    `columns` is `[depot.columns]`; versions that were read are mapped as the history recorded it. `progress` is called
    with what is done so far. `max_memory_bytes` is about what all of it takes besides the process itself; a stream that
    is too large for it is a finding, not derived.

    Of one version only what came after an earlier one is checked, if it is `relying_on` that. If this is not sound, all
    is checked and the report says why.

    Raises TableMissingError, IncompatibleTableError, DepotMismatchError, TableUnreadableError for a file that cannot be
    read in full, TableUnwritableError for a full disk, and NotFoundError for a ledger version that does not exist or
    can no longer be read, and if it is not sound to rely on the version that was asked for.
    """
    book = open_ledger(ledger)
    numbers = sorted(set(versions or [book.version]))
    with ExitStack() as stack:
        checks = Checks(book, depot, numbers, progress, columns or {}, max_messages, max_memory_bytes, stack)
        try:
            base = checks.find_base(relying_on) if len(numbers) == 1 else None
            return checks.run(base)
        except NoBaseError as error:
            if relying_on.version is not None:
                message = f"verify cannot rely on ledger version {relying_on.version}: {error}"
                raise NotFoundError(message, "Without --since it says so and verifies everything.") from error
            return checks.run(None, str(error))


class Checks:
    """The checks of some versions of a ledger against its depot."""

    def __init__(
        self,
        book: Ledger,
        depot: str,
        numbers: Sequence[int],
        progress: Progress,
        columns: Mapping[str, str],
        max_messages: int | None,
        max_memory_bytes: int,
        stack: ExitStack,
    ) -> None:
        """Open the depot; `stack` closes what is read."""
        self._book, self._location, self._wanted, self._stack = book, depot, numbers, stack
        self._progress, self._columns, self._max_messages, self._room = (
            progress,
            columns,
            max_messages,
            max_memory_bytes,
        )
        self._reached = [read_progress(book.location, version) for version in numbers]
        self._depot = open_depot(depot, book, self._reached[-1])
        self._logs: tuple[Log, Log] | None = None
        self._messages = stack.enter_context(PartedRows(max_memory_bytes))
        self._frame: DataFrame | None = None  # the messages, if they stay on Spark's executors

    def find_base(self, relying_on: Reliance) -> Base | None:
        """Return what the check builds on, None if nobody asked for it. Raises Unfounded."""
        latest = open_ledger(self._book.location, self._wanted[-1])
        rows = self._stack.enter_context(PartedRows(self._room))
        return find_base(relying_on, latest, self._depot, self._location, rows)

    def run(self, base: Base | None, since_refused: str | None = None) -> Report:
        """Check what came after the base, without one everything. Raises Unfounded for versions that are gone."""
        self._progress(VerifyProgress())
        self._logs = base.logs if base else self._read_logs()
        on_disk = self._check_on_disk(base)
        start, began = first_version(self._book.location, self._reached[-1])
        start = base.since.depot_version + 1 if base else start
        read = self._read_depot(start)
        read = base.add_to(read) if base else read
        result = [*([] if base else began), *read.findings(), *on_disk]
        books = list[Books]()
        for number, version in enumerate(self._wanted):
            before = self._wanted[number - 1] if number else None
            with PartedRows(self._room) as rows:
                stored = None if self._frame is not None else rows
                snapshot = read_snapshot(self._ledger(version), stored, base.revision if base else 0)
                joined = base.join(snapshot) if base else snapshot
                checked = VersionCheck(joined, read, self._room, base)
                with ledger_tables(joined, self._room) as connection:
                    parts = self._parts(connection, joined, read, rows, base)
                    books.append(checked.run(connection, parts, self._max_messages, self._progress))
                by_log = self._check_log(snapshot, before, base)
            more = [*self._check_chain(snapshot), *check_amendments(self._ledger(version))]
            result += at_version(version, [*by_log, *more, *checked.findings])
        differences, findings = parted(result)
        verified = None if differences else self._identify()
        founded = base.since if base else None, since_refused, verified
        return Report(self._location, self._book.location, *founded, tuple(books), differences, findings)

    def _read_logs(self) -> tuple[Log, Log] | None:
        """Return the logs of ledger and depot, None if Spark reads them."""
        if not isinstance(self._depot, DeltaTable):
            return None
        own = read_log(self._book.table, self._book.location, "ledger")
        return own, read_log(self._depot, self._location, "depot")

    def _parts(
        self,
        connection: DuckDBPyConnection,
        snapshot: LedgerContents,
        depot: DepotMessages,
        rows: PartedRows,
        base: Base | None,
    ) -> Parts:
        """Return the parts of a ledger version: of rows that are stored here, or of those on Spark's executors."""
        if self._frame is None:
            return StoredParts(connection, snapshot, depot, rows, self._messages, base)
        from windrow.verify.executors import ExecutorParts

        ledger = self._ledger(snapshot.version)
        return ExecutorParts(connection, snapshot, depot, ledger, self._frame, self._room)

    def _ledger(self, version: int) -> Ledger:
        return open_ledger(self._book.location, version)

    def _identify(self) -> VerifiedRange | None:
        if self._logs is None:
            return None
        verified = identify(self._ledger(self._wanted[-1]), self._logs[0], self._depot, self._logs[1])
        return verified if verified.ledger_fingerprint and verified.depot_fingerprint else None

    def _check_log(self, snapshot: LedgerContents, before: int | None, base: Base | None) -> list[Found]:
        """Check a version against the logs, and its final rows against those of the version `before`."""
        if self._logs is None:
            return []
        since = base.since.ledger_version if base else 0
        findings = [*check_commits(self._book.location, snapshot, *self._logs, since)]
        if before is not None and not self._logs[0].is_restored(before, snapshot.version):
            findings += check_finals(self._ledger(before), self._ledger(snapshot.version))
        return findings

    def _check_chain(self, snapshot: LedgerContents) -> Iterator[Found]:
        """Check the chain of the history; where the depot's log is read, also the commits that the history names."""
        yield from check_links(snapshot.history, snapshot.controls[CHAIN][0].as_py())
        if self._logs is not None:
            yield from check_fingerprints(snapshot.versions_read, self._logs[1])

    def _check_on_disk(self, base: Base | None) -> list[Found]:
        """Check the files of both tables and the end of each log, unless Spark reads them."""
        depot, book = self._depot, self._book
        if self._logs is None or not isinstance(depot, DeltaTable):
            return [NOT_ON_DISK]
        since = (base.since.ledger_version, base.since.depot_version) if base else (-1, -1)
        handles = [self._ledger(version).table for version in self._wanted]
        last = read_progress(book.location, book.version).microbatch
        where, other = (book.table, book.location, "ledger"), (depot, self._location, "depot")
        findings = check_table(self._logs[0], *where, handles, "state=microbatch", last, since[0])
        for table in handles:
            findings += at_version(table.version(), check_states(table))
        return [*findings, *check_table(self._logs[1], *other, since=since[1])]

    def _read_depot(self, first: int) -> DepotMessages:
        """Read the depot; if only Spark can map its columns, it is not checked and the report says so."""
        log, rows, ledger, columns = self._depot, self._messages, self._ledger(self._wanted[-1]), dict(self._columns)
        last = max(position.depot_version for position in self._reached)
        try:
            if ledger.raw:
                # It alone imports the settings, and with them the rules.
                from windrow.verify.raw.depot import read_raw_depot

                with PartedRows(self._room, ["raw_source"]) as chunks:
                    return read_raw_depot(log, rows, chunks, first, last, ledger)
            history = ledger.rows("microbatch", "versions, column_mapping", "kind = 'data'").to_pylist()
            recorded = {part["version"]: row["column_mapping"] for row in history for part in row["versions"] or []}
            if not isinstance(log, DeltaTable):
                from windrow.verify.executors import count_depot, depot_frame

                read = count_depot(log.mapped_as(recorded), first, last, skipped_versions(ledger))
                self._frame = depot_frame(log.mapped_as(recorded), read.readable, last, skipped_versions(ledger))
                return read
            return read_depot(log, rows, first, last, columns, recorded, ledger.payload, skipped_versions(ledger))
        except ExpressionError as error:
            if not isinstance(log, DeltaTable):
                raise
            why = f"cannot be mapped without Spark (--engine spark): {error.message}"
            return DepotMessages.unread(rows, first, last, why)
