"""Verify a ledger: its books at any version, what became of every message of the depot, and every decision.

The code that wrote the ledger is not used, and no clock is read: only the tables decide, read by delta-rs, so two runs
over the same versions give the same report. (Inside `reading_through` Spark reads them, and the files and logs are not
checked.) `decisions` derives again what the rules make of the log. `raw` formats a raw depot again, all versions at
once, with the same code that formats for the ledger. The critical invariants of `windrow quality` are also checked,
with the same SQL.

Memory does not grow with the tables. The messages of depot and ledger go to a temporary file, grouped by stream
(`parts`), and DuckDB checks streams, as many at a time as fit: matching, invariants, decisions. What sources sent is
read once beforehand, because the verdict on a message needs the clock of its source, to which all parts contribute.
DuckDB also has the rows of all streams together, without messages, for the checks that need none. It gets half of the
memory and spills to disk beyond that. The counts of parts are added up (`report.merge_findings`). On Spark each task
checks its own streams in this way (`executors`), and SQL answers questions about all streams. A raw depot is formatted
a few raw sources at a time, on the driver even with Spark; what the format refused stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from windrow.delta.database import MEMORY_BYTES
from windrow.errors import ExpressionError, NotFoundError
from windrow.model.chain import CHAIN
from windrow.reading.tables import Ledger, open_depot, open_ledger, skipped_versions
from windrow.verify.base import NOTHING, Base, NoBaseError, Reliance, find_base, identify
from windrow.verify.decisions import MOST, Decisions
from windrow.verify.depot import DepotMessages, read_depot
from windrow.verify.files import check_finals, check_states, check_table
from windrow.verify.log import Log, check_commits, check_fingerprints, check_links, read_log
from windrow.verify.messages import check_amendments
from windrow.verify.parts import PartedRows
from windrow.verify.report import (
    Books,
    Difference,
    Found,
    Report,
    VerifiedRange,
    VerifyProgress,
    at_version,
    split_findings,
)
from windrow.verify.snapshot import LedgerContents, first_version, read_progress, read_snapshot
from windrow.verify.tables import ledger_tables, load_all
from windrow.verify.version_check import Parts, Progress, StoredParts, check_version

if TYPE_CHECKING:
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

    Windows are derived for the smallest streams, with `max_messages` messages in total; None: for all streams.
    `columns` is `[depot.columns]`; versions already read are mapped as the history recorded. `progress` is called with
    what is done so far. `max_memory_bytes` is about the memory used besides the process itself; a stream too large for
    it is not derived, which is a finding.

    For a single version, only what came after an earlier version is checked, if `relying_on` names that one. If this is
    not sound, everything is checked and the report says why.

    Raises TableMissingError, IncompatibleTableError, DepotMismatchError, TableUnreadableError for a file that cannot be
    read in full, TableUnwritableError for a full disk, and NotFoundError for a ledger version that does not exist or
    can no longer be read, or if it is not sound to rely on the version asked for.
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
                raise NotFoundError(message, "Leave out --since: verify then says so and checks everything.") from error
            return checks.run(None, str(error))


@dataclass
class Checks:
    """The checks of the `wanted` versions of a ledger against its depot; `stack` closes what is read."""

    book: Ledger
    location: str
    wanted: Sequence[int]
    progress: Progress
    columns: Mapping[str, str]
    max_messages: int | None
    max_memory_bytes: int
    stack: ExitStack

    def __post_init__(self) -> None:
        self._ledgers = [open_ledger(self.book.location, version) for version in self.wanted]
        self._reached = [read_progress(ledger) for ledger in self._ledgers]
        self._depot = open_depot(self.location, self.book, self._reached[-1])
        self._logs: tuple[Log, Log] | None = None
        self._messages = self.stack.enter_context(PartedRows(self.max_memory_bytes))
        self._frame: DataFrame | None = None  # the messages, if they stay on Spark's executors

    def find_base(self, relying_on: Reliance) -> Base | None:
        """Return the base that the check builds on, None if nobody asked for one. Raises NoBaseError."""
        rows = self.stack.enter_context(PartedRows(self.max_memory_bytes))
        return find_base(relying_on, self._ledgers[-1], self._depot, self.location, rows)

    def run(self, base: Base | None, since_refused: str | None = None) -> Report:
        """Check what came after the base, or everything without one. Raises NoBaseError for versions that are gone."""
        self.progress(VerifyProgress())
        self._logs = base.logs if base else self._read_logs()
        on_disk = self._check_on_disk(base)
        start, began = first_version(self.book.location, self._reached[-1])
        depot = self._read_depot(base.since.depot_version + 1 if base else start)
        depot = base.add_to(depot) if base else depot
        result = [*([] if base else began), *depot.findings(), *on_disk]
        books, before = list[Books](), None
        for ledger in self._ledgers:
            book, found = self._check_version(ledger, before, depot, base)
            books.append(book)
            result += at_version(ledger.version, found)
            before = ledger
        differences, findings = split_findings(result)
        verified = None if differences else self._identify()
        founded = base.since if base else None, since_refused, verified
        return Report(self.location, self.book.location, *founded, tuple(books), differences, findings)

    def _read_logs(self) -> tuple[Log, Log] | None:
        """Return the logs of ledger and depot, None if Spark reads them."""
        if not isinstance(self._depot, DeltaTable):
            return None
        own = read_log(self.book.table, self.book.location, "ledger")
        return own, read_log(self._depot, self.location, "depot")

    def _check_version(
        self, ledger: Ledger, before: Ledger | None, depot: DepotMessages, base: Base | None
    ) -> tuple[Books, list[Found]]:
        """Check a version; return its books, and findings on what is wrong or could not be checked."""
        with PartedRows(self.max_memory_bytes) as rows:
            stored = None if self._frame is not None else rows
            snapshot = read_snapshot(ledger, stored, base.revision if base else 0)
            joined = base.join(snapshot) if base else snapshot
            decisions = Decisions(joined, base.since.microbatch if base else 0)
            with ledger_tables(joined, self.max_memory_bytes) as connection:
                parts: Parts
                if self._frame is None:
                    load_all(connection, joined, rows)
                    parts = StoredParts(connection, joined, depot, rows, self._messages, base)
                else:
                    from windrow.verify.executors import ExecutorParts

                    parts = ExecutorParts(connection, joined, depot, ledger, self._frame, self.max_memory_bytes)
                asks = parts.ask, parts.ask_depot
                decisions.check(connection, depot.readable, self.max_messages, self.max_memory_bytes, *asks)
                books, findings = check_version(joined, depot, parts, decisions, self.progress)
        by_log = self._check_logs(ledger, before, snapshot, base.since.ledger_version if base else 0)
        return books, [*by_log, *check_amendments(ledger), *findings]

    def _check_logs(
        self, ledger: Ledger, before: Ledger | None, snapshot: LedgerContents, since: int
    ) -> Iterator[Found]:
        """Check history and progress against the logs, and final rows against the version `before`.

        Without the logs, only the chain of the history is checked.
        """
        if self._logs is not None:
            yield from check_commits(self.book.location, snapshot, *self._logs, since)
            restored = self._logs[0].restored
            if before is not None and not any(before.version < at <= ledger.version for at in restored):
                yield from check_finals(before, ledger)
        yield from check_links(snapshot.history, snapshot.controls[CHAIN][0].as_py())
        if self._logs is not None:
            yield from check_fingerprints(snapshot.versions_read, self._logs[1])

    def _identify(self) -> VerifiedRange | None:
        if self._logs is None:
            return None
        verified = identify(self._ledgers[-1], self._logs[0], self._depot, self._logs[1])
        return verified if verified.ledger_fingerprint and verified.depot_fingerprint else None

    def _check_on_disk(self, base: Base | None) -> list[Found]:
        """Check the files of both tables and the end of each log, unless Spark reads them."""
        depot, book = self._depot, self.book
        if self._logs is None or not isinstance(depot, DeltaTable):
            return [NOT_ON_DISK]
        since = (base.since.ledger_version, base.since.depot_version) if base else (-1, -1)
        handles = [ledger.table for ledger in self._ledgers]
        last = read_progress(book).microbatch
        where, other = (book.table, book.location, "ledger"), (depot, self.location, "depot")
        findings = check_table(self._logs[0], *where, handles, "state=microbatch", last, since[0])
        for table in handles:
            findings += at_version(table.version(), check_states(table))
        return [*findings, *check_table(self._logs[1], *other, since=since[1])]

    def _read_depot(self, first: int) -> DepotMessages:
        """Read the depot; if only Spark can map its columns, it is not checked and the report says so."""
        log, rows, ledger, columns = self._depot, self._messages, self._ledgers[-1], dict(self.columns)
        last = max(position.depot_version for position in self._reached)
        skipped = skipped_versions(ledger)
        try:
            if ledger.raw:
                # Imported only here, because it imports the settings, and with them the rules.
                from windrow.verify.raw.depot import read_raw_depot

                with PartedRows(self.max_memory_bytes, ["raw_source"]) as chunks:
                    return read_raw_depot(log, rows, chunks, first, last, ledger)
            history = ledger.rows("microbatch", "versions, column_mapping", "kind = 'data'").to_pylist()
            recorded = {part["version"]: row["column_mapping"] for row in history for part in row["versions"] or []}
            if not isinstance(log, DeltaTable):
                from windrow.verify.executors import count_depot, depot_frame

                read = count_depot(log.with_mappings(recorded), first, last, skipped)
                self._frame = depot_frame(log.with_mappings(recorded), read.readable, last, skipped)
                return read
            return read_depot(log, rows, first, last, columns, recorded, ledger.payload, skipped)
        except ExpressionError as error:
            if not isinstance(log, DeltaTable):
                raise
            why = f"cannot be mapped without Spark (--engine spark): {error.message}"
            return DepotMessages.unread(rows, first, last, why)
