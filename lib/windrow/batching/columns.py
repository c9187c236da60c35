"""From Arrow to the kernel's arrays: streams, types and times as numbers, rows in the order of processing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow import order
from windrow.arrow import encoded, whole
from windrow.batching.numbering import number
from windrow.messages import microseconds, octets, with_dictionaries

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]  # of rows and what is counted among them: half the memory to go through


CONTENT = ["type", "event_time", "received_at", "sequence", "payload"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows (those of open batches first, then new messages) and their *slots*, as `kernel.decide` wants them.

    The slots list the rows stream by stream: those of its open batches by window, then its new messages in the order
    of processing. So what the kernel takes one after the other lies one behind the other.
    """

    batches: pa.Table  # the open batches, sorted by stream and window start
    content: pa.Table  # per row: type, event_time, received_at, sequence, payload
    stream_source: pa.Array
    stream_key: pa.Array
    row_of: Numbers  # this and what follows per slot
    event_time: Ints
    processing_time: Ints
    octets: Ints
    ranked: Numbers  # the slots of each stream by event time and type
    position: Numbers
    list_of: Numbers
    place: Numbers
    begin: Ints  # per stream (S + 1): its slots
    new_begin: Ints  # per stream: the first slot of a new message
    position_begin: Ints  # per stream (S + 1): its positions
    time_at: Ints  # per position
    place_begin: Ints  # per list, and at the end: its places
    position_at: Numbers  # per place
    open_rows: int
    open_begin: Ints  # per stream (S + 1): its open batches
    open_sizes: Ints  # per open batch: its messages

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return self.begin.size - 1


def streams(sources: pa.DictionaryArray, keys: pa.DictionaryArray) -> tuple[Numbers, int]:
    """Number the streams (source, key) of the rows from 0, in no order that means anything."""
    return order.pairs(
        sources.indices.to_numpy(), keys.indices.to_numpy(), len(sources.dictionary), len(keys.dictionary)
    )


def encode(messages: pa.Table, processing_time: Ints, version: Ints, batches: pa.Table) -> Columns:
    """Return the kernel's columns for new messages and open batches, in any order."""
    messages = with_dictionaries(messages)
    sources, keys = (encoded(batches[name], messages[name]) for name in ("source", "key"))
    stream, count = streams(sources, keys)
    samples = np.zeros(count, np.int64)
    samples[stream] = np.arange(stream.size)
    of_batch, of_new = stream[: batches.num_rows], stream[batches.num_rows :]
    by_window = np.lexsort((microseconds(batches["window_start"]), of_batch))
    batches = batches.take(pa.array(by_window))
    open_begin = np.searchsorted(of_batch[by_window], np.arange(count + 1))

    content, sizes = _content(messages, batches)
    row_of, begin, new_begin = _slots(*_visit(messages, version, processing_time, of_new, count), open_begin, sizes)
    types = whole(content["type"])
    event_time = order.gathered(microseconds(content["event_time"]), row_of)
    kind = order.gathered(_ranks(types), row_of)
    ranked = np.arange(row_of.size, dtype=np.int32)
    order.sort_groups(ranked, begin, event_time, kind)
    numbered = number(ranked, begin, event_time, kind, len(types.dictionary))
    not_yet = np.zeros(content.num_rows - messages.num_rows, np.int64)
    return Columns(
        batches=batches,
        content=content,
        stream_source=sources.take(pa.array(samples)).dictionary_decode(),
        stream_key=keys.take(pa.array(samples)).dictionary_decode(),
        row_of=row_of,
        event_time=event_time,
        processing_time=order.gathered(np.append(not_yet, processing_time), row_of),
        octets=order.gathered(octets(types, whole(content["payload"])), row_of),
        ranked=ranked,
        **numbered._asdict(),
        begin=begin,
        new_begin=new_begin,
        open_rows=not_yet.size,
        open_begin=open_begin,
        open_sizes=sizes,
    )


def _content(messages: pa.Table, batches: pa.Table) -> tuple[pa.Table, Ints]:
    """Return the messages inside the open batches followed by the new ones, and how many each open batch holds."""
    new = messages.select(CONTENT)
    if not batches.num_rows:
        return new, np.zeros(0, np.int64)
    held = whole(batches["messages"])
    inside = pa.Table.from_arrays(held.flatten().flatten(), names=CONTENT)
    inside = inside.set_column(0, "type", encoded(inside["type"])).cast(new.schema)
    content = pa.concat_tables([inside, new]).unify_dictionaries().combine_chunks()
    return content, pc.list_value_length(held).to_numpy().astype(np.int64)


def _slots(visit: Numbers, visit_begin: Ints, open_begin: Ints, sizes: Ints) -> tuple[Numbers, Ints, Ints]:
    """Return the row of each slot, where the slots of each stream begin, and where those of its new messages do.

    `visit` lists the new messages, cut by stream by `visit_begin`, and `open_begin` cuts the open batches, whose
    messages are the first rows.
    """
    rows_before = np.append(0, np.cumsum(sizes))[open_begin]  # rows of open batches in earlier streams
    if not rows_before[-1]:
        return visit, visit_begin, visit_begin[:-1]
    row_of = np.empty(rows_before[-1] + visit.size, np.int32)
    held = np.arange(rows_before[-1])
    row_of[held + np.repeat(visit_begin[:-1], np.diff(rows_before))] = held
    new = np.arange(visit.size)
    row_of[new + np.repeat(rows_before[1:], np.diff(visit_begin))] = visit + rows_before[-1]
    return row_of, rows_before + visit_begin, rows_before[1:] + visit_begin[:-1]


def _visit(
    messages: pa.Table, version: Ints, processing_time: Ints, stream: Numbers, count: int
) -> tuple[Numbers, Ints]:
    """List the new rows stream by stream in the order of processing, which is total but for equal rows.

    Only rows of one stream, version and processing time have to be compared any further.
    """
    rows, begin = order.group(stream, count)
    if order.sort_groups(rows, begin, version, processing_time):
        slots = order.tied(rows, begin, version, processing_time)
        run, _ = order.ties(rows[slots], (stream, version, processing_time))
        tied = messages.take(pa.array(rows[slots]))
        sequence = tied["sequence"]
        keys = (
            run,
            sequence.is_valid().to_numpy(),  # NULL comes before the least there is
            pc.fill_null(sequence, 0).to_numpy(),
            microseconds(tied["event_time"]),
            _ranks(whole(tied["type"])),
            microseconds(tied["received_at"]),
        )
        rows[slots] = rows[slots[_by_payload(np.lexsort(keys[::-1]), keys, tied["payload"].combine_chunks())]]
    return rows, begin


def _by_payload(rows: Ints, keys: tuple[npt.NDArray[np.generic], ...], payload: pa.Array) -> Ints:
    """Order the rows that are equal in all keys by their payload, NULL first."""
    run, slots = order.ties(rows, keys)
    tied = payload.take(pa.array(rows[slots]))
    by = pa.table({"run": run[slots], "has payload": tied.is_valid(), "payload": tied})
    placed = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names])
    rows[slots] = rows[slots[placed.to_numpy()]]
    return rows


def _ranks(values: pa.DictionaryArray) -> Numbers:
    """Number strings so that the numbers have the order of the strings, octet by octet."""
    rank = np.empty(len(values.dictionary), np.int32)
    rank[pc.sort_indices(values.dictionary).to_numpy()] = np.arange(rank.size)
    return order.gathered(rank, values.indices.to_numpy())
