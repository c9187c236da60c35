"""The types of payloads: their names, and how payloads are compared.

A payload is STRING, BINARY, DOUBLE, BIGINT, BOOLEAN, or a STRUCT of these. A ledger has one type, which never changes.
Batching does not look inside payloads. Where messages must be told apart, payloads are compared by their bytes: text
and bytes by their own, all others by their canonical form (`model.canonical`). `columnar.arrow.byte_count` says how
many bytes a payload counts as.
"""

from __future__ import annotations

import re

import pyarrow as pa

from windrow.columnar.arrow import to_plain_type
from windrow.errors import SettingsError
from windrow.model import canonical

SCALARS = {
    "STRING": pa.string(), "BINARY": pa.binary(), "DOUBLE": pa.float64(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_(),
}  # fmt: skip
NAMES = {type_: name for name, type_ in SCALARS.items()}
FIELD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*[: ]\s*([A-Za-z]+)\s*")
STRUCT = re.compile(r"STRUCT\s*<(.*)>", re.IGNORECASE | re.DOTALL)
HINT = f"Use {', '.join(SCALARS)}, or a struct of them, such as STRUCT<celsius: DOUBLE, unit: STRING>."


def parse(text: str) -> pa.DataType:
    """Return the Arrow type that a name means. Raises SettingsError."""
    struct = STRUCT.fullmatch(text.strip())
    if struct is None:
        return _scalar(text)
    fields = [FIELD.fullmatch(part) for part in struct[1].split(",")]
    fields_of_struct = [(field[1], _scalar(field[2])) for field in fields if field]
    if len({name.lower() for name, _ in fields_of_struct}) < len(fields):
        raise SettingsError(f"payload type {text!r}: the fields cannot be read, or two have the same name", HINT)
    return pa.struct(fields_of_struct)


def _scalar(text: str) -> pa.DataType:
    scalar = SCALARS.get(text.strip().upper())
    if scalar is None:
        raise SettingsError(f"unknown payload type {text!r}", HINT)
    return scalar


def name(type_: pa.DataType) -> str:
    """Return the name of a payload type, as `parse` reads it."""
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'{field.name}: {NAMES[field.type]}' for field in type_)}>"
    return NAMES[type_]


def of_column(schema: pa.Schema) -> pa.DataType:
    """Return the type of the payloads in a table: that of its column if payloads can have it, else text."""
    type_ = to_plain_type(schema.field("payload").type) if "payload" in schema.names else pa.string()
    fields = list(type_) if pa.types.is_struct(type_) else []
    if fields and all(field.type in NAMES and FIELD.fullmatch(f"{field.name} x") for field in fields):
        return type_
    return type_ if type_ in NAMES else pa.string()


def accepts_type(type_: pa.DataType, values: pa.DataType) -> bool:
    """Tell whether a column has payloads of a type, or of one that converts to it without loss: smaller numbers, NULL.

    Fields of a struct are matched by name; a field that the column lacks is NULL.
    """
    is_, values = pa.types, to_plain_type(values)
    if is_.is_null(values) or values == type_:
        return True
    if is_.is_struct(type_):
        known = type_.names
        return is_.is_struct(values) and all(
            field.name in known and accepts_type(type_.field(field.name).type, field.type) for field in values
        )
    if is_.is_floating(type_):
        return is_.is_integer(values) or is_.is_floating(values)
    return is_.is_integer(type_) and is_.is_integer(values)


def text_or_bytes(type_: pa.DataType) -> pa.DataType:
    """Return the type that payloads get if none is set: bytes stay bytes, and all else becomes text."""
    return type_ if type_ == pa.binary() else pa.string()


def comparable(values: pa.Array) -> pa.Array:
    """Return the text or bytes by which Arrow can sort payloads; NULL stays NULL."""
    if pa.types.is_struct(values.type) or pa.types.is_primitive(values.type):
        return canonical.encode_values(values)
    return values
