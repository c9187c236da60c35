"""Check the payloads that are neither text nor bytes: numbers, booleans and structs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # JSON has no such numbers
LEAST, GREATEST = -(2**63), 2**63 - 1


def to_payload(value: Any, type_: pa.DataType) -> Any:
    """Return a value as a payload of a type, or as a field of one. Raises ValueError, which says what it is not."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return _struct(value, type_)
    if pa.types.is_float64(type_):
        return _double(value)
    if pa.types.is_int64(type_):
        if not isinstance(value, int) or isinstance(value, bool) or not LEAST <= value <= GREATEST:
            raise ValueError("is not a 64-bit integer")
        return value
    if pa.types.is_boolean(type_):
        if not isinstance(value, bool):
            raise ValueError("is neither true nor false")
        return value
    return _text(value, type_)


def size(value: Any) -> int:
    """Return roughly how many bytes of the buffer a payload takes."""
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    return len(value) if isinstance(value, bytes) else 0 if value is None else 8


def _struct(value: Any, type_: pa.StructType) -> dict[str, Any]:
    """Return the fields of an object; a missing one is NULL."""
    if not isinstance(value, Mapping):
        raise ValueError(f"is not an object with {', '.join(type_.names)}")  # noqa: TRY004 - the reason of a refusal
    unknown = [name for name in value if name not in type_.names]
    if unknown:
        raise ValueError(f"has a field {unknown[0]!r}, which the depot does not have")
    made = {}
    for field in type_:
        try:
            made[field.name] = to_payload(value.get(field.name), field.type)
        except ValueError as error:
            raise ValueError(f"has a field {field.name} that {error}") from None
    return made


def _double(value: Any) -> float:
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("is not a number")  # noqa: TRY004 - the reason of a refusal
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is a number that is too large") from None


def _text(value: Any, type_: pa.DataType) -> str | bytes:
    """Return a text or bytes inside a struct; for a binary field, a text becomes UTF-8."""
    try:
        if pa.types.is_binary(type_):
            return value.encode() if isinstance(value, str) else bytes(memoryview(value))
        if isinstance(value, str):
            return value.encode().decode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a character") from None
    except TypeError:
        raise ValueError("is neither text nor bytes") from None
    raise ValueError("is not text")
