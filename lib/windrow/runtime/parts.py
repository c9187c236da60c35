"""Process a depot version that is larger than memory: part by part, and all parts in one commit.

Streams are independent, so each part is a microbatch of its own over some of the streams, with the open batches of
these. Its rows are written before the next part is read; only their counts stay in memory.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.step import Step
from windrow.columnar.arrow import from_numpy, where
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult, grouped, totals
from windrow.ledger.row_writer import RowWriter, WrittenRows
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter, OpenBatches, summarise
from windrow.model.tables import CHANGED
from windrow.rows.spilled import SpilledRows, buckets_of
from windrow.source.slices import times_of


def process_in_parts(step: Step, rows: SpilledRows, live: Live, passed: Floors, ledger: Ledger) -> MicrobatchResult:
    """Run a step over each part of the messages and the open batches of its streams."""
    writer, parts, read, here = ledger.row_writer(live), [], [], []
    for messages, buckets in rows.tables():
        # guard: each-open-batch-in-one-part
        batches = _of_buckets(live.wanted(BatchFilter(partial(times_of, messages), passed)), buckets)
        changed = step.with_unchanged(messages, batches)
        read.append(summarise(batches))
        parts.append(_written(changed, writer))
        here += [] if writer else [where(changed, changed[CHANGED]).drop_columns([CHANGED])]
    done = WrittenRows.together(parts)
    counts, left = totals(done.groups)
    opened = live.totals.after(OpenBatches.of(_summed(read)), left, passed)
    nothing = MicrobatchResult.nothing(live.schema).rows
    return MicrobatchResult(pa.concat_tables([nothing, *here]), counts, Floors.empty(), opened, files=done.files)


def _of_buckets(batches: pa.Table, buckets: frozenset[int]) -> pa.Table:
    """Return the batches whose streams are in some buckets."""
    bucket = from_numpy(buckets_of(batches["key"]))
    return where(batches, pc.is_in(bucket, pa.array(sorted(buckets), bucket.type)))


def _written(rows: pa.Table, writer: RowWriter | None) -> WrittenRows:
    """Write rows; a dry run only counts them."""
    return WrittenRows([], grouped(rows)) if writer is None else writer.write(rows)


def _summed(parts: list[pa.Table]) -> pa.Table:
    """Return the totals of open batches of all parts, by source."""
    sums = [("open_batches", "sum"), ("open_messages", "sum"), ("open_bytes", "sum"), ("next_window_end", "min")]
    both = pa.concat_tables(parts)
    return both.group_by("source").aggregate(sums).rename_columns(both.column_names).cast(both.schema)
