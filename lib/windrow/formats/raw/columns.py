"""The columns of a raw depot that `[depot.columns]` can map: the fields, and the position of each record."""

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
    """Return the fields and the position of a record (`PLACE`); a field hides a position column of the same name."""
    return pa.schema([*fields, *(pa.field(name, type_) for name, type_ in PLACE if name not in fields.names)])


def columns_of(fields: pa.Schema) -> pa.Schema:
    """Return the same columns with types that both engines support.

    Integers are signed, timestamps are in microseconds, times of day are texts, and no list has a fixed length.
    """
    return pa.schema([pa.field(field.name, _common(field.type)) for field in placed(fields)])


def _common(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return TIME
    if pa.types.is_time(type_):
        return pa.string()
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(_common(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), _common(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _common(field.type)) for field in type_])
    return SIGNED.get(type_, type_)
