"""Rejected messages: why each one is in no batch, under an id that every replay gives again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow import tables
from windrow.messages import COLUMNS, microseconds, times

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Which rows of a table of messages are refused, and why; one element a refused message.

    `off_by` and `processing_time` are microseconds; a message that never came to be processed (`invalid`,
    `clock_ahead`) has no processing time: `processed` is False.
    """

    row: Ints
    reason: npt.NDArray[np.str_]
    detail: pa.Array
    off_by: Ints
    processing_time: Ints
    processed: npt.NDArray[np.bool_]

    @classmethod
    def unprocessed(cls, row: Ints, reason: str, detail: pa.Array, off_by: Ints | None = None) -> Refusals:
        """Return refusals of messages that were never processed."""
        nothing = np.zeros(row.size, np.int64)
        return cls(row, np.full(row.size, reason), detail, nothing if off_by is None else off_by, nothing, nothing != 0)


def rejected(messages: pa.Table, version: Ints, refusals: list[Refusals], microbatch: int | None) -> pa.Table:
    """Return the rows of `rejected_messages`, in the order of `messages`.

    `messages` must hold all messages of the streams and versions concerned, because the id of a rejection counts
    among them.
    """
    row = np.concatenate([part.row for part in refusals])
    by_row = np.argsort(row)
    row = row[by_row]
    reason = np.concatenate([part.reason for part in refusals])[by_row]
    detail = pa.concat_arrays([part.detail.cast(pa.string()) for part in refusals]).take(pa.array(by_row))
    off_by = np.concatenate([part.off_by for part in refusals])[by_row]
    processing_time = np.concatenate([part.processing_time for part in refusals])[by_row]
    processed = np.concatenate([part.processed for part in refusals])[by_row]
    content = messages.select(list(COLUMNS)).take(pa.array(row)).combine_chunks()
    raised_by = processing_time - microseconds(content["received_at"])
    values: dict[str, object] = {name: content[name] for name in content.column_names}
    values |= {
        "id": _ids(messages, version, row),
        "reason": pa.array(reason),
        "detail": detail,
        "off_by_us": off_by,
        "raised_by_us": pa.array(raised_by, mask=~processed),
        "processing_time": times(processing_time, processed),
        "microbatch": microbatch,
    }
    schema = pa.schema(tables.rejected_fields(content.schema.field("payload").type))
    return tables.rows(schema, values, row.size)


def _ids(messages: pa.Table, version: Ints, row: Ints) -> pa.Array:
    """Name each rejection by version, stream and its place among the stream's messages of that version."""
    group = _groups(messages, version)
    rows = np.flatnonzero(np.isin(group, group[row]))
    keys = ["received_at", "sequence", "event_time", "type", "payload"]
    subset = messages.select(keys).take(pa.array(rows)).append_column("group", pa.array(group[rows]))
    for name in keys:
        subset = subset.append_column(f"has {name}", subset[name].is_valid())  # NULL comes first
    by = ["group", *(column for name in keys for column in (f"has {name}", name))]
    order = pc.sort_indices(subset, sort_keys=[(name, "ascending") for name in by]).to_numpy()
    ordered = group[rows][order]
    begin = np.searchsorted(ordered, ordered)
    ordinal = np.empty_like(group)
    ordinal[rows[order]] = np.arange(rows.size) - begin
    chosen = pa.array(row)
    return tables.identifier(
        "rejected",
        pa.array(version[row]),
        messages["source"].combine_chunks().take(chosen),
        messages["key"].combine_chunks().take(chosen),
        pa.array(ordinal[row]),
    )


def _groups(messages: pa.Table, version: Ints) -> Ints:
    """Number the (source, key, version) of the messages; NULL is a value like others."""
    code = np.zeros(messages.num_rows, np.int64)
    for values in (messages["source"], messages["key"], pa.chunked_array([pa.array(version)])):
        encoded = pc.dictionary_encode(values.combine_chunks(), null_encoding="encode")
        code = code * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
        code = np.unique(code, return_inverse=True)[1]
    return code
