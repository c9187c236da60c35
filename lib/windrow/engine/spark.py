"""The Spark engine: the depot's change feed as a stream, and SQL for the MERGE. Public APIs only.

Inside `foreachBatch` everything happens on the session of the batch, which is a clone of the one that started the
stream: a MERGE through the parent would not see its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow import tables
from windrow.engine import embedded
from windrow.engine.arrow import plain
from windrow.engine.embedded import added_rows
from windrow.engine.executors import ExecutorsSlice
from windrow.engine.lock import commit_lock, local_path
from windrow.engine.log import DeltaRsLog, Log, missing, open_table
from windrow.engine.protocol import Arrivals, Input, Live, Merged, Slice, Table, next_versions
from windrow.engine.slices import CHANGE, FEED_COLUMNS, VERSION, cut, messages_of, refuse_changes
from windrow.engine.spark_log import SparkLog
from windrow.errors import DepotUnreadable, ExpressionError, FileRefused, LedgerMoved, TableRefused, first_line
from windrow.expressions import Mapping as ColumnMapping

EVERY_FILE = 2_147_483_647  # a rate limit would split commits, and what is read by version would lose the second half
MOVED = ("WINDROW-LEDGER-MOVED", "DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
UNREADABLE = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_CHANGE_TABLE_FEED_DISABLED",
    "VERSION_NOT_CONTIGUOUS",
)


@dataclass(frozen=True, slots=True)
class SparkArrivals:
    """New versions of the depot in the frame of one `foreachBatch` call."""

    frame: DataFrame
    counts: Mapping[int, int | None]
    begin: int
    on_depot_delete: str
    driver_messages: int
    collected: pa.Table | None

    @classmethod
    def of(
        cls, frame: DataFrame, counts: Mapping[int, int | None], begin: int, on_depot_delete: str, driver_messages: int
    ) -> SparkArrivals:
        """Collect the frame once when it is small enough for the driver, else leave it to the executors."""
        known = [count for count in counts.values() if count is not None]
        total = sum(known) if len(known) == len(counts) else frame.count()
        collected = messages_of(plain(frame.toArrow()), on_depot_delete) if total <= driver_messages else None
        return cls(frame, counts, begin, on_depot_delete, driver_messages, collected)

    def after(self, version: int, max_messages: int) -> Slice | None:
        """Return the next slice, or None when all is read."""
        while versions := next_versions(self.counts, version, max_messages):
            counts = {at: self.counts[at] for at in versions}
            arrived = self._slice(counts)
            if arrived is not None:
                return arrived
            version = versions[-1]
        return None

    def _slice(self, counts: Mapping[int, int | None]) -> Slice | None:
        """Return the versions that have rows; a version whose log says it has rows stays, whatever was read."""
        if self.collected is not None:
            present = set(self.collected["version"].unique().to_pylist())
            filled = [at for at in counts if counts[at] or at in present]
            return cut(self.collected, counts, filled) if filled else None
        part = self.frame.where(F.col(VERSION).between(min(counts), max(counts)))
        unknown = any(count is None for count in counts.values())
        rows = part.count() if unknown else sum(count or 0 for count in counts.values())
        if rows == 0:
            return None
        if rows <= self.driver_messages:
            return cut(messages_of(plain(part.toArrow()), self.on_depot_delete), counts, list(counts))
        if self.on_depot_delete == "error":
            refuse_changes(plain(part.where(F.col(CHANGE) != "insert").select(CHANGE, VERSION).limit(1).toArrow()))
        kept = part.where(F.col(CHANGE) == "insert").withColumn("version", F.col(VERSION)).drop(*FEED_COLUMNS)
        return ExecutorsSlice(kept, counts, rows)


class SparkEngine:
    """Reads and commits with Spark. `depot` and `ledger` are paths."""

    name = "spark"

    def __init__(
        self,
        depot: str,
        ledger: str,
        session: SparkSession | None = None,
        on_depot_delete: str = "error",
        driver_messages: int = 500_000,
    ) -> None:
        """Use `session`, or start a local one."""
        if session is None:
            from windrow.engine.session import local_session

            session = local_session()
        self._root = self._session = session
        self._depot, self._ledger = _absolute(depot), _absolute(ledger)
        self._on_depot_delete, self._driver_messages = on_depot_delete, driver_messages

    def depot(self) -> Table:
        """Return the depot's identity and latest version."""
        table = self._log(self._depot).table()
        if table is None:
            raise missing(self._depot, "depot")
        return table

    def ledger(self) -> Table | None:
        """Return the ledger's identity, None when there is none."""
        return self._log(self._ledger).table()

    def create_depot(self, payload: pa.DataType, keep: str) -> None:
        """Create an empty depot unless it exists."""
        embedded.create_depot(self._depot, payload, keep)

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists."""
        embedded.create_ledger(self._ledger, first, keep)

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file or Delta table to ingest."""
        try:
            frame = self._root.read.format(format_).load(file)
            table = self._log(file).table() if format_ == "delta" else None
        except Exception as error:  # what the reader of a format raises comes through as it is
            raise FileRefused(
                f"{file} cannot be read as {format_}: {first_line(error)}", "Check the file and --format."
            ) from error
        return Input(file, format_, plain(frame.limit(0).toArrow()).schema, table, frame)

    def transaction(self, application: str) -> int | None:
        """Return the version that the depot's log recorded; elsewhere than locally Delta skips what it knows."""
        if local_path(self._depot) is None:
            return None
        return open_table(self._depot, "depot").transaction_version(application)

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit."""
        depot = self.depot()
        mapped = self._rows(given, after).selectExpr(*mapping.spark_select(depot.payload))
        writer = mapped.write.format("delta").mode("append")
        writer = writer.option("txnAppId", transaction[0]).option("txnVersion", transaction[1])
        try:
            with commit_lock(self._depot):
                writer.save(self._depot)
        except PySparkException as error:
            raise ExpressionError(
                f"{given.file} cannot be mapped to messages: {first_line(error)}", "See [ingest.columns]."
            ) from error
        log = self._log(self._depot)
        rows = sum(count or 0 for count in log.rows_added(depot.version, self.depot().version).values())
        progress(rows)
        return rows

    def _rows(self, given: Input, after: int | None) -> DataFrame:
        """Return the rows of an input; of a Delta table that was ingested before only the inserted ones since."""
        if after is None:
            frame: DataFrame = given.handle
            return frame
        reader = self._root.read.format("delta").option("readChangeFeed", "true").option("startingVersion", after + 1)
        feed = reader.load(given.file)
        added_rows(plain(feed.where(F.col(CHANGE) != "insert").limit(1).toArrow()), given.file)
        return feed.drop(*FEED_COLUMNS)

    def live(self) -> Live:
        """Read the live rows. The version is read first: too low a number makes the second belt only tighter."""
        table = self.ledger()
        if table is None:
            raise missing(self._ledger, "ledger")
        whole = self._session.sql(f"SELECT * FROM {_reference(self._ledger)}")
        schema = tables.ledger_schema(table.payload)
        if set(schema.names) - set(whole.columns):
            raise TableRefused(f"{self._ledger} is a Delta table, but no ledger", "Give the path of a ledger.")
        rows = plain(whole.where(F.col("state").isin(*tables.LIVE)).toArrow())
        return Live(rows.select(schema.names).cast(schema).combine_chunks(), table.version, table.id)

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Stream what the depot added after `after`, with a fresh checkpoint: the ledger is the checkpoint."""
        begin = after + 1
        self._log(self._depot).rows_added(after, upto)  # raises before the stream does when a version is gone
        failure: list[Exception] = []

        def take(frame: DataFrame, _: int) -> None:
            nonlocal begin
            try:
                begin = self._take(frame, begin, handle)
            except Exception as error:
                failure.append(error)
                raise

        stream = (
            self._root.readStream.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", begin)
            .option("maxFilesPerTrigger", EVERY_FILE)
            .load(self._depot)
        )
        try:
            stream.writeStream.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            raise (failure[0] if failure else _translated(error)) from error

    def _take(self, frame: DataFrame, begin: int, handle: Callable[[Arrivals], None]) -> int:
        """Handle one frame on its own session; return where the next frame begins."""
        upto = self._log(self._depot).table()
        counts = self._log(self._depot).rows_added(begin - 1, upto.version if upto else begin)
        last = frame.agg(F.max(VERSION)).collect()[0][0]
        if last is None:
            return begin
        new = {version: count for version, count in counts.items() if version <= last and count != 0}
        self._session = frame.sparkSession
        try:
            handle(SparkArrivals.of(frame, new, begin, self._on_depot_delete, self._driver_messages))
        finally:
            self._session = self._root
        return int(last) + 1

    def merge(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Commit the rows in one MERGE.

        The fence stands in the update of the progress row: another token than the primed one raises inside the
        MERGE, so nothing is written. The transaction id is the second belt.
        """
        session = self._session
        frame = self._source(session, rows, control)
        frame.createOrReplaceTempView(SOURCE)
        try:
            transaction = _transaction(session, f"windrow:{live.handle}", live.table_version)
            with commit_lock(self._ledger), transaction, _noted(session, note):
                counts = session.sql(_merge_sql(_reference(self._ledger), control.schema.names, token)).collect()
        except PySparkException as error:
            raise _translated(error) from error
        finally:
            session.catalog.dropTempView(SOURCE)
        if not counts:
            return None
        done = counts[0].asDict()
        return Merged(done["num_updated_rows"], done["num_deleted_rows"], done["num_inserted_rows"])

    @staticmethod
    def _source(session: SparkSession, rows: Any, control: pa.Table) -> DataFrame:
        """Return all rows as one frame. An Arrow table with several chunks would lose rows after an empty one."""
        if isinstance(rows, pa.Table):
            return session.createDataFrame(pa.concat_tables([rows.drop_columns(["known"]), control]).combine_chunks())
        return rows.drop("known").unionByName(session.createDataFrame(control.combine_chunks()))

    def _log(self, location: str) -> Log:
        if local_path(location) is not None:
            return DeltaRsLog(location)
        return SparkLog(self._session, _reference(location))


SOURCE = "windrow_rows"
NOTE = "spark.databricks.delta.commitInfo.userMetadata"


def _merge_sql(ledger: str, columns: list[str], token: str) -> str:
    """Return the MERGE. The literal condition on the partition column keeps it away from final rows' files."""
    moved = "raise_error('WINDROW-LEDGER-MOVED: the ledger moved between prime and commit')"
    fenced = f"CASE WHEN s.id = '{tables.PROGRESS}' AND NOT (t.token <=> '{token}') THEN {moved} ELSE s.token END"
    absent = f"CASE WHEN s.id = '{tables.PROGRESS}' THEN {moved} ELSE s.token END"
    states = ", ".join(f"'{state}'" for state in tables.LIVE)
    update = ", ".join(f"{name} = {fenced if name == 'token' else f's.{name}'}" for name in columns)
    insert = ", ".join(absent if name == "token" else f"s.{name}" for name in columns)
    return (
        f"MERGE INTO {ledger} t USING {SOURCE} s ON t.state IN ({states}) AND t.id = s.id "
        f"WHEN MATCHED AND s.state = 'gone' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({insert})"
    )


@contextmanager
def _transaction(session: SparkSession, application: str, version: int) -> Iterator[None]:
    """Mark the commit with a transaction id: one from before the recorded version is not taken."""
    settings = {
        "spark.databricks.delta.write.txnAppId": application,
        "spark.databricks.delta.write.txnVersion": str(version),
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


@contextmanager
def _noted(session: SparkSession, note: str) -> Iterator[None]:
    """Let the commit carry a note, where the session takes settings, and leave to the session what it had before."""
    try:
        before = session.conf.get(NOTE, None)
        session.conf.set(NOTE, note)
    except PySparkException:
        yield
        return
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(NOTE)
        else:
            session.conf.set(NOTE, before)


def _absolute(location: str) -> str:
    """Return a table's location as Spark's SQL wants it: a relative path names no table there."""
    path = local_path(location)
    return location if path is None else str(path.resolve())


def _reference(location: str) -> str:
    return f"delta.`{location.replace('`', '``')}`"


def _translated(error: Exception) -> Exception:
    """Turn what Spark raised into our own error where it has a meaning for us."""
    text = str(error)
    if any(code in text for code in MOVED):
        return LedgerMoved(
            "the ledger moved between prime and commit",
            "Another driver, tick or flush committed first. Nothing was written.",
        )
    if any(code in text for code in UNREADABLE):
        return DepotUnreadable(
            f"the depot's change feed cannot be read: {first_line(error)}",
            "The log or files of the next versions are gone, or the feed was switched on later.",
        )
    return error
