"""The columns that `[depot.columns]` maps of a raw depot: fields, and where each record is."""

from __future__ import annotations

import pyarrow as pa

from windrow.columnar.arrow import TIME
from windrow.formats.raw.spans import PLACE

SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def placed(fields: pa.Schema) -> pa.Schema:
    """Return fields and where each record is (`PLACE`), without what a field has the name of."""
    return pa.schema([*fields, *(pa.field(name, type_) for name, type_ in PLACE if name not in fields.names)])


def columns_of(fields: pa.Schema) -> pa.Schema:
    """Return the same of the types that both engines know: signed numbers, times in microseconds."""
    return pa.schema([pa.field(field.name, _common(field.type)) for field in placed(fields)])


def _common(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return TIME
    if pa.types.is_list(type_):
        return pa.list_(_common(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _common(field.type)) for field in type_])
    return SIGNED.get(type_, type_)
