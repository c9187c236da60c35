"""Run the step of a microbatch where its rows are. Only this module chooses between driver and executors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.step import Step
from windrow.columnar.arrow import string_scalar
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live
from windrow.ledger.live import no_messages as no_rows
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.ledger.strategy import fits_driver, keeps_headers, reads_all
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter, OpenBatchTotals, no_messages, total_batches
from windrow.rows.spilled import SpilledRows
from windrow.runtime.parts import process_in_parts
from windrow.source.slices import Slice


def process(step: Step, arrived: Slice | None, live: Live, ledger: Ledger) -> MicrobatchResult:
    """Run a step over the messages that arrived (None: a tick) and the open batches that it needs.

    Without Spark the driver runs it; with Spark, `ledger/strategy.py` says whether the driver or executors.
    """
    times = no_messages if arrived is None else arrived.times
    batch_filter = None if step.flush else BatchFilter(times, live.totals.passed_window_ends(step.closed_through))
    if arrived is not None and isinstance(arrived.rows, SpilledRows):
        return process_in_parts(step, arrived.rows, arrived.extra_rows(step.microbatch, live.schema), live, ledger)
    if ledger.engine.session_at_work is None:
        return process_on_driver(step, arrived, live, batch_filter)
    from windrow.ledger.open_batches import SparkOpen
    from windrow.runtime.executors import process_on_executors

    here = arrived is None or arrived.processed_on == "driver"
    most, cached = ledger.settings.max_driver_messages, ledger.settings.max_cached_bytes
    messages, totals, opened = 0 if arrived is None else arrived.rows.count, live.totals, live.open
    few = None if reads_all(totals, messages, cached) else batch_filter
    counted_by = few if isinstance(opened, SparkOpen) else batch_filter
    fits = fits_driver(messages, totals.total[1], most)
    if here and counted_by is not None and isinstance(opened, SparkOpen) and keeps_headers(totals, cached):
        opened.read_headers()
    if here and counted_by is not None and not fits:
        fits = fits_driver(messages, opened.needed_messages(counted_by), most)
    if here and fits:
        return process_on_driver(step, arrived, live, counted_by)
    return process_on_executors(step, arrived, live, few, ledger)


def process_on_driver(
    step: Step, arrived: Slice | None, live: Live, batch_filter: BatchFilter | None
) -> MicrobatchResult:
    """Run a step on the driver over the messages that arrived and the open batches that match (None: all)."""
    messages = no_rows(live.schema) if arrived is None else arrived.rows.table()
    batches, totals = live.batches(batch_filter), live.totals
    rows, cuts = step(messages, batches)
    extra = [] if arrived is None else [part.table() for part in arrived.extra_rows(step.microbatch, live.schema)]
    read, left = (
        OpenBatchTotals.of(total_batches(batches)),
        OpenBatchTotals.of(total_batches(_select_open(batches, rows))),
    )
    opened = totals.after(read, left, Floors.empty() if batch_filter is None else batch_filter.ends_before)
    rows = pa.concat_tables([rows, *extra])
    return MicrobatchResult(rows, MicrobatchCounts.of(rows), opened, cuts)


def _select_open(live: pa.Table, rows: pa.Table) -> pa.Table:
    """Return which of the batches that were read are open afterwards: the unchanged and the written ones."""
    columns = ["id", "source", "window_end", "message_count", "bytes"]
    stays = live.select(columns).filter(pc.invert(pc.is_in(live["id"], rows["id"].combine_chunks())))
    written = rows.select(columns).filter(pc.equal(rows["state"], string_scalar(tables.OPEN)))
    return pa.concat_tables([stays, written])
