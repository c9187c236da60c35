"""Rejected messages: the reason for each, and an id that is the same in every replay."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar import order
from windrow.columnar.arrow import combine_chunks, take_rows, to_numpy
from windrow.columnar.compiled import Ints, Numbers
from windrow.model import clock, tables
from windrow.model.messages import COLUMNS, INVALID_VALUE
from windrow.model.payload import comparable


def rejection_rows(messages: pa.Table, version: Ints, refused: list[pa.Table], microbatch: int | None) -> pa.Table:
    """Return the rows of `rejected_messages`, in the order of `messages`; `refused` are tables of `admission.REFUSED`.

    `messages` must contain all messages of these streams and versions, because the id of a rejection has its place
    among them.
    """
    rows = pa.concat_tables(refused).sort_by("row")
    row = to_numpy(rows["row"])
    content = take_rows(messages.select(list(COLUMNS)), row)
    stamp, processing_time = (times.cast(pa.int64()) for times in (content["received_at"], rows["processing_time"]))
    values: dict[str, object] = {name: content[name] for name in content.column_names}
    values |= {name: rows[name] for name in ("reason", "detail", "missed_by_us", "processing_time")}
    values |= {
        "id": _ids(content, version[row], _ordinals(messages, version, row)),
        "floor_raise_us": pc.subtract(processing_time, stamp),
        "microbatch": microbatch,
    }
    schema = pa.schema(tables.rejected_fields(content.schema.field("payload").type))
    return tables.rows(schema, values, row.size)


def _ids(content: pa.Table, version: Ints, ordinal: Ints) -> pa.Array:
    """Identify each rejection by version, stream and its place among the stream's messages of that version."""
    source, key = combine_chunks(content["source"]), combine_chunks(content["key"])
    return tables.identifier("rejected", pa.array(version), source, key, pa.array(ordinal))


def _ordinals(messages: pa.Table, version: Ints, row: Ints) -> Ints:
    """Return, for each of some rows, how many messages of its stream and version come before it.

    The order is (received_at, sequence, event_time, type, invalid value, payload), NULL first. Nearly all differ in
    `received_at`. Only ties that contain a requested row are compared in full.
    """
    if not row.size:
        return row
    rows = order.positions_in(version, version[row])
    among = messages.take(pa.array(rows)) if rows.size < version.size else messages
    is_asked = np.zeros(version.size, np.bool_)
    is_asked[row] = True
    group, count = _groups(among, version[rows])
    stamp = pc.fill_null(among["received_at"].cast(pa.int64()), clock.UNKNOWN).to_numpy()
    at, start = order.group_by_id(group, count)
    order.sort_groups(at, start, stamp, stamp)
    slots = order.list_tied_slots(at, start, stamp, stamp)
    if slots.size:
        run, _ = order.number_ties(at[slots], (group, stamp))
        is_needed = np.isin(run, run[is_asked[rows[at[slots]]]])
        slots, run = slots[is_needed], run[is_needed]
        at[slots] = at[slots[_in_full(take_rows(among, at[slots]), run)]]
    ordinal = np.empty(version.size, np.int64)
    ordinal[rows[at]] = np.arange(at.size) - start[group[at]]
    return ordinal[row]


def _in_full(messages: pa.Table, run: Ints) -> Ints:
    """Return the order of messages within their runs, by all columns that tell messages of a stream apart."""
    keys = ["received_at", "sequence", "event_time", "type"]
    keys += [INVALID_VALUE] if INVALID_VALUE in messages.column_names else []
    ordered = messages.select(keys).append_column("run", pa.array(run))
    ordered = ordered.append_column("payload", comparable(combine_chunks(messages["payload"])))
    keys.append("payload")
    for name in keys:
        ordered = ordered.append_column(f"has {name}", ordered[name].is_valid())  # NULL comes first
    by = ["run", *(column for name in keys for column in (f"has {name}", name))]
    return pc.sort_indices(ordered, sort_keys=[(name, "ascending") for name in by]).to_numpy()


def _groups(messages: pa.Table, version: Ints) -> tuple[Numbers, int]:
    """Number the (source, key, version) of the messages, and return how many there are; NULL counts as a value."""
    (source, sources), (key, keys) = (_codes(messages[name]) for name in ("source", "key"))
    stream, streams = order.pairs(source, key, sources, keys)
    number, versions = _codes(pa.chunked_array([pa.array(version)]))
    return order.pairs(stream, number, streams, versions)


def _codes(values: pa.ChunkedArray) -> tuple[Numbers, int]:
    """Number values, and return how many numbers there may be; NULL has a separate number."""
    coded = combine_chunks(values).dictionary_encode()
    null = len(coded.dictionary)
    return pc.fill_null(coded.indices, null).to_numpy(), null + 1
