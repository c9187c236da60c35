"""Process a depot version that is larger than memory: part by part, and all parts in one commit.

Streams are independent, so each part is a microbatch of its own over some of the streams, with their open batches. Its
rows are written before the next part is read; only their counts stay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.step import Step
from windrow.columnar.arrow import filter_rows, from_numpy
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult, count_rows, totals
from windrow.ledger.row_writer import RowWriter, WrittenRows
from windrow.model.floors import Floors
from windrow.model.open_batches import SCHEMA, BatchFilter, OpenBatchTotals, total_batches
from windrow.model.tables import CHANGED
from windrow.rows.rows import Rows
from windrow.rows.spilled import SpilledRows, buckets_of
from windrow.source.slices import times_of


def process_in_parts(
    step: Step, messages: SpilledRows, extra: Sequence[Rows], live: Live, ledger: Ledger
) -> MicrobatchResult:
    """Run a step over each part of the messages and the open batches of its streams, and write `extra` rows."""
    passed, writer = live.totals.passed_window_ends(step.closed_through), ledger.row_writer(live)
    parts = [_write_part(writer, *_process_part(step, live, passed, part)) for part in messages.tables()]
    parts += [_write_part(writer, _all_changed(rows.table()), SCHEMA.empty_table()) for rows in extra]
    written = WrittenRows.together(part.written for part in parts)
    counts, left = totals(written.groups)
    opened = live.totals.after(OpenBatchTotals.of(_sum_totals([part.read for part in parts])), left, passed)
    nothing = MicrobatchResult.nothing(live.schema).rows
    rows = pa.concat_tables([nothing, *(part.here for part in parts)])
    return MicrobatchResult(rows, counts, opened, files=written.files)


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of a part: what was written, the totals of the batches that were read, in a dry run the rows."""

    written: WrittenRows
    read: pa.Table
    here: pa.Table


def _process_part(
    step: Step, live: Live, passed: Floors, part: tuple[pa.Table, frozenset[int]]
) -> tuple[pa.Table, pa.Table]:
    """Process the messages of some buckets; return the rows and the totals of the batches that were read."""
    messages, buckets = part
    # guard: each-open-batch-in-one-part
    batches = _of_buckets(live.batches(BatchFilter(partial(times_of, messages), passed)), buckets)
    return step.with_unchanged(messages, batches), total_batches(batches)


def _write_part(writer: RowWriter | None, rows: pa.Table, read: pa.Table) -> Part:
    """Write rows, or without a writer keep those that changed."""
    if writer is not None:
        return Part(writer.write(rows), read, rows.schema.empty_table().drop_columns([CHANGED]))
    return Part(WrittenRows([], count_rows(rows)), read, filter_rows(rows, rows[CHANGED]).drop_columns([CHANGED]))


def _all_changed(rows: pa.Table) -> pa.Table:
    return rows.append_column(CHANGED, pa.repeat(pa.scalar(True), rows.num_rows))


def _of_buckets(batches: pa.Table, buckets: frozenset[int]) -> pa.Table:
    bucket = from_numpy(buckets_of(batches["key"]))
    return filter_rows(batches, pc.is_in(bucket, pa.array(sorted(buckets), bucket.type)))


def _sum_totals(parts: list[pa.Table]) -> pa.Table:
    sums = [("open_batches", "sum"), ("open_messages", "sum"), ("open_bytes", "sum"), ("next_window_end", "min")]
    both = pa.concat_tables(parts)
    return both.group_by("source").aggregate(sums).rename_columns(both.column_names).cast(both.schema)
