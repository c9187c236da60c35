"""Arrow types as Windrow uses them: readers hand out views, large types and dictionaries, the rooms know plain ones."""

from __future__ import annotations

import pyarrow as pa

from windrow.messages import TIME


def plain(table: pa.Table) -> pa.Table:
    """Return the table in plain types."""
    return table.cast(pa.schema([pa.field(field.name, plain_type(field.type)) for field in table.schema]))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the plain type: string, binary, list, struct, timestamps in microseconds UTC."""
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(plain_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in type_])
    if pa.types.is_timestamp(type_) and type_.tz is not None and type_.unit == "us":
        return TIME
    return PLAIN.get(type_, type_)


PLAIN = {
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}
