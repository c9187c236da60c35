"""Process a depot version that is larger than memory: part by part, and all parts in one commit.

Streams are independent, so each part is a microbatch of its own over some of the streams, with the open batches of
these. Its rows are written before the next part is read; only their counts stay in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    parts = list(map(partial(_processed, step, live, passed, ledger.row_writer(live)), rows.tables()))
    done = WrittenRows.together(part.written for part in parts)
    counts, left = totals(done.groups)
    opened = live.totals.after(OpenBatches.of(_summed([part.read for part in parts])), left, passed)
    nothing = MicrobatchResult.nothing(live.schema).rows
    return MicrobatchResult(
        pa.concat_tables([nothing, *(part.here for part in parts)]), counts, opened, files=done.files
    )


@dataclass(frozen=True, slots=True)
class Processed:
    """What is left of a part: what was written, the totals of the batches that were read, in a dry run the rows."""

    written: WrittenRows
    read: pa.Table
    here: pa.Table


def _processed(
    step: Step, live: Live, passed: Floors, writer: RowWriter | None, part: tuple[pa.Table, frozenset[int]]
) -> Processed:
    """Process the messages of a part, those of some buckets."""
    messages, buckets = part
    # guard: each-open-batch-in-one-part
    batches = _of_buckets(live.wanted(BatchFilter(partial(times_of, messages), passed)), buckets)
    rows, read = step.with_unchanged(messages, batches), summarise(batches)
    if writer is not None:
        return Processed(writer.write(rows), read, rows.slice(0, 0).drop_columns([CHANGED]))
    return Processed(WrittenRows([], grouped(rows)), read, where(rows, rows[CHANGED]).drop_columns([CHANGED]))


def _of_buckets(batches: pa.Table, buckets: frozenset[int]) -> pa.Table:
    """Return the batches whose streams are in some buckets."""
    bucket = from_numpy(buckets_of(batches["key"]))
    return where(batches, pc.is_in(bucket, pa.array(sorted(buckets), bucket.type)))


def _summed(parts: list[pa.Table]) -> pa.Table:
    """Return the totals of open batches of all parts, by source."""
    sums = [("open_batches", "sum"), ("open_messages", "sum"), ("open_bytes", "sum"), ("next_window_end", "min")]
    both = pa.concat_tables(parts)
    return both.group_by("source").aggregate(sums).rename_columns(both.column_names).cast(both.schema)
