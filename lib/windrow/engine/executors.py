"""A slice of the depot spread over Spark's executors, by stream: nothing but counts and clocks comes to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow import messages as message_columns
from windrow import tables
from windrow.arrow import plain
from windrow.engine.frames import frame_of
from windrow.engine.processed import Counts, Processed
from windrow.engine.slices import require_text
from windrow.floors import Floors
from windrow.step import Task

ROWS_OF_A_PARTITION = 200_000


@dataclass(frozen=True, slots=True)
class ExecutorsSlice:
    """Whole depot versions as a Spark frame of messages with `version`."""

    messages: DataFrame
    expected: Mapping[int, int | None]
    rows: int
    path: str = "executors"
    volume: None = None

    def formatted(self, partial: pa.Table) -> ExecutorsSlice:
        """Return itself: these are messages."""
        return self

    def summarise(self, latest: int) -> pa.Table:
        """Return `messages.summarise` of all rows: each executor summarises what it reads."""
        parts = self.messages.mapInArrow(_summarising(latest), from_arrow_schema(message_columns.SUMMARY))
        return message_columns.combine(plain(parts.toArrow()).cast(message_columns.SUMMARY))

    def streams(self) -> None:
        """Tell that the driver does not know them."""

    def table(self) -> pa.Table:
        """Bring the messages to the driver."""
        arrived = message_columns.conform(plain(self.messages.toArrow()))
        require_text(arrived)
        return arrived

    def beside(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return nothing: all there is are messages."""
        return []

    def process(self, task: Task, live: pa.Table) -> Processed:
        """Run the task over the streams."""
        return processed(self.rows_of(task, live))

    def rows_of(self, task: Task, live: pa.Table) -> DataFrame:
        """Return what the task makes of each partition of the streams."""
        both = _beside(self.messages, live)
        spread = both.repartition(max(2, 1 + self.rows // ROWS_OF_A_PARTITION), "source", "key")
        schema = live.schema.append(pa.field("known", pa.bool_()))
        return spread.mapInArrow(_processing(task, live.schema), from_arrow_schema(schema))


def processed(rows: DataFrame) -> Processed:
    """Keep rows for the ledger on the executors until the commit, and count them.

    They are checkpointed locally, because counting and merging would otherwise compute them twice.
    """
    kept = _kept(rows)
    groups = kept.groupBy("state", "known", "reason").agg(F.count("*").alias("count_all")).toArrow()
    return Processed(kept, Counts.combine(plain(groups)), Floors.empty())


Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _kept(rows: DataFrame) -> DataFrame:
    """Keep rows on the executors; where nothing can be kept, as on serverless, they are computed again when needed."""
    try:
        return rows.localCheckpoint()
    except PySparkException as error:
        if "NOT_SUPPORTED" not in str(error.getCondition()):
            raise
        return rows


def _beside(messages: DataFrame, live: pa.Table) -> DataFrame:
    """Return one frame of messages and live rows, each with the stream that it belongs to, and NULL for the other.

    Of the live rows it has the columns that say something. Lists stand beside the struct and are empty in rows of
    messages: Spark looks at the size of a batch after each row, and goes through all NULL lists of the batch to do so.
    """
    message = F.struct(*[F.col(name) for name in messages.columns]).alias("message")
    tagged = messages.select("source", "key", message)
    if not live.num_rows:
        return tagged
    telling = live.select([name for name in live.column_names if live[name].null_count < live.num_rows])
    lists = [
        field.name for field in telling.schema if pa.types.is_list(field.type) and not telling[field.name].null_count
    ]
    rows = frame_of(messages.sparkSession, telling)
    batch = F.struct(*[F.col(name) for name in telling.column_names if name not in lists]).alias("batch")
    both = tagged.unionByName(rows.select("source", "key", batch, *lists), allowMissingColumns=True)
    return both.withColumns({name: F.coalesce(name, F.array().cast(rows.schema[name].dataType)) for name in lists})


def _summarising(latest: int) -> Batches:
    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            arrived = message_columns.conform(plain(pa.table(batch)))
            require_text(arrived)
            yield from message_columns.summarise(arrived, latest).to_batches()

    return summarise


def _processing(task: Task, schema: pa.Schema) -> Batches:
    def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        if not given:
            return
        both = pa.Table.from_batches(given)
        arrived = message_columns.conform(plain(_unpacked(both, "message")))
        rows, _ = task(arrived, _live(both, schema))
        yield from rows.combine_chunks().to_batches()

    return process


def _live(both: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the live rows of `_beside`, with all columns of the ledger."""
    if "batch" not in both.column_names:
        return schema.empty_table()
    batch, beside = plain(_unpacked(both, "batch")), plain(both.filter(pc.is_valid(both["batch"])))
    told = {name: beside[name] for name in beside.column_names} | {name: batch[name] for name in batch.column_names}
    columns: dict[str, object] = {
        name: told[name].cast(schema.field(name).type) for name in schema.names if name in told
    }
    return tables.rows(schema, columns, batch.num_rows)


def _unpacked(table: pa.Table, name: str) -> pa.Table:
    """Return the rows that have a struct in the column, as a table of its fields."""
    present = table.filter(pc.is_valid(table[name]))[name]
    whole = pa.concat_arrays(present.chunks) if present.num_chunks else pa.array([], present.type)
    return pa.Table.from_struct_array(whole)
