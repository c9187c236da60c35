"""From Arrow to the kernel's arrays: streams, types and times as numbers, rows in the order of processing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow import order
from windrow.messages import microseconds, octets

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of open batches first, then new messages; every array as `kernel.decide` wants it."""

    batches: pa.Table  # the open batches, sorted by stream and window start
    content: pa.Table  # type, event_time, received_at, sequence, payload of every row
    stream_of: Ints
    stream_source: pa.Array
    stream_key: pa.Array
    processing_time: Ints
    octets: Ints
    new_begin: Ints
    visit: Ints
    ranked: Ints
    position: Ints
    position_begin: Ints
    time_at: Ints
    place: Ints
    place_begin: Ints
    type_at: Ints
    position_of_place: Ints
    open_rows: int
    open_begin: Ints
    open_rows_begin: Ints

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return self.new_begin.size - 1


def streams(sources: pa.Array, keys: pa.Array) -> tuple[Ints, int]:
    """Number the streams (source, key) of the rows from 0, in no order that means anything."""
    source, key = sources.dictionary_encode(), keys.dictionary_encode()
    pair = _indices(source) * len(key.dictionary) + _indices(key)
    return order.dense(pair, len(source.dictionary) * len(key.dictionary))


def encode(messages: pa.Table, processing_time: Ints, version: Ints, batches: pa.Table) -> Columns:
    """Return the kernel's columns for new messages and open batches, in any order."""
    sources = _joined(batches["source"], messages["source"])
    keys = _joined(batches["key"], messages["key"])
    stream, count = streams(sources, keys)
    samples = np.zeros(count, np.int64)
    samples[stream] = np.arange(stream.size)
    of_batch, of_new = stream[: batches.num_rows], stream[batches.num_rows :]
    by_window = np.lexsort((microseconds(batches["window_start"]), of_batch))
    batches, of_batch = batches.take(pa.array(by_window)), of_batch[by_window]

    content, sizes = _content(messages, batches)
    stream_of = np.concatenate([np.repeat(of_batch, sizes), of_new])
    event_time = microseconds(content["event_time"])
    kinds = _ranks(content["type"].combine_chunks())
    open_rows = int(sizes.sum())
    visit, new_begin = _visit(messages, version, processing_time, of_new, count)
    ranked, begin = order.group(stream_of, count)
    order.sort_groups(ranked, begin, event_time, kinds)
    position, position_begin, moments = order.number(ranked, begin, event_time)
    place, place_begin, samples_of_places = _places(ranked, stream_of, kinds, event_time, count)
    return Columns(
        batches=batches,
        content=content,
        stream_of=stream_of,
        stream_source=sources.take(pa.array(samples)),
        stream_key=keys.take(pa.array(samples)),
        processing_time=np.concatenate([np.zeros(open_rows, np.int64), processing_time]),
        octets=octets(content["type"].combine_chunks(), content["payload"].combine_chunks()),
        new_begin=new_begin,
        visit=visit + open_rows,
        ranked=ranked,
        position=position,
        position_begin=position_begin,
        time_at=event_time[moments],
        place=place,
        place_begin=place_begin,
        type_at=kinds[samples_of_places],
        position_of_place=position[samples_of_places],
        open_rows=open_rows,
        open_begin=np.searchsorted(of_batch, np.arange(count + 1)).astype(np.int64),
        open_rows_begin=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def _content(messages: pa.Table, batches: pa.Table) -> tuple[pa.Table, Ints]:
    """Return the messages inside the open batches followed by the new ones, and how many each open batch holds."""
    names = ["type", "event_time", "received_at", "sequence", "payload"]
    held = batches["messages"].combine_chunks()
    sizes = pc.list_value_length(held).to_numpy().astype(np.int64)
    inside = pa.Table.from_arrays(held.flatten().flatten(), names=names)
    schema = messages.select(names).schema
    return pa.concat_tables([inside.cast(schema), messages.select(names)]).combine_chunks(), sizes


def _places(ranked: Ints, stream_of: Ints, kinds: Ints, event_time: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Number the distinct (type, event time) pairs of each stream, and give one row for each pair."""
    width = int(kinds.max(initial=0)) + 1
    list_of, lists = order.dense(stream_of * width + kinds, count * width)
    at, begin = order.group(list_of[ranked], lists)
    rows = ranked[at]
    numbers, begins, samples = order.number(rows, begin, event_time)
    first_list = np.searchsorted(stream_of[rows[begin[:-1]]], np.arange(count + 1))
    place_begin = begins[first_list]
    return numbers + begins[list_of] - place_begin[stream_of], place_begin, samples


def _visit(messages: pa.Table, version: Ints, processing_time: Ints, stream: Ints, count: int) -> tuple[Ints, Ints]:
    """List the new rows stream by stream in the order of processing, which is total but for equal rows.

    Only rows of one stream, version and processing time have to be compared any further.
    """
    rows, begin = order.group(stream, count)
    order.sort_groups(rows, begin, version, processing_time)
    run, slots = order.ties(rows, (stream, version, processing_time))
    if slots.size:
        tied = messages.take(pa.array(rows[slots]))
        sequence = tied["sequence"]
        keys = (
            run[slots],
            sequence.is_valid().to_numpy(),  # NULL comes before the least there is
            pc.fill_null(sequence, 0).to_numpy(),
            microseconds(tied["event_time"]),
            _ranks(tied["type"].combine_chunks()),
            microseconds(tied["received_at"]),
        )
        rows[slots] = rows[slots[_by_payload(np.lexsort(keys[::-1]), keys, tied["payload"].combine_chunks())]]
    return rows, begin


def _by_payload(rows: Ints, keys: tuple[Ints, ...], payload: pa.Array) -> Ints:
    """Order the rows that are equal in all keys by their payload, NULL first."""
    run, slots = order.ties(rows, keys)
    tied = payload.take(pa.array(rows[slots]))
    by = pa.table({"run": run[slots], "has payload": tied.is_valid(), "payload": tied})
    placed = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names])
    rows[slots] = rows[slots[placed.to_numpy()]]
    return rows


def _joined(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.Array:
    return pa.chunked_array([*first.chunks, *second.chunks], pa.string()).combine_chunks()


def _indices(encoded: pa.DictionaryArray) -> Ints:
    return encoded.indices.to_numpy().astype(np.int64)


def _ranks(values: pa.Array) -> Ints:
    """Number strings so that the numbers have the order of the strings, octet by octet."""
    encoded = values.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(rank.size)
    return rank[_indices(encoded)]
