"""Process a microbatch on Spark's executors, which join messages and open batches by stream.

The rows stay on the executors; only counts and clocks come to the driver. Each Spark task runs the same pure step as
the driver, over some of the streams. It also returns the unchanged open batches without messages, to be counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.batching.step import Step, timeouts
from windrow.columnar.arrow import in_columns, plain
from windrow.ledger.live import Live, no_messages
from windrow.ledger.open_batches import SparkOpen
from windrow.ledger.result import Counts, MicrobatchResult
from windrow.ledger.versions import latest_whole
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import SCHEMA, BatchFilter, OpenBatches
from windrow.model.tables import CHANGED, DELETED, FILLED, require_filled
from windrow.rows.arrow import ArrowRows
from windrow.rows.frame import Batches
from windrow.source.slices import Slice

ROWS_OF_A_PARTITION = 200_000
IN_ORDER = 2_000_000  # messages, new and open; from here on streams are sorted


def process_on_executors(
    step: Step, arrived: Slice | None, live: Live, wanted: BatchFilter | None, session: SparkSession
) -> MicrobatchResult:
    """Run a step over the messages that arrived (None: a tick) and the open batches that match (None: all)."""
    opened = _on_executors(live, session)
    rows = ArrowRows(no_messages(live.schema)) if arrived is None else arrived.rows
    messages = rows.frame(session)
    streams = messages.select("source", "key")
    totals = live.totals
    read = totals if wanted is None else opened.counted(wanted, streams)
    if step.flush:
        step = replace(step, last=opened.last_event_times(step.passed))
    batches = opened.frame(wanted, streams)
    size = rows.count + read.total[1]
    stepped = _stepped(step, messages, batches, live.schema, size)
    for extra in [] if arrived is None else arrived.extra_rows(step.microbatch, live.schema):
        stepped = stepped.unionByName(extra.frame(session).withColumn(CHANGED, F.lit(True)))
    held = kept(stepped)
    counts, left = _counted(held)
    passed = Floors.empty() if wanted is None else wanted.passed
    last = step.last
    cuts = Floors.empty() if last is None else timeouts(step.rules, Floors(last.source, last.floor + 1))
    return MicrobatchResult(held, counts, cuts, totals.after(read, left, passed), "executors")


def _on_executors(live: Live, session: SparkSession) -> SparkOpen:
    """Return the open batches for the executors; a dry run has them in memory."""
    if isinstance(live.open, SparkOpen):
        return live.open
    return SparkOpen(session, "", 0, live.schema, live.open.wanted(None))


def _stepped(step: Step, messages: DataFrame, batches: DataFrame, schema: pa.Schema, size: int) -> DataFrame:
    """Return the rows that the step gives for each partition of the streams."""
    both, parts = _together(messages, batches), max(2, 1 + size // ROWS_OF_A_PARTITION)
    columns = from_arrow_schema(schema.append(pa.field("known", pa.bool_())).append(pa.field(CHANGED, pa.bool_())))
    if size < IN_ORDER:
        return both.repartition(parts, "source", "key").mapInArrow(_processing(step, schema), columns)
    rows = both.repartitionByRange(parts, "source", "key").mapInArrow(_processing(step, schema), columns)
    return rows.sortWithinPartitions("state", "id")  # so each file holds a range of ids, by which Delta can skip it


def _counted(rows: DataFrame) -> tuple[Counts, OpenBatches]:
    """Count the rows to write and the batches that are open afterwards, in one aggregate."""
    is_open = F.col("state") == tables.OPEN
    source = F.when(is_open, F.col("source")).alias("source")
    new = F.when(is_open & F.col(CHANGED), F.size("messages"))
    summed = [F.count("*"), F.sum("message_count"), F.sum("bytes"), F.min("window_end"), F.sum(new)]
    groups = plain(rows.groupBy("state", "known", CHANGED, DELETED, "reason", source).agg(*summed).toArrow())
    names = ["state", "known", CHANGED, DELETED, "reason", "source", "count_all", *SCHEMA.names[2:]]
    written = pc.sum(groups.column(len(names))).as_py() or 0
    groups = groups.select(range(len(names))).rename_columns(names)
    left = groups.filter(pc.equal(groups["state"], tables.OPEN)).rename_columns([*names[:6], *SCHEMA.names[1:]])
    sums = [("open_batches", "sum"), ("open_messages", "sum"), ("open_bytes", "sum"), ("next_window_end", "min")]
    totals = left.group_by("source").aggregate(sums).rename_columns(SCHEMA.names).cast(SCHEMA)
    return Counts.combine(groups.filter(groups[CHANGED]), written), OpenBatches.of(totals)


def kept(rows: DataFrame) -> DataFrame:
    """Keep rows on the executors until the commit, so that they are not computed twice, for counting and writing.

    Serverless cannot keep them and computes them again.
    """
    try:
        return rows.localCheckpoint()
    except PySparkException as error:
        if "NOT_SUPPORTED" not in str(error.getCondition()):
            raise
        return rows


def _together(messages: DataFrame, batches: DataFrame) -> DataFrame:
    """Return one frame of messages and open batches with `source` and `key`; either struct is NULL in the other's rows.

    The lists of messages are outside the struct and empty in rows of messages: Spark computes the size of an Arrow
    batch after each row, and goes through all its NULL lists to do so.
    """
    message = F.struct(*[F.col(name) for name in messages.columns]).alias("message")
    batch = F.struct(*[F.col(name) for name in batches.columns if name != "messages"]).alias("batch")
    both = messages.select("source", "key", message).unionByName(
        batches.select("source", "key", batch, "messages"), allowMissingColumns=True
    )
    return both.withColumn("messages", F.coalesce("messages", F.array().cast(batches.schema["messages"].dataType)))


def _processing(step: Step, schema: pa.Schema) -> Batches:
    def process(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(parts)
        if not given:
            return
        both = pa.Table.from_batches(given)
        arrived = message_columns.conform(plain(_unpacked(both, "message")), schema.field("payload").type)
        batches = _batches(both, schema)
        require_filled(batches, FILLED)
        yield from step.with_unchanged(arrived, batches).combine_chunks().to_batches()

    return process


def _batches(both: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the open batches of `_together`, with all columns of the ledger."""
    batch, rows = plain(_unpacked(both, "batch")), plain(both.filter(pc.is_valid(both["batch"])))
    return latest_whole(in_columns(batch.append_column("messages", rows["messages"]), schema))


def _unpacked(table: pa.Table, name: str) -> pa.Table:
    """Return the rows that have a struct in the column, as a table of its fields."""
    present = table.filter(pc.is_valid(table[name]))[name]
    whole = pa.concat_arrays(present.chunks) if present.num_chunks else pa.array([], present.type)
    return pa.Table.from_struct_array(whole)
