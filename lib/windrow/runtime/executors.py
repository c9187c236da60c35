"""Process a microbatch on Spark's executors, which join messages and open batches by stream.

The rows stay on the executors; only counts and clocks come to the driver. Each Spark task runs the same pure step as
the driver, over some of the streams. It also returns the unchanged open batches, without messages, for counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.batching.step import Step
from windrow.columnar.arrow import conform, to_plain_types
from windrow.ledger.file_writer import WrittenFile
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live, no_messages
from windrow.ledger.result import GROUPS, MicrobatchResult
from windrow.ledger.result import totals as sums
from windrow.ledger.row_writer import RowWriter, WrittenRows
from windrow.ledger.task_files import write_in_tasks
from windrow.ledger.versions import latest_whole
from windrow.model import tables
from windrow.model.floors import Cuts, Floors
from windrow.model.open_batches import BatchFilter
from windrow.model.tables import CHANGED, DELETED, REQUIRED_COLUMNS, require_filled
from windrow.rows.arrow import ArrowRows
from windrow.rows.frame import all_rows_at_once
from windrow.rows.rows import Function
from windrow.source.conversion import messages_in
from windrow.source.slices import Slice

ROWS_OF_A_PARTITION = 200_000
BUCKETS_OF_A_PARTITION = 8  # hashing spreads them over the partitions, some of which get more than others
BUCKET, PACKED = "windrow bucket", "windrow batches"


def process_on_executors(
    step: Step, arrived: Slice | None, live: Live, batch_filter: BatchFilter | None, ledger: Ledger
) -> MicrobatchResult:
    """Run a step over the messages that arrived (None: a tick) and the open batches that match (None: all)."""
    opened, totals = ledger.open_on_executors(live), live.totals
    if not totals.total[0]:
        opened.rows = live.schema.empty_table()  # so Spark need not look for open batches
    rows = ArrowRows(no_messages(live.schema)) if arrived is None else arrived.rows
    messages = rows.frame(opened.session)
    streams = messages.select("source", "key")
    read = totals if batch_filter is None else opened.count(batch_filter, streams)
    if step.flush:
        step = replace(step, last=opened.last_event_times(step.closed_through))
    parts = max(2, 1 + (rows.count + read.total[1]) // ROWS_OF_A_PARTITION)
    both = _together(messages, opened.frame(batch_filter, streams), parts)
    others = [] if arrived is None else arrived.extra_rows(step.microbatch, live.schema)
    extra = [other.frame(opened.session).withColumn(CHANGED, F.lit(True)) for other in others]
    conform = messages_in(live.schema.field("payload").type)
    stepping, writer = partial(_run_step, step, live.schema, conform), ledger.row_writer(live)
    written = (
        _keep_rows(stepping, both, extra, live.schema) if writer is None else _write_rows(stepping, both, extra, writer)
    )
    counts, left = sums(written.groups)
    passed = Floors.empty() if batch_filter is None else batch_filter.ends_before
    last = step.last
    cuts = Cuts.none() if last is None else Cuts.flushed(Floors(last.source, last.floor + 1), step.rules.max_delay)
    opened_after = totals.after(read, left, passed)
    return MicrobatchResult(written.rows, counts, opened_after, cuts, "executors", files=written.files)


@dataclass(frozen=True, slots=True)
class ExecutorResult:
    """The result of a microbatch on the executors: its rows, as a frame or in files, and their counts."""

    rows: DataFrame | pa.Table
    groups: pa.Table
    files: Sequence[WrittenFile] = ()


def _write_rows(stepping: Function, both: DataFrame, extra: Sequence[DataFrame], writer: RowWriter) -> ExecutorResult:
    """Run the step, and write its rows and the `extra` ones in the tasks that have them."""
    parts = [write_in_tasks(both, writer, stepping), *(write_in_tasks(rows, writer) for rows in extra)]
    written = WrittenRows.together(parts)
    return ExecutorResult(writer.no_rows, written.groups, written.files)


def _keep_rows(stepping: Function, both: DataFrame, extra: Sequence[DataFrame], schema: pa.Schema) -> ExecutorResult:
    """Run the step, and keep its rows and the `extra` ones on the executors until the commit."""
    columns = from_arrow_schema(schema.append(pa.field("known", pa.bool_())).append(pa.field(CHANGED, pa.bool_())))
    stepped = both.mapInArrow(all_rows_at_once(stepping), columns)
    frame = persist_rows(reduce(DataFrame.unionByName, extra, stepped))
    return ExecutorResult(frame, _group_rows(frame))


def _group_rows(rows: DataFrame) -> pa.Table:
    is_open = F.col("state") == tables.OPEN
    source = F.when(is_open, F.col("source")).alias("source")
    new = F.when(is_open & F.col(CHANGED), F.size("messages"))
    summed = [F.count("*"), F.sum("message_count"), F.sum("bytes"), F.min("window_end"), F.sum(new)]
    groups = rows.groupBy("state", "known", CHANGED, DELETED, "reason", source).agg(*summed)
    return to_plain_types(groups.toArrow()).rename_columns(GROUPS.names).cast(GROUPS)


def persist_rows(rows: DataFrame) -> DataFrame:
    """Keep rows on the executors until the commit, so that counting and writing do not compute them twice.

    Serverless cannot keep them and computes them again.
    """
    try:
        return rows.localCheckpoint()
    except PySparkException as error:
        if "NOT_SUPPORTED" not in str(error.getCondition()):
            raise
        return rows


def _together(messages: DataFrame, batches: DataFrame, parts: int) -> DataFrame:
    """Return messages and open batches in `parts` partitions, each stream in one partition.

    Streams are hashed into buckets, and the open batches of a bucket are packed into a few values of one column. In
    separate columns, NULL in every message's row, they cost Spark more than the messages (`docs/performance.md`).
    """
    bucket = F.pmod(F.hash("source", "key"), F.lit(parts * BUCKETS_OF_A_PARTITION))
    packed = batches.withColumn(BUCKET, bucket).mapInArrow(_packing, f"`{BUCKET}` INT, `{PACKED}` BINARY")
    both = messages.withColumn(BUCKET, bucket).unionByName(packed, allowMissingColumns=True)
    return both.repartition(parts, BUCKET)


def _packing(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        batches = to_plain_types(pa.Table.from_batches([part]))
        buckets, rows = batches[BUCKET].unique(), batches.drop_columns([BUCKET])
        packed = [_pack(rows.filter(pc.equal(batches[BUCKET], bucket))) for bucket in buckets]
        yield pa.RecordBatch.from_arrays([buckets, pa.array(packed, pa.binary())], [BUCKET, PACKED])


def _pack(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


def _run_step(step: Step, schema: pa.Schema, conformed: Function, both: pa.Table) -> pa.Table:
    """Return the rows that the step makes of a task's open batches and its messages, which `conformed` checks."""
    is_message = pc.is_null(both[PACKED])
    messages = both.filter(is_message).drop_columns([BUCKET, PACKED])
    arrived = conformed(messages)
    packed = both[PACKED].filter(pc.invert(is_message))
    parts = [conform(pa.ipc.open_stream(part.as_buffer()).read_all(), schema) for part in packed]
    batches = latest_whole(pa.concat_tables([schema.empty_table(), *parts]))
    require_filled(batches, REQUIRED_COLUMNS)
    return step.with_unchanged(arrived, batches)
