"""Run the step of a microbatch on the driver."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.step import Step
from windrow.columnar.arrow import text
from windrow.ledger.live import Live, no_messages
from windrow.ledger.result import Counts, MicrobatchResult
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter, OpenBatches, no_streams, summarise
from windrow.source.slices import Slice


def needed(step: Step, arrived: Slice | None) -> BatchFilter | None:
    """Return which open batches a step needs for the messages that arrived; None for all, as in a flush."""
    return None if step.flush else BatchFilter(no_streams if arrived is None else arrived.streams, step.passed)


def process_on_driver(step: Step, arrived: Slice | None, live: Live, wanted: BatchFilter | None) -> MicrobatchResult:
    """Run a step on the driver over the messages that arrived and the open batches that match (None: all)."""
    messages = no_messages(live.schema) if arrived is None else arrived.rows.table()
    batches, totals = live.wanted(wanted), live.totals
    rows, cuts = step(messages, batches)
    extra = [] if arrived is None else [one.table() for one in arrived.extra_rows(step.microbatch, live.schema)]
    read, left = OpenBatches.of(summarise(batches)), OpenBatches.of(summarise(_left(batches, rows)))
    opened = totals.after(read, left, Floors.empty() if wanted is None else wanted.passed)
    rows = pa.concat_tables([rows, *extra])
    return MicrobatchResult(rows, Counts.of(rows), cuts, opened)


def _left(live: pa.Table, rows: pa.Table) -> pa.Table:
    """Return which of the batches that were read are open afterwards: the unchanged and the written ones."""
    columns = ["id", "source", "window_end", "message_count", "bytes"]
    stays = live.select(columns).filter(pc.invert(pc.is_in(live["id"], rows["id"].combine_chunks())))
    written = rows.select(columns).filter(pc.equal(rows["state"], text(tables.OPEN)))
    return pa.concat_tables([stays, written])
