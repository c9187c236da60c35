"""Rejected messages: the reason for each, and an id that is the same in every replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar import order
from windrow.columnar.arrow import taken, text, to_numpy, whole
from windrow.model import clock, tables
from windrow.model.messages import COLUMNS, microseconds, refused, times

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Which rows of a table of messages are refused, and why; one element a refused message.

    `off_by` and `processing_time` are in microseconds. A message that was rejected before any rule (`invalid`,
    `clock_ahead`) has no processing time: `processed` is False.
    """

    row: Ints
    reason: pa.Array
    detail: pa.Array
    off_by: Ints
    processing_time: Ints
    processed: npt.NDArray[np.bool_]

    @classmethod
    def unprocessed(cls, row: Ints, reason: str | pa.Array, detail: pa.Array, off_by: Ints | None = None) -> Refusals:
        """Return refusals of messages that were never processed, for one reason or for one each."""
        nothing = np.zeros(row.size, np.int64)
        reasons = reason if isinstance(reason, pa.Array) else pa.repeat(text(reason), row.size)
        return cls(row, reasons, detail, nothing if off_by is None else off_by, nothing, nothing != 0)

    @classmethod
    def unseen(cls, messages: pa.Table, latest: int) -> Refusals:
        """Return the messages that are rejected before any rule; `latest` as for `messages.refused`."""
        found = refused(messages, latest)
        row, off_by = (to_numpy(found[name]) for name in ("row", "missed_by_us"))
        return cls.unprocessed(row, whole(found["reason"]), whole(found["detail"]), off_by)


def rejected(messages: pa.Table, version: Ints, refusals: list[Refusals], microbatch: int | None) -> pa.Table:
    """Return the rows of `rejected_messages`, in the order of `messages`.

    `messages` must have all messages of these streams and versions, because the id of a rejection is its place among
    them.
    """
    row = np.concatenate([part.row for part in refusals])
    by_row = np.argsort(row)
    row = row[by_row]
    reason = pa.concat_arrays([part.reason for part in refusals]).take(pa.array(by_row))
    detail = pa.concat_arrays([part.detail.cast(pa.string()) for part in refusals]).take(pa.array(by_row))
    off_by = np.concatenate([part.off_by for part in refusals])[by_row]
    processing_time = np.concatenate([part.processing_time for part in refusals])[by_row]
    processed = np.concatenate([part.processed for part in refusals])[by_row]
    content = taken(messages.select(list(COLUMNS)), row)
    raised_by = processing_time - microseconds(content["received_at"])
    values: dict[str, object] = {name: content[name] for name in content.column_names}
    values |= {
        "id": _ids(content, version[row], _ordinals(messages, version, row)),
        "reason": reason,
        "detail": detail,
        "missed_by_us": off_by,
        "clock_lead_us": pa.array(raised_by, mask=~processed),
        "processing_time": times(processing_time, processed),
        "microbatch": microbatch,
    }
    schema = pa.schema(tables.rejected_fields(content.schema.field("payload").type))
    return tables.rows(schema, values, row.size)


def _ids(content: pa.Table, version: Ints, ordinal: Ints) -> pa.Array:
    """Identify each rejection by version, stream and its place among the stream's messages of that version."""
    source, key = whole(content["source"]), whole(content["key"])
    return tables.identifier("rejected", pa.array(version), source, key, pa.array(ordinal))


def _ordinals(messages: pa.Table, version: Ints, row: Ints) -> Ints:
    """Return for each of some rows how many messages of its stream and version come before it.

    The order is (received_at, sequence, event_time, type, payload), NULL first. Nearly all differ in `received_at`.
    Only ties that contain a requested row are compared in full.
    """
    if not row.size:
        return row
    rows = order.among(version, version[row])
    among = messages.take(pa.array(rows)) if rows.size < version.size else messages
    asked = np.zeros(version.size, np.bool_)
    asked[row] = True
    group, count = _groups(among, version[rows])
    stamp = pc.fill_null(among["received_at"].cast(pa.int64()), clock.UNKNOWN).to_numpy()
    at, begin = order.group(group, count)
    if order.sort_groups(at, begin, stamp, stamp):
        slots = order.tied(at, begin, stamp, stamp)
        run, _ = order.ties(at[slots], (group, stamp))
        wanted = np.isin(run, run[asked[rows[at[slots]]]])
        slots, run = slots[wanted], run[wanted]
        at[slots] = at[slots[_in_full(taken(among, at[slots]), run)]]
    ordinal = np.empty(version.size, np.int64)
    ordinal[rows[at]] = np.arange(at.size) - begin[group[at]]
    return ordinal[row]


def _in_full(messages: pa.Table, run: Ints) -> Ints:
    """Return the order of messages within their runs, by all columns that tell messages of a stream apart."""
    keys = ["received_at", "sequence", "event_time", "type", "payload"]
    ordered = messages.select(keys).append_column("run", pa.array(run))
    for name in keys:
        ordered = ordered.append_column(f"has {name}", ordered[name].is_valid())  # NULL comes first
    by = ["run", *(column for name in keys for column in (f"has {name}", name))]
    return pc.sort_indices(ordered, sort_keys=[(name, "ascending") for name in by]).to_numpy()


def _groups(messages: pa.Table, version: Ints) -> tuple[order.Numbers, int]:
    """Number the (source, key, version) of the messages, and return how many there are; NULL counts as a value."""
    (source, sources), (key, keys) = (_codes(messages[name]) for name in ("source", "key"))
    stream, streams = order.pairs(source, key, sources, keys)
    number, versions = order.dense(version - version.min(), int(np.ptp(version)) + 1)
    return order.pairs(stream, number.astype(np.int32), streams, versions)


def _codes(texts: pa.ChunkedArray) -> tuple[order.Numbers, int]:
    """Number texts, and return how many numbers there may be; NULL has a separate number."""
    coded = whole(texts).dictionary_encode()
    null = len(coded.dictionary)
    return pc.fill_null(coded.indices, null).to_numpy(), null + 1
