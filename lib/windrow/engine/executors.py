"""A slice of the depot spread over Spark's executors, by stream: nothing but counts and clocks comes to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow import messages as message_columns
from windrow.arrow import plain
from windrow.engine.frames import frame_of
from windrow.engine.protocol import Counts, Processed
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

    def process(self, task: Task, live: pa.Table) -> Processed:
        """Run the task over the streams."""
        return processed(self.rows_of(task, live))

    def rows_of(self, task: Task, live: pa.Table) -> DataFrame:
        """Return what the task makes of each partition of the streams."""
        session = self.messages.sparkSession
        open_rows = frame_of(session, live)
        message = F.struct(*[F.col(name) for name in self.messages.columns])
        batch = F.struct(*[F.col(name) for name in open_rows.columns])
        both = _tagged(self.messages, message, None).unionByName(
            _tagged(open_rows, None, batch), allowMissingColumns=True
        )
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


def _tagged(frame: DataFrame, message: Column | None, batch: Column | None) -> DataFrame:
    columns = [F.col("source"), F.col("key")]
    columns += [message.alias("message")] if message is not None else []
    columns += [batch.alias("batch")] if batch is not None else []
    return frame.select(*columns)


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
        live = plain(_unpacked(both, "batch")).select(schema.names).cast(schema)
        rows, _ = task(arrived, live)
        yield from rows.combine_chunks().to_batches()

    return process


def _unpacked(table: pa.Table, name: str) -> pa.Table:
    """Return the rows that have a struct in the column, as a table of its fields."""
    present = table.filter(pc.is_valid(table[name]))[name]
    whole = pa.concat_arrays(present.chunks) if present.num_chunks else pa.array([], present.type)
    return pa.Table.from_struct_array(whole)
