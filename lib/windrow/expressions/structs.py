"""Spark SQL that makes a struct, to SQL for DuckDB that makes one with fields of some types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from windrow.expressions.attempts import sentence_parts
from windrow.expressions.casts import TypedSql, cast, fault, refuse, resolve
from windrow.expressions.translation import member, translate


def struct(node: Any, schema: pa.Schema, types: Mapping[str, str], *, attempt: bool = False) -> TypedSql:
    """Translate an expression that is a struct, a column or a call that makes one, to one with fields of some types."""
    fields, value = _fields(node, schema)
    parts = [f"'{name}': {_field(fields, name, type_, attempt).sql}" for name, type_ in types.items()]
    packed = f"{{{', '.join(parts)}}}"
    return TypedSql(packed if value is None else f"CASE WHEN {value.sql} IS NOT NULL THEN {packed} END", "STRUCT")


def struct_faults(node: Any, schema: pa.Schema, types: Mapping[str, str], column: str) -> list[str]:
    """Return the SQL of what is wrong with each field of a struct in a column that `struct` attempts to cast."""
    fields, _ = _fields(node, schema)
    return [
        fault(fields[resolve(name, list(fields))], type_, *sentence_parts(f"{column}.{name}", type_)).sql
        for name, type_ in types.items()
        if type_ != "STRING"
    ]


def _field(fields: Mapping[str, TypedSql], name: str, type_: str, attempt: bool) -> TypedSql:
    return cast(fields[resolve(name, list(fields))], type_, attempt=attempt and type_ != "STRING")


def _fields(node: Any, schema: pa.Schema) -> tuple[dict[str, TypedSql], TypedSql | None]:
    """Return the fields of a struct by name, and the struct if it is no call that makes one."""
    if type(node).__name__ == "Paren":
        return _fields(node.this, schema)
    call = node.name.lower() if type(node).__name__ == "Anonymous" else ""
    if call == "struct":
        fields = {
            expression.name if type(expression).__name__ == "Column" else expression.alias: expression.unalias()
            for expression in node.expressions
        }
        return {name: translate(field, schema) for name, field in fields.items()}, None
    if call == "named_struct":
        names, values = node.expressions[::2], node.expressions[1::2]
        return {name.name: translate(value, schema) for name, value in zip(names, values, strict=False)}, None
    value = translate(node, schema)
    if value.inside is None or not pa.types.is_struct(value.inside):
        refuse(
            f"{node.sql('spark')} is no struct", "Write struct(...), named_struct(...) or a column that is a struct."
        )
    return {name: member(value, name) for name in value.inside.names}, value
