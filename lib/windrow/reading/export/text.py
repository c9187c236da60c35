"""Write rows as text: lines of JSON, or the columns that CSV can hold. Times are ISO 8601 in UTC, bytes are base64."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

import pyarrow as pa

from windrow.reading.values import finite

TEXT = pa.large_string()  # a piece may exceed the 2 GiB limit of plain strings


def json_lines(rows: pa.RecordBatch) -> bytes:
    """Return rows as JSON objects, one a line, in UTF-8."""
    return "".join(f"{json_text(row)}\n" for row in rows.to_pylist()).encode()


def csv_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in types that CSV can hold: lists become JSON, times and bytes text."""
    columns = [_flat(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def json_text(value: Any) -> str:
    """Return a value as JSON, of which only what JSON demands is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_text, allow_nan=False)
    except ValueError:
        return json_text(finite(value))


def _text(value: datetime | bytes) -> str:
    """Return a time with microseconds, so that times sort as text, or bytes as base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _flat(column: pa.Array) -> pa.Array:
    """Return numbers, booleans and strings as they are, other types as text."""
    if pa.types.is_nested(column.type):
        write = json_text
    elif pa.types.is_timestamp(column.type) or pa.types.is_binary(column.type):
        write = _text
    else:
        return column
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], TEXT)
