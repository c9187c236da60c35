"""Convert Arrow tables to the kernel's arrays: streams, types and times as numbers, rows in the order of processing.

Work on all rows is done once and yields `StreamRows`, stream by stream. The rest is done in *shares*, runs of streams
with about a hundred thousand rows. Streams are independent, so several threads can process shares, and a share stays
in the processor's caches from one step to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.numbering import SlotNumbering, number
from windrow.columnar import order
from windrow.columnar.arrow import byte_count, combine_chunks, concat_dictionaries, conform, filter_rows, read_only
from windrow.columnar.compiled import Flags, Ints, Numbers, compiled_in_place
from windrow.model.messages import microseconds, with_dictionaries
from windrow.model.payload import comparable

CONTENT = ["type", "event_time", "received_at", "sequence", "payload"]
SHARE = 100_000  # rows


class MessageValues(NamedTuple):
    """Columns of the messages, per row, and of their types, per entry of the dictionary."""

    event_time: Ints
    processing_time: Ints  # 0 for those of open batches
    type: Numbers
    payload_bytes: Numbers
    rank: Numbers  # the rank of each type in byte order
    type_bytes: Numbers


@dataclass(frozen=True, slots=True)
class StreamRows:
    """All messages as rows, those of open batches first, then the new ones, and the rows of each stream."""

    batches: pa.Table  # the open batches, sorted by stream and window start
    content: pa.Table  # per row: type, event_time, received_at, sequence, payload
    source: pa.Array  # per stream
    key: pa.Array
    open_start: Ints  # per stream (S + 1): its open batches
    open_sizes: Ints  # per open batch: its messages
    open_row_start: Ints  # per stream (S + 1): the rows of its open batches
    new: Numbers  # the rows of the new messages, stream by stream
    new_start: Ints  # per stream (S + 1): its new messages
    version: Ints  # per row; 0 for those of open batches
    in_order: bool  # each new message has a version of its own, greater than the one before
    values: MessageValues

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.content.num_rows

    @property
    def open_rows(self) -> int:
        """How many rows are those of open batches."""
        return int(self.open_row_start[-1])

    def shares(self, size: int) -> list[tuple[int, int]]:
        """Cut the streams into runs of about `size` rows; return the first of each and the end of the last."""
        start = self.new_start + self.open_row_start
        count = max(1, round(start[-1] / size))
        cuts = np.searchsorted(start, start[-1] * np.arange(1, count) // count, side="right") - 1
        first = np.unique([0, *cuts]).tolist()
        return list(zip(first, [*first[1:], start.size - 1], strict=True))


class KernelInput(NamedTuple):
    """The rows of some streams as *slots*, for `kernel.decide`: stream by stream, so the kernel reads memory in order.

    The slots of a stream are the messages of its open batches, by window, then its new messages in the order of
    processing. All numbers here count from the first of these streams.
    """

    row_of: Numbers  # per slot, like the next three
    event_time: Ints
    processing_time: Ints
    byte_count: Ints
    ranked: Numbers  # the slots of each stream, ordered by event time and type
    start: Ints  # per stream (S + 1): its slots
    new_start: Ints  # per stream: the first slot of a new message
    open_start: Ints  # per stream (S + 1): its open batches
    numbers: SlotNumbering


def streams(sources: pa.DictionaryArray, keys: pa.DictionaryArray) -> tuple[Numbers, int]:
    """Number the streams (source, key) of the rows from 0, in any order."""
    return order.pairs(
        sources.indices.to_numpy(), keys.indices.to_numpy(), len(sources.dictionary), len(keys.dictionary)
    )


def by_stream(messages: pa.Table, processing_time: Ints, version: Ints, batches: pa.Table) -> StreamRows:
    """Return the rows of new messages and open batches, which may be in any order."""
    messages = with_dictionaries(messages)
    sources, keys = (concat_dictionaries(batches[name], messages[name]) for name in ("source", "key"))
    stream, count = streams(sources, keys)
    of_batch, of_new = stream[: batches.num_rows], stream[batches.num_rows :]
    by_window = np.lexsort((microseconds(batches["window_start"]), of_batch))
    batches = batches.take(pa.array(by_window))
    content, sizes = _content(messages, batches)
    open_rows = content.num_rows - messages.num_rows
    open_start = np.searchsorted(of_batch[by_window], np.arange(count + 1))
    new, new_start = order.group_by_id(of_new, count)
    samples = _samples(by_window, open_start, new, new_start)
    new += np.int32(open_rows)
    return StreamRows(
        batches=batches,
        content=content,
        source=sources.take(samples).dictionary_decode(),
        key=keys.take(samples).dictionary_decode(),
        open_start=open_start,
        open_sizes=sizes,
        open_row_start=np.append(0, np.cumsum(sizes))[open_start],
        new=new,
        new_start=new_start,
        version=_after(open_rows, version),
        in_order=bool((version[1:] > version[:-1]).all()),
        values=_values(content, _after(open_rows, processing_time)),
    )


def columns(rows: StreamRows, first: int, last: int) -> KernelInput:
    """Return the kernel's input for the streams from `first` to before `last`."""
    row_of, start, new_start = _slots(rows, first, last)
    event_time, processing_time, byte_count = np.empty((3, row_of.size), np.int64)
    kind = np.empty(row_of.size, np.int32)
    _look_up(rows.values, row_of, event_time, processing_time, kind, byte_count)
    ranked = np.arange(row_of.size, dtype=np.int32)
    order.sort_groups(ranked, start, event_time, kind)
    open_start = rows.open_start[first : last + 1] - rows.open_start[first]
    numbers = number(ranked, start, event_time, kind, rows.values.rank.size)
    return KernelInput(row_of, event_time, processing_time, byte_count, ranked, start, new_start, open_start, numbers)


def _samples(by_window: Ints, open_start: Ints, new: Numbers, new_start: Ints) -> pa.Array:
    """Return one row of each stream, counting batches before messages: its first batch, or else its first message."""
    samples = np.empty(open_start.size - 1, np.int64)
    has_open = open_start[:-1] < open_start[1:]
    samples[has_open] = by_window[open_start[:-1][has_open]]
    samples[~has_open] = new[new_start[:-1][~has_open]] + by_window.size
    return pa.array(samples)


@compiled_in_place
def _look_up(values, row_of, event_time, processing_time, kind, byte_count):  # type: ignore[no-untyped-def]
    """Fill in what the kernel needs to know about each slot; `kind` numbers the types in their order."""
    for slot in range(row_of.size):
        row = np.uint64(row_of[slot])
        event_time[slot] = values.event_time[row]
        processing_time[slot] = values.processing_time[row]
        type_number = np.uint64(values.type[row])
        kind[slot] = values.rank[type_number]
        byte_count[slot] = np.int64(values.type_bytes[type_number]) + values.payload_bytes[row]


def _content(messages: pa.Table, batches: pa.Table) -> tuple[pa.Table, Ints]:
    """Return the messages inside the open batches followed by the new ones, and how many each open batch holds.

    A batch that came without its messages gets one substitute, at its first event time.
    """
    new = messages.select(CONTENT)
    if not batches.num_rows:
        return new, np.zeros(0, np.int64)
    contents = combine_chunks(batches["messages"])
    inside = pa.Table.from_arrays(contents.flatten().flatten(), names=CONTENT)
    sizes = pc.fill_null(pc.list_value_length(contents), 1).to_numpy().astype(np.int64)
    if contents.null_count:
        inside = _with_substitutes(inside, batches, np.repeat(contents.is_null().to_numpy(zero_copy_only=False), sizes))
    inside = inside.set_column(0, "type", concat_dictionaries(inside["type"])).cast(new.schema)
    return pa.concat_tables([inside, new]).unify_dictionaries().combine_chunks(), sizes


def _with_substitutes(inside: pa.Table, batches: pa.Table, is_substitute: Flags) -> pa.Table:
    """Return the messages `inside` batches in their order, with a substitute for each batch that came without."""
    first = filter_rows(batches, pc.is_null(batches["messages"]))["first_event_time"]
    columns: dict[str, object] = {"type": pa.repeat("", len(first)), "event_time": first}
    substitutes = conform(pa.table(columns), inside.schema)
    place = np.empty(is_substitute.size, np.int64)
    place[~is_substitute] = np.arange(inside.num_rows)
    place[is_substitute] = inside.num_rows + np.arange(substitutes.num_rows)
    return pa.concat_tables([inside, substitutes]).take(pa.array(place))


def _after(open_rows: int, values: Ints) -> Ints:
    """Return a column of the new messages as a column of all rows, 0 in open batches."""
    return read_only(np.append(np.zeros(open_rows, np.int64), values) if open_rows else values)


def _slots(rows: StreamRows, first: int, last: int) -> tuple[Numbers, Ints, Ints]:
    """Return the row of each slot of some streams, and where the slots and the new messages of each stream begin."""
    visit, visit_start = _visit(rows, first, last)
    open_row_start = rows.open_row_start[first : last + 1]
    slots = np.arange(open_row_start[0], open_row_start[-1])
    rows_before = open_row_start - open_row_start[0]  # those of open batches in earlier streams
    if not slots.size:
        return visit, visit_start, visit_start[:-1]
    row_of = np.empty(slots.size + visit.size, np.int32)
    row_of[np.arange(slots.size) + np.repeat(visit_start[:-1], np.diff(rows_before))] = slots
    row_of[np.arange(visit.size) + np.repeat(rows_before[1:], np.diff(visit_start))] = visit
    return row_of, rows_before + visit_start, rows_before[1:] + visit_start[:-1]


def _visit(rows: StreamRows, first: int, last: int) -> tuple[Numbers, Ints]:
    """List the new rows of some streams in the order of processing, a total order except for equal rows.

    Only rows with the same stream, version and processing time need further comparison.
    """
    start = rows.new_start[first : last + 1]
    visit = rows.new[start[0] : start[-1]].copy()
    start = start - start[0]
    if rows.in_order:
        return visit, start
    order.sort_groups(visit, start, rows.version, rows.values.processing_time)
    slots = order.list_tied_slots(visit, start, rows.version, rows.values.processing_time)
    if slots.size:
        stream = np.searchsorted(start, slots, side="right")
        at = visit[slots]
        run, _ = order.number_ties(np.arange(slots.size), (stream, rows.version[at], rows.values.processing_time[at]))
        tied = rows.content.take(pa.array(at))
        sequence = tied["sequence"]
        keys = (
            run,
            sequence.is_valid().to_numpy(),  # NULL comes before the least value
            pc.fill_null(sequence, 0).to_numpy(),
            rows.values.event_time[at],
            rows.values.rank[rows.values.type[at]],
            microseconds(tied["received_at"]),
        )
        visit[slots] = at[_by_payload(np.lexsort(keys[::-1]), keys, tied["payload"].combine_chunks())]
    return visit, start


def _by_payload(rows: Ints, keys: tuple[npt.NDArray[np.generic], ...], payload: pa.Array) -> Ints:
    """Order the rows that are equal in all keys by their payload, NULL first."""
    run, slots = order.number_ties(rows, keys)
    tied = payload.take(pa.array(rows[slots]))
    by = pa.table({"run": run[slots], "has payload": tied.is_valid(), "payload": comparable(tied)})
    placed = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names])
    rows[slots] = rows[slots[placed.to_numpy()]]
    return rows


def _values(content: pa.Table, processing_time: Ints) -> MessageValues:
    types = combine_chunks(content["type"])
    rank = np.empty(len(types.dictionary), np.int32)
    rank[pc.sort_indices(types.dictionary).to_numpy()] = np.arange(rank.size)
    return MessageValues(
        event_time=microseconds(content["event_time"]),
        processing_time=processing_time,
        type=types.indices.to_numpy(),
        payload_bytes=read_only(byte_count(combine_chunks(content["payload"])).astype(np.int32, copy=False)),
        rank=rank,
        type_bytes=byte_count(types.dictionary).astype(np.int32, copy=False),
    )
