"""Encode the rows of a ledger as canonical bytes and digests, which do not depend on how the log was cut.

A row is the sequence of its fields, each of them a *netstring*: the number of its bytes in decimal digits, a colon,
the bytes, a comma. NULL is `~`. Whole numbers are decimal digits, times are microseconds since the epoch, booleans are
`true` or `false`, text is UTF-8, bytes are unchanged, and dates and decimals are text. A DOUBLE is the 16 hexadecimal
digits of its bits, so that -0.0 is not 0.0; but every NaN is `7ff8000000000000`, because Spark gives all NaNs these
bits when it writes them. A struct is its fields as netstrings, one after the other, a list its elements, a map its
entries. A batch has the fields of `BATCH` and one more: its messages, each the fields of `MESSAGE`, one message after
the other in the order of the batch. A rejected message has the fields of `REJECTED`. Microbatch numbers are left out,
because the same log gives the same rows however it is cut into microbatches.

The *digest* of a row is the SHA-256 of these bytes, that of several rows the SHA-256 of their ids and digests, as
netstrings, in the order of the ids' bytes. Source of netstrings: D. J. Bernstein's definition of 1997.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import string_array

BATCH = (
    "id", "state", "source", "key", "part", "window_start", "window_end", "timeout_at", "open_reason", "closed_at",
    "close_reason", "message_count", "bytes", "oversize", "first_event_time", "last_event_time",
)  # fmt: skip
MESSAGE = ("type", "event_time", "received_at", "sequence", "payload")
REJECTED = (
    "id", "state", "reason", "detail", "missed_by_us", "floor_raise_us", "source", "key", "type", "event_time",
    "received_at", "sequence", "payload", "processing_time",
)  # fmt: skip

BYTES = pa.large_binary()
NAN = np.uint64(0x7FF8_0000_0000_0000).view(np.float64)
NULL, COLON, COMMA, NOTHING = string_array(["~", ":", ",", ""]).cast(BYTES)
BEGINS = string_array([f"{length}:" for length in range(1_000)]).cast(BYTES)  # of netstrings; most are this short


def batches(rows: pa.RecordBatch, inside: pa.Array | None = None) -> pa.Array:
    """Return each batch as bytes. `rows` has the columns of `BATCH` and `messages`, or `inside` are its `contents`."""
    inside = contents(rows["messages"]) if inside is None else inside
    return fields([*(rows[name] for name in BATCH), inside])


def contents(messages: pa.Array) -> pa.Array:
    """Return the messages inside each batch as bytes, one after the other; `messages` is a column of lists."""
    inside = pc.list_flatten(messages)
    return _in_lists(messages, fields([pc.struct_field(inside, name) for name in MESSAGE]))


def _in_lists(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Return, for each list, the bytes of its elements, one after the other; NULL has none."""
    ends = np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    return pc.binary_join(pa.LargeListArray.from_arrays(pa.array(offsets), elements), NOTHING)


def rejections(rows: pa.RecordBatch) -> pa.Array:
    """Return each rejected message as bytes. `rows` has the columns of `REJECTED`."""
    return fields([rows[name] for name in REJECTED])


def fields(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the values of each row as netstrings, one after the other."""
    return join_bytes([part for column in columns for part in _parts(column)])


def netstrings(values: pa.Array) -> pa.Array:
    """Return each value as a netstring, NULL as `~`."""
    return fields([values])


def _parts(values: pa.Array) -> list[pa.Array]:
    """Return the parts that make netstrings when they are joined."""
    if values.null_count == len(values):
        return [pa.repeat(NULL, len(values))]
    content = encode_values(values)
    length = pc.binary_length(content)
    least, most = pc.min_max(length).as_py().values()
    if most < len(BEGINS):
        parts = [BEGINS[most] if least == most else BEGINS.take(length), content, COMMA]
    else:
        parts = [length.cast(pa.large_string()).cast(BYTES), COLON, content, COMMA]
    return [pc.fill_null(join_bytes(parts), NULL)] if content.null_count else parts


def encode_values(values: pa.Array) -> pa.Array:
    """Return each value as bytes; NULL stays NULL."""
    if pa.types.is_map(values.type):
        values = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    if pa.types.is_list(values.type):
        return pc.if_else(values.is_valid(), _in_lists(values, netstrings(pc.list_flatten(values))), None)
    if pa.types.is_struct(values.type):
        members = [pc.struct_field(values, at) for at in range(values.type.num_fields)]
        return pc.if_else(values.is_valid(), fields(members), None)
    if pa.types.is_floating(values.type):
        return _bits(values.cast(pa.float64()))
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if pa.types.is_primitive(values.type) or pa.types.is_decimal(values.type):
        values = values.cast(pa.large_string())
    return values.cast(BYTES)


def join_bytes(parts: Sequence[pa.Array]) -> pa.Array:
    """Join the bytes of several columns, row by row."""
    return pc.binary_join_element_wise(*parts, NOTHING)


def digests(encoded: pa.Array) -> pa.Array:
    """Return the SHA-256 of each value in hexadecimal digits."""
    return pa.array([sha256(row).hexdigest() for row in encoded.to_pylist()], pa.string())


def digest(pieces: Iterable[pa.RecordBatch]) -> str:
    """Return the digest of several rows from their `id` and `digest`, in the order of the ids' bytes."""
    whole = sha256()
    for piece in pieces:
        lines = fields([piece[name] for name in ("id", "digest")])
        whole.update(b"".join(lines.to_pylist()))
    return whole.hexdigest()


def _bits(values: pa.Array) -> pa.Array:
    numbers = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(numbers), NAN, numbers).view(np.uint64)
    digits = pa.py_buffer(bits.astype(">u8").tobytes().hex().encode())
    bounds = pa.py_buffer(np.arange(0, 16 * bits.size + 1, 16, dtype=np.int64))
    return pc.if_else(values.is_valid(), pa.Array.from_buffers(BYTES, bits.size, [None, bounds, digits]), None)
