"""Rows as JSON knows them: times as ISO 8601 text in UTC, bytes as text.

Python values become Arrow arrays nowhere here: that would import pandas, where it is installed, which takes longer than
everything else that `windrow status` does.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from windrow.columnar.arrow import counted
from windrow.model.timestamps import time_text

BASE64 = "base64:"


def records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as values that JSON knows.

    Bytes that are no UTF-8 become `base64:` and their base64 text.
    """
    convert = _converter(pa.struct(list(table.schema)))
    return [convert(row) for row in counted(table).to_pylist()]


def unescaped(text: str) -> str | bytes:
    """Return what `records` made a text of: text, or bytes that are none."""
    if text.startswith(BASE64):
        with suppress(ValueError):
            found = base64.b64decode(text.removeprefix(BASE64), validate=True)
            if _text(found) == text:
                return found
    return text


def _converter(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what turns a value of a type into one that JSON knows; NULL stays NULL."""
    if pa.types.is_timestamp(type_):
        return lambda value: None if value is None else time_text(value)
    if pa.types.is_list(type_):
        element = _converter(type_.value_type)
        return lambda value: None if value is None else [element(one) for one in value]
    if pa.types.is_struct(type_):
        fields = [(field.name, _converter(field.type)) for field in type_]
        return lambda value: None if value is None else {name: convert(value[name]) for name, convert in fields}
    return _text


def _text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(value).decode()
