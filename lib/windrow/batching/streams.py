"""Decide new messages and open batches: the batches of all streams as ledger rows, and the fate of each message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching import kernel
from windrow.batching.columns import SHARE, KernelInput, StreamRows, by_stream, columns
from windrow.batching.rules import Rules
from windrow.columnar.arrow import (
    combine_chunks,
    run_parallel,
    split_by_bytes,
    string_array,
    take_values,
    to_plain_type,
)
from windrow.columnar.compiled import Flags, Ints, Numbers
from windrow.model import tables
from windrow.model.admission import REFUSED
from windrow.model.floors import Cuts, Floors
from windrow.model.messages import microseconds, times

REASONS = string_array(["accepted", "too_old", "too_far_ahead", "duplicate"])
OPENED_BY = string_array(["message", "conflict", "size"])
STATES = string_array(["closed", "open"])
CLOSED_BY = string_array(["timeout", "flush"])

Fates = npt.NDArray[np.int8]
Several = TypeVar("Several", bound=NamedTuple)


class Batches(NamedTuple):
    """The columns of batches, without their messages."""

    messages: Ints  # how many
    first_event_time: Ints
    last_event_time: Ints
    stream: Ints
    start: Ints
    end: Ints
    open_reason: Ints
    closed_at: Ints
    changed: Flags
    flushed: Flags
    part: Ints
    byte_count: Ints
    oversize: Flags
    known_as: Ints  # which of the open batches it was, or NONE


class Clocks(NamedTuple):
    """By source: the clock after all messages, at which overdue batches close, and the cut.

    Windows before the cut need not lie on the calendar.
    """

    now: Floors
    cut: Floors


class RejectedRows(NamedTuple):
    """The refused new messages: their index among all new messages, the reason, and how far they missed the limit."""

    message: Numbers
    fate: Fates
    missed_by: Ints  # microseconds


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What was decided for some streams: their batches, the accepted rows batch by batch, and the refused messages."""

    batches: Batches
    members: Numbers
    refused: RejectedRows


@dataclass(frozen=True, slots=True)
class Decision:
    """The decisions for each of the `shares` of the streams, and the batches of all shares.

    `list_batches` turns it into ledger rows. `cuts` says where a flush cuts.
    """

    rows: StreamRows
    rules: Rules
    shares: Sequence[StreamResult]
    batches: Batches
    refused: RejectedRows
    cuts: Cuts


def decide(
    messages: pa.Table,
    processing_time: Ints,
    version: Ints,
    batches: pa.Table,
    rules: Rules,
    clocks: Clocks,
    flush: bool,
    last: Floors | None = None,
) -> Decision:
    """Apply the batching rules to `messages` (conforming and valid) and the open `batches`.

    `processing_time` and `version` are per message. With `flush`, batches that are open after all messages are cut and
    closed at the clock of their source. A caller that has only some streams of a source passes `last`, the last event
    time in all batches of each source that are still open.
    """
    rows = by_stream(messages, processing_time, version, batches)
    sweep, cut = (of_source.of(rows.source) for of_source in clocks)

    def share(first: int, last: int) -> StreamResult:
        streams = slice(first, last)
        return decide_streams(rows, first, columns(rows, first, last), rules, sweep[streams], flush, cut[streams])

    shares = run_parallel([partial(share, *streams) for streams in rows.shares(SHARE)], rows.count)
    result = concat_columns(share.batches for share in shares)
    flushed = _cut_windows(result, rows.source, rules, last) if flush else Cuts.none()
    return Decision(rows, rules, shares, result, concat_columns(share.refused for share in shares), flushed)


def rejected_messages(decision: Decision, row: Ints, processing_time: Ints) -> pa.Table:
    """Return the messages that the rules refused (`admission.REFUSED`); `row` is the row of each message."""
    message, fate, missed_by = decision.refused
    reason, detail = REASONS.take(pa.array(fate)), pa.nulls(message.size, pa.string())
    columns = [pa.array(row[message]), reason, detail, pa.array(missed_by), times(processing_time[message])]
    return pa.Table.from_arrays(columns, schema=REFUSED)


def concat_columns(parts: Iterable[Several]) -> Several:
    """Concatenate the columns of several shares."""
    each = list(parts)
    return each[0]._make(map(np.concatenate, zip(*each, strict=True)))


def decide_streams(
    rows: StreamRows,
    first: int,
    columns: KernelInput,
    rules: Rules,
    sweep: Ints,
    flush: bool = False,
    cut: Ints | None = None,
) -> StreamResult:
    """Decide the streams of `columns`, the first of which is `first`; `sweep` has their clocks after all messages.

    `columns` does not depend on the rules, so different rules can use the same one.
    """
    slots, positions = columns.row_of.size, columns.numbers.time_at.size
    opened = rows.open_start[first] + columns.open_start
    batches = rows.batches[opened[0] : opened[-1]]
    windows = kernel.Windows.allocate(batches.num_rows + positions, positions)
    fate = np.full(slots, kernel.ACCEPTED, np.int8)
    weighed = 0 < rules.max_batch_bytes < columns.byte_count.sum()
    windows.start[: batches.num_rows] = microseconds(batches["window_start"])
    windows.end[: batches.num_rows] = microseconds(batches["window_end"])
    windows.open_reason[: batches.num_rows] = pc.index_in(combine_chunks(batches["open_reason"]), OPENED_BY).to_numpy()
    limits = kernel.Limits(
        rules.window,
        rules.max_delay,
        rules.max_lead,
        rules.max_batch_bytes,
        start_at_arrival=rules.window_anchor == "arrival",
        aligned=rules.window_anchor == "aligned",
        window_offset=rules.window_offset,
        keep_repeats=rules.on_repeat == "keep",
        split_at_midpoint=rules.split_at == "midpoint",
    )
    cut = np.full(sweep.size, kernel.NEVER) if cut is None else cut
    sets = kernel.StreamIndex.empty(columns.numbers, weighed)
    sizes = rows.open_sizes[opened[0] : opened[-1]]
    count = kernel.decide(columns, sizes, limits, sweep, cut, sets, windows, fate)
    stream = np.searchsorted(columns.numbers.position_start, windows.first[:count], side="right") - 1
    flushed = (windows.closed_at[:count] == kernel.NEVER) & flush
    windows.closed_at[:count][flushed] = sweep[stream[flushed]]
    windows.changed[:count][flushed] = True
    emitted = kernel.EmittedBatches.allocate(slots)
    count = kernel.emit(columns, windows, fate, rules.max_batch_bytes, emitted)
    window, start, event_time = emitted.window[:count], emitted.start[: count + 1], rows.values.event_time
    result = Batches(
        messages=np.diff(start),
        first_event_time=event_time[emitted.members[start[:-1]]],
        last_event_time=event_time[emitted.members[start[1:] - 1]],
        stream=first + stream[window],
        start=windows.start[window],
        end=windows.end[window],
        open_reason=windows.open_reason[window],
        closed_at=windows.closed_at[window],
        changed=windows.changed[window],
        flushed=flushed[window],
        part=emitted.part[:count].copy(),
        byte_count=emitted.byte_count[:count].copy(),
        oversize=emitted.oversize[:count].copy(),
        known_as=np.where(window < batches.num_rows, opened[0] + window, kernel.NONE),
    )
    return StreamResult(result, emitted.members[: start[-1]], _collect_rejected(rows, columns, rules, fate))


def _collect_rejected(rows: StreamRows, columns: KernelInput, rules: Rules, fate: Fates) -> RejectedRows:
    slots = np.flatnonzero(fate != kernel.ACCEPTED)
    why, ahead = fate[slots], columns.event_time[slots] - columns.processing_time[slots]
    missed_by = np.select(
        [why == kernel.TOO_OLD, why == kernel.TOO_FAR_AHEAD], [-ahead - rules.max_delay, ahead - rules.max_lead], 0
    )
    return RejectedRows(columns.row_of[slots] - rows.open_rows, why, missed_by)


def _cut_windows(batches: Batches, source_of_stream: pa.Array, rules: Rules, last: Floors | None) -> Cuts:
    """Cut the windows of flushed batches after the last message of their source."""
    encoded = source_of_stream.dictionary_encode()
    sources, flushed = encoded.dictionary, np.flatnonzero(batches.flushed)
    source = encoded.indices.to_numpy()[batches.stream[flushed]]
    cut = np.full(len(sources), kernel.NEVER)
    np.maximum.at(cut, source, batches.last_event_time[flushed] + 1)
    if last is not None:
        cut = np.where(cut == kernel.NEVER, cut, last.of(sources) + 1)
    batches.end[flushed] = np.minimum(batches.end[flushed], cut[source])
    had_open = np.flatnonzero(cut != kernel.NEVER)
    return Cuts.flushed(Floors(sources.take(pa.array(had_open)), cut[had_open]), rules.max_delay)


def list_batches(decision: Decision, microbatch: int | None = None) -> pa.Table:
    """List all batches with the ledger's columns; `microbatch` is the number for newly opened and closed batches."""
    return _batches(decision, _messages(decision.rows, decision.shares), microbatch)


def changes(decision: Decision, microbatch: int) -> tuple[pa.Table, Flags, Flags]:
    """List the batches that changed, with the ledger's columns; those that only grew list only their new messages.

    Also returns which of them existed before, and which list all their messages.
    """
    shares = [_keep_changed(share) for share in decision.shares]
    grew = [_find_grown(share, decision.rows) for share in shares]
    batches = _select_changed(decision.batches)
    messages = _messages(decision.rows, [_new(*each, decision.rows) for each in zip(shares, grew, strict=True)])
    known = (batches.known_as != kernel.NONE) & (batches.part == 0)
    changed = replace(decision, shares=shares, batches=batches)
    return _batches(changed, messages, microbatch), known, ~np.concatenate(grew)


def _keep_changed(share: StreamResult) -> StreamResult:
    """Return the batches that changed."""
    members = share.members[np.repeat(share.batches.changed, share.batches.messages)]
    return replace(share, batches=_select_changed(share.batches), members=members)


def _select_changed(batches: Batches) -> Batches:
    return Batches._make(column[batches.changed] for column in batches)


def _find_grown(share: StreamResult, rows: StreamRows) -> Flags:
    """Tell which batches are still open in the same window, and so keep all the messages they had."""
    batches = share.batches
    start, end = (np.append(microseconds(rows.batches[name]), 0) for name in ("window_start", "window_end"))
    same = (start[batches.known_as] == batches.start) & (end[batches.known_as] == batches.end)
    is_open = (batches.known_as != kernel.NONE) & (batches.closed_at == kernel.NEVER)
    # guard: grows-in-its-window
    grew: Flags = is_open & same
    return grew


def _new(share: StreamResult, grew: Flags, rows: StreamRows) -> StreamResult:
    """Return batches, without the earlier messages of those that only grew."""
    is_new = (share.members >= rows.open_rows) | ~np.repeat(grew, share.batches.messages)
    of = np.repeat(np.arange(grew.size), share.batches.messages)
    sizes = np.bincount(of[is_new], minlength=grew.size)
    return replace(share, batches=share.batches._replace(messages=sizes), members=share.members[is_new])


def _messages(rows: StreamRows, shares: Sequence[StreamResult]) -> pa.ChunkedArray:
    """Return the messages of each batch: an array for each share, or several if one cannot hold all the bytes."""
    content, parts = rows.content, list(_parts(shares))
    chosen = [pa.array(members) for members, _ in parts]
    calls = [partial(take_values, column, members) for members in chosen for column in content.columns]
    columns, names = iter(run_parallel(calls, rows.count)), content.column_names
    return pa.chunked_array(
        [
            pa.ListArray.from_arrays(
                pa.array(start), pa.StructArray.from_arrays([combine_chunks(next(columns)) for _ in names], names)
            )
            for _, start in parts
        ]
    )


def _parts(shares: Sequence[StreamResult]) -> Iterator[tuple[Numbers, Ints]]:
    """Yield rows and where each batch begins in them, as many batches at a time as fit one array."""
    for share in shares:
        start = np.append(0, np.cumsum(share.batches.messages))
        for first, last in split_by_bytes(share.batches.byte_count):
            yield share.members[start[first] : start[last]], start[first : last + 1] - start[first]


def _batches(decision: Decision, messages: pa.ChunkedArray, microbatch: int | None) -> pa.Table:
    """Return the batches as ledger rows."""
    rows, batches = decision.rows, decision.batches
    source, key = (of_stream.take(pa.array(batches.stream)) for of_stream in (rows.source, rows.key))
    still_open, known = batches.closed_at == kernel.NEVER, batches.known_as != kernel.NONE
    recorded = rows.batches["opened_microbatch"].take(pa.array(batches.known_as, mask=~known))
    values: dict[str, object] = {
        "id": tables.identifier(tables.BATCH_ID, source, key, pa.array(batches.start), pa.array(batches.part)),
        "source": source,
        "key": key,
        "part": batches.part,
        "window_start": times(batches.start),
        "window_end": times(batches.end),
        "timeout_at": times(batches.end + decision.rules.max_delay),
        "state": _look_up_names(STATES, still_open),
        "open_reason": _look_up_names(OPENED_BY, batches.open_reason),
        "closed_at": times(batches.closed_at, ~still_open),
        "close_reason": _look_up_names(CLOSED_BY, batches.flushed, ~still_open),
        "message_count": batches.messages,
        "bytes": batches.byte_count,
        "oversize": batches.oversize,
        "first_event_time": times(batches.first_event_time),
        "last_event_time": times(batches.last_event_time),
        "messages": messages,
        "opened_microbatch": pc.if_else(pa.array(known), recorded, microbatch),
        "closed_microbatch": pa.array(
            np.full(still_open.size, microbatch or 0), mask=still_open | (microbatch is None)
        ),
    }
    schema = pa.schema(tables.batch_fields(to_plain_type(rows.content.schema.field("payload").type)))
    return tables.rows(schema, values, still_open.size)


def _look_up_names(names: pa.Array, which: npt.NDArray[np.generic], valid: Flags | None = None) -> pa.Array:
    """Return the name of each number; NULL where not `valid`."""
    return names.take(pa.array(which.astype(np.int8), mask=None if valid is None else ~valid))
