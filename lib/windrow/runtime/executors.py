"""Process a microbatch on Spark's executors, which join messages and open batches by stream.

The rows stay on the executors; only counts and clocks come to the driver. Each Spark task runs the same pure step as
the driver, over some of the streams. It also returns the unchanged open batches without messages, to be counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.batching.step import Step, timeouts
from windrow.columnar.arrow import in_columns, plain
from windrow.ledger.file_writer import WrittenFile
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live, no_messages
from windrow.ledger.result import GROUPS, MicrobatchResult
from windrow.ledger.result import totals as sums
from windrow.ledger.task_files import TaskWriter
from windrow.ledger.versions import latest_whole
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter
from windrow.model.tables import CHANGED, DELETED, FILLED, require_filled
from windrow.rows.arrow import ArrowRows
from windrow.rows.frame import in_one
from windrow.rows.rows import Function
from windrow.source.slices import Slice

ROWS_OF_A_PARTITION = 200_000
IN_ORDER = 2_000_000  # messages, new and open; from here on streams are sorted


def process_on_executors(
    step: Step, arrived: Slice | None, live: Live, wanted: BatchFilter | None, ledger: Ledger
) -> MicrobatchResult:
    """Run a step over the messages that arrived (None: a tick) and the open batches that match (None: all)."""
    opened, totals = ledger.open_on_executors(live), live.totals
    rows = ArrowRows(no_messages(live.schema)) if arrived is None else arrived.rows
    messages = rows.frame(opened.session)
    streams = messages.select("source", "key")
    read = totals if wanted is None else opened.counted(wanted, streams)
    if step.flush:
        step = replace(step, last=opened.last_event_times(step.passed))
    size = rows.count + read.total[1]
    both = _by_stream(_together(messages, opened.frame(wanted, streams)), size)
    others = [] if arrived is None else arrived.extra_rows(step.microbatch, live.schema)
    extra = [one.frame(opened.session).withColumn(CHANGED, F.lit(True)) for one in others]
    stepping, writer = partial(_stepped, step, live.schema), ledger.task_writer(live)
    written = (
        _kept(stepping, both, extra, live.schema, size) if writer is None else _filed(stepping, both, extra, writer)
    )
    counts, left = sums(written.groups)
    passed = Floors.empty() if wanted is None else wanted.passed
    last = step.last
    cuts = Floors.empty() if last is None else timeouts(step.rules, Floors(last.source, last.floor + 1))
    opened_after = totals.after(read, left, passed)
    return MicrobatchResult(written.rows, counts, cuts, opened_after, "executors", files=written.files)


def _by_stream(both: DataFrame, size: int) -> DataFrame:
    """Return messages and open batches with those of a stream in one task, in the order of streams if they are many."""
    parts = max(2, 1 + size // ROWS_OF_A_PARTITION)
    return (both.repartition if size < IN_ORDER else both.repartitionByRange)(parts, "source", "key")


@dataclass(frozen=True, slots=True)
class Written:
    """What a microbatch on the executors gave: its rows as a frame, or the files with them; and their counts."""

    rows: DataFrame | pa.Table
    groups: pa.Table
    files: Sequence[WrittenFile] = ()


def _filed(stepping: Function, both: DataFrame, extra: Sequence[DataFrame], writer: TaskWriter) -> Written:
    """Run the step, and write its rows and the `extra` ones in the tasks that have them."""
    parts = [writer.write(both, stepping), *map(writer.write, extra)]
    files = [file for part in parts for file in part.files]
    return Written(writer.no_rows, pa.concat_tables(part.groups for part in parts), files)


def _kept(stepping: Function, both: DataFrame, extra: Sequence[DataFrame], schema: pa.Schema, size: int) -> Written:
    """Run the step, and keep its rows and the `extra` ones on the executors until the commit."""
    columns = from_arrow_schema(schema.append(pa.field("known", pa.bool_())).append(pa.field(CHANGED, pa.bool_())))
    stepped = both.mapInArrow(in_one(stepping), columns)
    if size >= IN_ORDER:  # each file holds a range of ids, by which Delta can skip it
        stepped = stepped.sortWithinPartitions("state", "id")
    held = kept(reduce(DataFrame.unionByName, extra, stepped))
    return Written(held, _grouped(held))


def _grouped(rows: DataFrame) -> pa.Table:
    """Count rows as `result.grouped` does, on the executors."""
    is_open = F.col("state") == tables.OPEN
    source = F.when(is_open, F.col("source")).alias("source")
    new = F.when(is_open & F.col(CHANGED), F.size("messages"))
    summed = [F.count("*"), F.sum("message_count"), F.sum("bytes"), F.min("window_end"), F.sum(new)]
    groups = rows.groupBy("state", "known", CHANGED, DELETED, "reason", source).agg(*summed)
    return plain(groups.toArrow()).rename_columns(GROUPS.names).cast(GROUPS)


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


def _stepped(step: Step, schema: pa.Schema, both: pa.Table) -> pa.Table:
    """Return the rows that the step gives for the messages and open batches of a task."""
    arrived = message_columns.conform(plain(_unpacked(both, "message")), schema.field("payload").type)
    batches = _batches(both, schema)
    require_filled(batches, FILLED)
    return step.with_unchanged(arrived, batches)


def _batches(both: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the open batches of `_together`, with all columns of the ledger."""
    batch, rows = plain(_unpacked(both, "batch")), plain(both.filter(pc.is_valid(both["batch"])))
    return latest_whole(in_columns(batch.append_column("messages", rows["messages"]), schema))


def _unpacked(table: pa.Table, name: str) -> pa.Table:
    """Return the rows that have a struct in the column, as a table of its fields."""
    present = table.filter(pc.is_valid(table[name]))[name]
    whole = pa.concat_arrays(present.chunks) if present.num_chunks else pa.array([], present.type)
    return pa.Table.from_struct_array(whole)
