"""Parse the columns of states from SQL declarations such as `word STRING, count BIGINT`."""

from __future__ import annotations

import re

import pyarrow as pa
import sqlglot
from sqlglot import exp

from windrow.columnar.arrow import TIME
from windrow.errors import TopologyError

KEYS = "STRING, BIGINT, INT, BOOLEAN, DATE or TIMESTAMP"
_KINDS = exp.DataType.Type
_PLAIN = {
    _KINDS.TEXT: pa.string(),
    _KINDS.VARCHAR: pa.string(),
    _KINDS.BIGINT: pa.int64(),
    _KINDS.INT: pa.int32(),
    _KINDS.SMALLINT: pa.int16(),
    _KINDS.TINYINT: pa.int8(),
    _KINDS.BOOLEAN: pa.bool_(),
    _KINDS.FLOAT: pa.float32(),
    _KINDS.DOUBLE: pa.float64(),
    _KINDS.BINARY: pa.binary(),
    _KINDS.DATE: pa.date32(),
    _KINDS.TIMESTAMP: TIME,
    _KINDS.TIMESTAMPTZ: TIME,
}
_DECIMAL = re.compile(r"DECIMAL(?:\((\d{1,2})(?:, (\d{1,2}))?\))?", re.ASCII)
_MAX_DIGITS = 38
_KEYS = {pa.string(), pa.int64(), pa.int32(), pa.bool_(), pa.date32(), TIME}


def columns_of(declared: str) -> pa.Schema:
    """Return declared columns as a nullable Arrow schema. Raises TopologyError."""
    try:
        parsed = sqlglot.parse_one(f"CREATE TABLE t ({declared})", read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise _columns_error(declared) from error
    definitions = [column for column in parsed.this.expressions if isinstance(column, exp.ColumnDef)]
    if not definitions or len(definitions) != len(parsed.this.expressions):
        raise _columns_error(declared)
    fields = [pa.field(column.name, _type(column.kind, declared)) for column in definitions]
    names = [field.name.lower() for field in fields]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TopologyError(f"{declared!r} declares {min(twice)!r} twice", "Rename one of them.")
    return pa.schema(fields)


def keys_of(declared: str) -> pa.Schema:
    """Return the columns of a key. Raises TopologyError for types that cannot be written into an id."""
    columns = columns_of(declared)
    for field in columns:
        if field.type not in _KEYS:
            raise TopologyError(f"the key {field.name!r} is of type {field.type}", f"A key must be {KEYS}.")
    return columns


def _columns_error(declared: str) -> TopologyError:
    return TopologyError(f"{declared!r} declares no columns", "Write for example: word STRING, count BIGINT.")


def _type(kind: exp.DataType | None, declared: str) -> pa.DataType:
    if kind is not None:
        if kind.this in _PLAIN:
            return _PLAIN[kind.this]
        if decimal := _DECIMAL.fullmatch(kind.sql("spark")):
            precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
            if scale <= precision and 1 <= precision <= _MAX_DIGITS:
                return pa.decimal128(precision, scale)
        if kind.this == _KINDS.ARRAY and len(kind.expressions) == 1:
            return pa.list_(_type(kind.expressions[0], declared))
        if kind.this == _KINDS.MAP and len(kind.expressions) == 2:  # noqa: PLR2004 - keys and values
            return pa.map_(*(_type(expression, declared) for expression in kind.expressions))
        if kind.this == _KINDS.STRUCT and all(isinstance(expression, exp.ColumnDef) for expression in kind.expressions):
            return pa.struct(
                [pa.field(expression.name, _type(expression.kind, declared)) for expression in kind.expressions]
            )
    raise TopologyError(
        f"{declared!r}: {kind.sql('spark') if kind else 'a missing type'} is not a type of a state",
        "The types are STRING, BIGINT, INT, SMALLINT, TINYINT, BOOLEAN, FLOAT, DOUBLE, DECIMAL(p, s), BINARY, DATE, "
        "TIMESTAMP, ARRAY<...>, MAP<..., ...> and STRUCT<...>.",
    )
