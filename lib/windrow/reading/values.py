"""Convert rows to JSON values: times become ISO 8601 text in UTC, bytes become text.

Nothing here converts Python values to Arrow arrays: that imports pandas, if installed, which takes longer than
everything else in `windrow status`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from windrow.columnar.arrow import times_to_numbers
from windrow.model.timestamps import time_text

BASE64 = "base64:"


def records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON values.

    Bytes that are not valid UTF-8 become `base64:` and their base64 text. JSON has no NaN, Infinity or -Infinity, so
    these become text.
    """
    convert = _converter(pa.struct(list(table.schema)))
    return [convert(row) for row in times_to_numbers(table).to_pylist()]


def replace_nan(value: Any) -> Any:
    """Return a value with NaN and infinities replaced by text at any depth, because JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, dict):
        return {name: replace_nan(member) for name, member in value.items()}
    return [replace_nan(element) for element in value] if isinstance(value, list) else value


def undo_escapes(text: str) -> str | bytes:
    """Undo `records` for one text: return a `str`, or `bytes` for a value that was not valid UTF-8."""
    if text.startswith(BASE64):
        with suppress(ValueError):
            content = base64.b64decode(text.removeprefix(BASE64), validate=True)
            if _text(content) == text:
                return content
    return text


def _converter(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns a value of a type into a JSON value; NULL stays None."""
    if pa.types.is_timestamp(type_):
        return lambda value: None if value is None else time_text(value)
    if pa.types.is_list(type_):
        element = _converter(type_.value_type)
        return lambda value: None if value is None else [element(item) for item in value]
    if pa.types.is_struct(type_):
        fields = [(field.name, _converter(field.type)) for field in type_]
        return lambda value: None if value is None else {name: convert(value[name]) for name, convert in fields}
    return _text


def _text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return replace_nan(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(value).decode()
