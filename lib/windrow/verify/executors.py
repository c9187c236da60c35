"""The parts of a verification on Spark's executors; only counts, findings and books come to the driver.

Tasks turn the rows of depot and ledger into blocks by stream (`parts.BlockWriter`), Spark shuffles the blocks, and each
task checks its streams as the embedded engine checks all: from a temporary file, as many at a time as fit in memory.
SQL answers the questions about all streams.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
from duckdb import DuckDBPyConnection, OutOfRangeException
from pyspark import TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import to_plain_types
from windrow.delta.database import database, joins_as_written
from windrow.delta.table import unreadable_error
from windrow.errors import TableUnwritableError, first_line
from windrow.model.commits import VERSION
from windrow.reading.tables import Ledger, SparkDepot, ledger_frame
from windrow.rows.frame import Batches, schema_of
from windrow.rows.session_settings import session_with, small_batches
from windrow.verify.columns import as_messages
from windrow.verify.decisions import OF_PARTS, Derivation
from windrow.verify.depot import COUNTS, NO_MESSAGES, DepotMessages, added_messages, message_rows, readable_from
from windrow.verify.parts import BLOCK_SHARE, Block, BlockWriter, PartedRows
from windrow.verify.quality.parted import check_on_spark
from windrow.verify.quality.spark import SparkRows
from windrow.verify.report import Difference
from windrow.verify.snapshot import BATCH, REJECTED, LedgerContents, batch_rows, rejected_rows
from windrow.verify.tables import ledger_tables
from windrow.verify.version_check import PartResult, StoredParts

MESSAGES_OF_A_PARTITION = 500_000  # a task checks them in about ten seconds, and starts in less than one
BUCKET_BLOCKS = 4  # blocks in memory per writing task, which thus needs less than a checking task
ROW_NUMBERS = 1 << 40  # the range of batch numbers for each task
BLOCKS = pa.schema(
    [("name", pa.string()), ("bucket", pa.int32()), ("byte_count", pa.int64()), ("content", pa.binary())]
)
DEPOT = message_rows(NO_MESSAGES).schema
ANSWERS = pa.schema([("answer", pa.binary())])
# The rows of a ledger with the columns that queries name, and times as numbers.
ALL = """
WITH all_batches AS (
    SELECT state, source, key, opened_microbatch, closed_microbatch, close_reason, coalesce(array_size(messages), 0) AS
    message_rows,
        unix_micros(last_event_time) AS last_event_time, unix_micros(timeout_at) AS timeout_at
    FROM {batch} WHERE state IN ('open', 'closed')
), all_rejected AS (
    SELECT source, key, microbatch, reason, missed_by_us, unix_micros(received_at) AS received_at, true AS of_message
    FROM {batch} WHERE state = 'rejected'
)
"""
Tables = Mapping[str, pa.Table]
Rows = Callable[[pa.Table], Tables]
ASKED = ("versions", "microbatches", "ahead")  # the relations that a query about the depot may name


@dataclass(frozen=True)
class ExecutorParts:
    """The parts of a ledger version and its depot, which tasks check within `max_memory_bytes` each."""

    connection: DuckDBPyConnection
    snapshot: LedgerContents
    depot: DepotMessages
    ledger: Ledger
    messages: DataFrame
    max_memory_bytes: int

    @property
    def count(self) -> int:
        """Return how many parts there are, one per task."""
        return 1 + self.snapshot.messages_read // MESSAGES_OF_A_PARTITION

    def ask(self, query: str) -> pa.Table:
        """Return the answer to a query over `all_batches` and `all_rejected`."""
        try:
            return to_plain_types(SparkRows(ledger_frame(self.ledger)).ask(f"{ALL} {query}"))
        except PySparkException as error:
            if "OVERFLOW" in str(error.getCondition()):  # DuckDB reports the same for this query
                raise OutOfRangeException(first_line(error)) from error
            raise unreadable_error(self.ledger.location, "ledger", error) from error

    def ask_depot(self, query: str) -> pa.Table:
        """Return the answers of all tasks to a query over `stream`, the messages of the depot without payloads."""
        relations = {name: self.connection.sql(f"FROM {name}").to_arrow_table() for name in ASKED}
        payload = self.messages.schema["payload"].dataType
        lean = self.messages.withColumn("payload", F.lit(None).cast(payload))
        task = partial(_answer, query, relations, self._depot_rows, self.max_memory_bytes)
        nothing = [batch["answer"][0].as_py() for batch in task(iter(()))]  # the answer if there is no task
        answers = [*nothing, *self._collect(lean, task)]
        return pa.concat_tables(map(pickle.loads, answers))

    def check(
        self,
        derivation: Derivation | None,
        progress: Callable[[int], None],  # noqa: ARG002 - tasks do not tell how far they are
    ) -> Iterator[PartResult]:
        """Yield what the check of each part finds."""
        queries = OF_PARTS if derivation else {}
        relations = {name: self.connection.sql(query).to_arrow_table() for name, query in queries.items()}
        frame = ledger_frame(self.ledger)
        batches = frame.where("state IN ('open', 'closed')").selectExpr(*BATCH.split(", "), "messages")
        rejected = frame.where("state = 'rejected'").selectExpr(*REJECTED.split(", "))
        sources: list[tuple[DataFrame, Rows]] = [
            (self.messages, self._depot_rows),
            (batches, BatchNumbering()),
            (rejected, lambda rows: {"rejected": rejected_rows(as_messages(rows))}),
        ]
        schemas: dict[str, pa.Schema] = {}
        frames = list[DataFrame]()
        for rows, function in sources:
            nothing = function(to_plain_types(schema_of(rows).empty_table()))
            schemas |= {name: table.schema for name, table in nothing.items()}
            writing = partial(_blocks, function, self.max_memory_bytes // BLOCK_SHARE // BUCKET_BLOCKS)
            frames.append(rows.mapInArrow(writing, from_arrow_schema(BLOCKS)))
        shuffled = reduce(DataFrame.union, frames).repartition(self.count, "bucket")
        known = self.snapshot, self.depot, derivation, relations  # without their rows
        for answer in self._collect(shuffled, partial(_check, *known, schemas, self.max_memory_bytes)):
            result = pickle.loads(answer)  # noqa: S301 - our own task wrote it
            if not isinstance(result, PartResult):
                raise TableUnwritableError(*result)
            yield result

    def check_overall(self) -> Iterator[Difference]:
        """Check the invariants that need no messages, over all streams."""
        return check_on_spark(SparkRows(ledger_frame(self.ledger)))

    @property
    def _depot_rows(self) -> Rows:
        payload = self.ledger.payload
        return lambda rows: {"depot": message_rows(added_messages(rows, payload))}

    def _collect(self, frame: DataFrame, task: Batches) -> list[bytes]:
        """Return the answers of tasks over the rows of a frame. Raises TableUnreadableError."""
        try:
            with session_with(frame.sparkSession, small_batches(frame.sparkSession)):
                answers = frame.mapInArrow(task, from_arrow_schema(ANSWERS)).toArrow()
        except PythonException:  # not about a file
            raise
        except PySparkException as error:
            raise unreadable_error(self.ledger.location, "ledger or its depot", error) from error
        return list(answers["answer"].to_pylist())


def depot_frame(depot: SparkDepot, first: int, last: int, without: Collection[int]) -> DataFrame:
    """Return the messages that versions of a depot added, with the version, except versions in `without`."""
    frame = depot.frame(first, last)
    return frame.where(~F.col(VERSION).isin(list(without))) if without else frame


def count_depot(depot: SparkDepot, first: int, last: int, without: Collection[int]) -> DepotMessages:
    """Count the messages of the versions from `first` to `last`, or of the latest of them that can still be read."""
    last = min(last, depot.version())

    def count(since: int) -> pa.Table:
        try:
            counted = depot_frame(depot, since, last, without).groupBy(VERSION).count().toArrow()
        except PySparkException as error:
            raise OSError(first_line(error)) from error
        return pa.table(to_plain_types(counted).columns, COUNTS)

    try:
        return DepotMessages(count(first), first, first, last)
    except OSError:
        readable = readable_from(count, first, last)
        return DepotMessages(count(readable), first, readable, last)


class BatchNumbering:
    """Numbers the batches of a task, differently in each task."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, rows: pa.Table) -> Tables:
        """Return batches with numbers, and the messages in them."""
        task = TaskContext.get()
        first = (task.partitionId() if task else 0) * ROW_NUMBERS + self._count
        self._count += rows.num_rows
        return batch_rows(rows, first)


def _blocks(function: Rows, block_bytes: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a task: turn rows into blocks by stream."""
    writer = BlockWriter(block_bytes, ("source", "key"))
    for batch in batches:
        for name, rows in function(to_plain_types(pa.Table.from_batches([batch]))).items():
            yield from _rows_of(writer.add(name, rows))
    yield from _rows_of(writer.close())


def _rows_of(blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
    if rows := [block._asdict() for block in blocks]:
        yield pa.RecordBatch.from_pylist(rows, BLOCKS)


def _answer(
    query: str, relations: Tables, function: Rows, max_memory_bytes: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run in a task: answer a query about the messages of the depot."""
    rows = (part for batch in batches for part in function(to_plain_types(pa.table(batch)))["depot"].to_batches())
    with database(max_memory_bytes) as connection:
        for name, relation in relations.items():
            connection.register(name, relation)
        connection.register("stream", pa.RecordBatchReader.from_batches(DEPOT, rows))
        with joins_as_written(connection):
            yield from _answers([connection.sql(query).to_arrow_table()])


def _check(
    snapshot: LedgerContents,
    depot: DepotMessages,
    derivation: Derivation | None,
    relations: Tables,
    schemas: Mapping[str, pa.Schema],
    max_memory_bytes: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run in a task: check its streams, as many at a time as fit into memory."""
    try:
        with PartedRows(max_memory_bytes) as ledger, PartedRows(max_memory_bytes) as messages:
            for name, schema in schemas.items():
                (messages if name == "depot" else ledger).add(name, schema.empty_table())
            for batch in batches:
                for row in batch.to_pylist():
                    (messages if row["name"] == "depot" else ledger).put(Block(**row))
            with ledger_tables(snapshot, max_memory_bytes) as connection:
                for name, relation in relations.items():
                    connection.register(name, relation)
                parts = StoredParts(connection, snapshot, depot, ledger, messages)
                yield from _answers(parts.check(derivation, lambda done: None))
    except TableUnwritableError as error:
        yield from _answers([(error.message, error.hint)])


def _answers(results: Iterable[object]) -> Iterator[pa.RecordBatch]:
    for result in results:
        yield pa.RecordBatch.from_pylist([{"answer": pickle.dumps(result)}], ANSWERS)
