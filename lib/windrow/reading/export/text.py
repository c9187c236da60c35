"""Convert Arrow columns to text: JSON values, ISO 8601 times, base64. Whole columns at once, never value by value."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()  # a piece may exceed the 2 GiB limit of plain strings
BYTES = pa.large_binary()
NOTHING = pa.scalar(None, TEXT)
SPECIAL = r'[\x00-\x1f"\\]'
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ESCAPES |= {chr(code): f"\\u{code:04x}" for code in range(0x20) if chr(code) not in ESCAPES}


def json_lines(rows: pa.RecordBatch) -> pa.Buffer:
    """Return rows as JSON objects, one a line, in UTF-8."""
    lines = _join(json_text(rows.to_struct_array()), "\n")
    ends = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return pa.py_buffer(b"") if not len(lines) else lines.buffers()[2].slice(ends[0], ends[-1] - ends[0])


def csv_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in types that csv can write: lists as JSON, times as ISO 8601 text, bytes as base64."""
    columns = [_flat(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def json_text(column: pa.Array) -> pa.Array:
    """Return the JSON text of each value: NULL as `null`, times as ISO 8601 text in UTC, bytes as base64 text."""
    type_ = column.type
    if pa.types.is_struct(type_):
        text = _objects(column)
    elif pa.types.is_list(type_):
        text = _lists(column)
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        text = column.cast(TEXT)
    else:
        text = _join('"', _escaped(_flat(column)), '"')
    return pc.fill_null(text, pa.scalar("null", TEXT))


def time_text(column: pa.Array) -> pa.Array:
    """Return times as ISO 8601 text in UTC, with microseconds, so that they sort as text."""
    local = column.cast(pa.timestamp("us")).cast(TEXT)
    return _join(pc.replace_substring(local, " ", "T", max_replacements=1), "Z")


def base64_text(column: pa.Array) -> pa.Array:
    """Return bytes as base64 text.

    Each value is padded to a multiple of three bytes, so that all values can be encoded at once; the padding becomes
    the `=` at the end of each.
    """
    values = pc.fill_null(column.cast(BYTES), b"")
    begins = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    sizes = np.diff(begins)
    ends = np.concatenate([[0], np.cumsum(-(-sizes // 3) * 3)])
    filled = np.zeros(ends[-1], np.uint8)
    if sizes.sum():
        buffer = np.frombuffer(values.buffers()[2], np.uint8)[begins[0] : begins[-1]]
        filled[np.repeat(ends[:-1] - (begins[:-1] - begins[0]), sizes) + np.arange(buffer.size)] = buffer
    codes = np.frombuffer(base64.b64encode(filled.data), np.uint8).copy()
    code_ends = ends // 3 * 4
    codes[code_ends[1:][sizes % 3 != 0] - 1] = ord("=")
    codes[code_ends[1:][sizes % 3 == 1] - 2] = ord("=")
    text = pa.LargeStringArray.from_buffers(len(sizes), pa.py_buffer(code_ends), pa.py_buffer(codes))
    return pc.if_else(column.is_valid(), text, NOTHING)


def _flat(column: pa.Array) -> pa.Array:
    """Return numbers, booleans and strings as they are, other types as text."""
    if pa.types.is_nested(column.type):
        return json_text(column)
    if pa.types.is_timestamp(column.type):
        return time_text(column)
    if pa.types.is_binary(column.type):
        return base64_text(column)
    return column


def _objects(column: pa.Array) -> pa.Array:
    pieces: list[pa.Array | str] = []
    for at, (field, values) in enumerate(zip(column.type, column.flatten(), strict=True)):
        pieces += [f'{"," if at else "{"}"{field.name}":', json_text(values)]
    return pc.if_else(column.is_valid(), _join(*pieces, "}"), NOTHING)


def _lists(column: pa.Array) -> pa.Array:
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    texts = pa.ListArray.from_arrays(offsets, json_text(column.flatten()))
    inside = pc.binary_join(texts, pa.scalar(",", TEXT))
    return pc.if_else(column.is_valid(), _join("[", inside, "]"), NOTHING)


def _escaped(column: pa.Array) -> pa.Array:
    text = column.cast(TEXT)
    if pc.any(pc.match_substring_regex(text, SPECIAL)).as_py():
        for character, code in ESCAPES.items():
            text = pc.replace_substring(text, character, code)
    return text


def _join(*pieces: pa.Array | str) -> pa.Array:
    typed = [pa.scalar(piece, TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*typed, pa.scalar("", TEXT))
