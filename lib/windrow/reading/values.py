"""Rows as JSON knows them: times as ISO 8601 text in UTC, octets as text.

Only Arrow's kernels are used here: a Python value turned into an Arrow array would import pandas, which takes longer
than everything else that `windrow status` does.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECONDS = pa.timestamp("us", tz="UTC")


def records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as values that JSON knows.

    Octets that are no UTF-8 become `base64:` and their base64 text.
    """
    columns = {name: pa.chunked_array([_plain(chunk) for chunk in table[name].chunks]) for name in _filled(table)}
    return [_decoded(row) for row in pa.table(columns).to_pylist()]


def time_text(microseconds: int) -> str:
    """Return a time as ISO 8601 text in UTC."""
    text = (EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    return text.removesuffix("+00:00").rstrip("0").rstrip(".") + "Z"


def _filled(table: pa.Table) -> list[str]:
    return table.column_names if table.num_rows else []


def _plain(values: pa.Array) -> pa.Array:
    """Turn times into text, at any depth."""
    type_ = values.type
    if pa.types.is_timestamp(type_):
        text = pc.replace_substring(values.cast(MICROSECONDS).cast(pa.string()), " ", "T")
        return pc.replace_substring_regex(text, r"\.?0+Z$", "Z")
    if pa.types.is_list(type_):
        inside = _plain(values.values)
        buffers = values.buffers()[:2]
        return pa.Array.from_buffers(pa.list_(inside.type), len(values), buffers, -1, values.offset, [inside])
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        fields = [_plain(pc.struct_field(values, name)) for name in names]
        return pa.StructArray.from_arrays(fields, names, mask=pc.is_null(values))
    return values


def _decoded(value: Any) -> Any:
    """Turn octets into text, at any depth."""
    if isinstance(value, dict):
        return {name: _decoded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
