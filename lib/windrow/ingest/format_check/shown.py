"""Show values and bytes to people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

MAX_LENGTH = 60
CONTROLS = {number: f"\\x{number:02x}" for number in [*range(32), 127]} | {9: "\\t", 10: "\\n", 13: "\\r"}


def preview(content: bytes, text: bool) -> str:
    """Return the beginning of a record: as text in one line, or in hexadecimal."""
    if not text:
        shown = content[: MAX_LENGTH // 3].hex(" ")
        return shown if len(content) <= MAX_LENGTH // 3 else f"{shown} ..."
    shown = printable(content[: 4 * MAX_LENGTH].rstrip(b"\r\n").decode(errors="backslashreplace"))
    return shown if len(shown) <= MAX_LENGTH else f"{shown[:MAX_LENGTH]}..."


def printable(text: str) -> str:
    """Return a text in one line, with control characters escaped."""
    return text.translate(CONTROLS)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries of JSON values; other values become text."""
    columns = [values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of an array. Times become text, because Arrow's may be finer than Python's microseconds."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in values(chunk)]
    if pa.types.is_struct(array.type):
        members = [values(member) for member in array.flatten()]
        names = [field.name for field in array.type]
        valid = array.is_valid().to_pylist()
        every: Iterable[tuple[Any, ...]] = zip(*members, strict=True) if members else [()] * len(array)
        return [dict(zip(names, row, strict=True)) if good else None for good, row in zip(valid, every, strict=True)]
    if pa.types.is_map(array.type):
        entries = ((scalar.values.field(0), scalar.values.field(1)) if scalar.is_valid else None for scalar in array)
        return [None if entry is None else dict(zip(*map(values, entry), strict=True)) for entry in entries]
    if pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return [None if scalar.values is None else values(scalar.values) for scalar in array]
    if pa.types.is_temporal(array.type) or pa.types.is_decimal(array.type):
        return array.cast(pa.string()).to_pylist()
    return [_plain(value) for value in array.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    finite = not isinstance(value, float) or value - value == 0
    return value if finite else str(value)
