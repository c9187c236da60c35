"""Spark SQL to SQL for DuckDB that gives the same values, node by node; nodes without a rule here are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa

from windrow.expressions.attempts import MARKER
from windrow.expressions.calls import NUMBERS, RULES, call, in_one_type, nonzero
from windrow.expressions.casts import (
    DIGITS,
    MICROSECOND_DIGITS,
    SCALARS,
    TypedSql,
    cast,
    decimal,
    fault,
    quote_text,
    refuse,
    resolve,
    spark_type,
)

SIGNS = {"Add": "+", "Sub": "-", "Mul": "*", "Mod": "%"}
RANKS = "Or|And|Not|EQ NEQ LT LTE GT GTE NullSafeEQ Is In Like Between|Add Sub DPipe|Mul IntDiv Mod|Neg"
RANK = {kind: rank for rank, kinds in enumerate(RANKS.split("|")) for kind in kinds.split()}
JSON = {
    **dict.fromkeys(("INT", "DECIMAL", "BOOLEAN"), "{text}"),
    **dict.fromkeys(
        ("DOUBLE", "FLOAT"),
        "CASE WHEN {text} IN ('NaN', 'Infinity', '-Infinity') THEN ('\"' || {text} || '\"') ELSE {text} END",
    ),
    "STRING": "CAST(to_json({x}) AS STRING)",
    "BINARY": "('\"' || to_base64({x}) || '\"')",
    "DATE": "('\"' || strftime({x}, '%Y-%m-%d') || '\"')",
    "TIMESTAMP": "('\"' || strftime(make_timestamp({x}), '%Y-%m-%dT%H:%M:%S.%gZ') || '\"')",
}
# A step in a path of get_json_object: a field by name or, not at the start, an element by number.
STEP = re.compile(r"""\.([\w@:-]+)|\['([\w@:. -]+)'\]|(?<!\$)\[(\d+)\]""")
# DuckDB reads JSON that Jackson, Spark's parser, refuses: trailing commas, NaN, and JSON beyond Jackson's limits.
LAX = (
    r",[ \t\r\n]*[}\]]|[:,\[][ \t\r\n]*-?(?i:nan|inf(?:inity)?)[ \t\r\n]*[,}\]]|[0-9.]{1000}|"
    r"(?:[\[{][^\[{]*){1000}"
)
# An object or array in which Spark writes a number or a character differently from DuckDB.
UNLIKE = r"[0-9][eE][-+]?[0-9]+[,}\]]|[0-9]{8}\.[0-9]+[,}\]]|[^0-9.]0\.000|\\u|\x7F|[\x{10000}-\x{10FFFF}]"
MEMBER = r"""CASE
WHEN NOT coalesce(regexp_matches({x}, '^[ \t\r\n]*\{{'), false) THEN NULL
WHEN json_valid({x}) AND NOT regexp_matches({x}, '{lax}') THEN CASE coalesce(json_type({x}, {path}), 'NULL')
    WHEN 'NULL' THEN CASE WHEN {twice} THEN error('JSON with a name twice: ' || {x}) {null} END
    WHEN 'DOUBLE' THEN CASE WHEN NOT regexp_matches({found}, '[.eE]') THEN {found}
        WHEN isinf(CAST({found} AS DOUBLE)) THEN error('too large for a double: ' || {found}) ELSE {double} END
    WHEN 'OBJECT' THEN {whole}
    WHEN 'ARRAY' THEN {whole}
    ELSE {found} END
WHEN regexp_matches({x}, '^[^}}\x00-\x1f'']*\}}?$') AND NOT regexp_matches({x}, '\\u[dD]|{lax}') THEN NULL
ELSE error('Spark may read this JSON otherwise: ' || {x}) END"""
PARTS = "this expression expressions low high true false ifs default to safe negate is_string table db catalog"
COUNTS = {"s": "({0} * 1000000)", "ms": "({0} * 1000)", "us": "{0}", "ns": "({0} // 1000 - ({0} % 1000 < 0)::INT)"}


def translate(node: Any, schema: pa.Schema) -> TypedSql:
    """Return an expression over the columns of `schema` as SQL for DuckDB."""
    kind, parts = type(node).__name__, {part: child for part, child in node.args.items() if child}
    for part, child in parts.items():
        rank, inner = RANK.get(kind, -1), RANK.get(type(child).__name__, len(RANK))
        if part not in PARTS.split():
            refuse(f"the embedded engine has no {node.sql('spark')}")
        if inner < rank or (inner == rank and (part != "this" or rank == RANK["EQ"])):
            refuse(f"{node.sql('spark')} is ambiguous", "Put parentheses around its parts.")
    if kind in NODES:
        return NODES[kind](node, schema)
    if kind == "Anonymous" and node.name.lower() in CALLS:
        return CALLS[node.name.lower()](node, schema)
    if kind != "Anonymous" and kind not in SIGNS and f"\n{kind}(" not in RULES:
        refuse(f"the embedded engine has no {node.sql('spark')}")
    values = [translate(child, schema) for child in node.iter_expressions()]
    if kind in SIGNS:
        return _arithmetic(SIGNS[kind], *values)
    value = call(node.name.lower() if kind == "Anonymous" else kind, *values)
    return call("Not", value) if parts.get("negate") else value


def duckdb_field(field: pa.Field) -> pa.Field:
    """Return the field as passed to DuckDB: a time as a count, a float32 as its shortest text, and no dictionaries."""
    type_ = _decoded_type(field.type)
    if pa.types.is_float32(type_):
        return field.with_type(pa.string())
    return field.with_type(pa.int64() if pa.types.is_timestamp(type_) else type_)


def _decoded_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _column(node: Any, schema: pa.Schema) -> TypedSql:
    """Return a column, or a field in it; times, which come as counts, are floored to microseconds."""
    root, *path = (part.name for part in node.parts)
    name = resolve(root, schema.names)
    sql, type_ = '"' + name.replace('"', '""') + '"', _decoded_type(schema.field(name).type)
    if pa.types.is_timestamp(type_):
        sql = COUNTS[type_.unit].format(sql)
    return reduce(_member, path, TypedSql(sql, spark_type(type_), inside=type_))


def _member(value: TypedSql, name: str) -> TypedSql:
    if value.inside is None or not pa.types.is_struct(value.inside):
        refuse(f"{value.type} has no field {name!r}")
    field = value.inside.field(resolve(name, value.inside.names))
    return _part(f"struct_extract({value.sql}, {quote_text(field.name)})", field.type)


def struct_fields(node: Any, schema: pa.Schema) -> tuple[dict[str, TypedSql], TypedSql | None]:
    """Return the fields of a struct by name, and the struct itself, None if a call makes it."""
    if type(node).__name__ == "Paren":
        return struct_fields(node.this, schema)
    function = node.name.lower() if type(node).__name__ == "Anonymous" else ""
    if function == "struct":
        fields = {
            expression.name if type(expression).__name__ == "Column" else expression.alias: expression.unalias()
            for expression in node.expressions
        }
        return {name: translate(field, schema) for name, field in fields.items()}, None
    if function == "named_struct":
        names, values = node.expressions[::2], node.expressions[1::2]
        return {name.name: translate(value, schema) for name, value in zip(names, values, strict=False)}, None
    value = translate(node, schema)
    if value.inside is None or not pa.types.is_struct(value.inside):
        refuse(f"{node.sql('spark')} is not a struct", "Write struct(...), named_struct(...) or a struct column.")
    return {name: _member(value, name) for name in value.inside.names}, value


def _entry(node: Any, schema: pa.Schema) -> TypedSql:
    value, key = translate(node.this, schema), translate(node.expressions[0], schema)
    if value.inside is None or not pa.types.is_map(value.inside) or not isinstance(key.literal, str):
        refuse(f"the embedded engine has no {node.sql('spark')}")
    return _part(f"map_extract_value({value.sql}, {key.sql})", value.inside.item_type)


def _json(node: Any, schema: pa.Schema) -> TypedSql:
    """Return to_json(struct(columns)) as Spark writes it: NULL is left out, times have milliseconds in UTC."""
    values: Any = node.expressions[0] if len(node.expressions) == 1 else None
    if type(values).__name__ != "Anonymous" or values.name.lower() != "struct" or not values.expressions:
        refuse(f"the embedded engine has no {node.sql('spark')}", "Use to_json(struct(*)), or columns for the star.")
    members = []
    for column in values.expressions:
        if type(column).__name__ != "Column" or len(column.parts) > 1 or column.name not in schema.names:
            refuse(f"the embedded engine has no {column.sql('spark')} inside to_json(struct(...))")
        value = _column(column, schema)
        if value.kind not in JSON or (value.kind == "DECIMAL" and value.digits[1] > MICROSECOND_DIGITS):
            refuse(
                f"the embedded engine has no JSON of {value.type}, the type of {column.name}", "Name the other columns."
            )
        name = quote_text(json.dumps(column.name, ensure_ascii=False) + ":")
        text = cast(value, "STRING").sql if value.kind in NUMBERS else ""  # the other kinds have their own JSON
        members.append(f"({name} || {JSON[value.kind].format(x=value.sql, text=text)})")
    return TypedSql(f"('{{' || concat_ws(',', {', '.join(members)}) || '}}')", "STRING")


def _json_member(node: Any, schema: pa.Schema) -> TypedSql:
    """Return get_json_object(text, path) as Spark finds it: the first field of a name that has a value.

    JSON that Spark reads or may read differently is an error: JSON that is not strictly valid, a name twice, a number
    beyond a double. Arguments other than a text and a path of names and numbers are refused.
    """
    values = [translate(child, schema) for child in node.expressions]
    path = str(values[-1].literal) if values else ""
    steps = STEP.findall(path)
    written = "$" + "".join(step[0] for step in STEP.finditer(path))
    if [value.kind for value in values] != ["STRING", "STRING"] or not steps or written != path:
        refuse(
            f"the embedded engine has no {node.sql('spark')}",
            "Use get_json_object(text, '$.name'); the path may have more names, and numbers in brackets.",
        )
    text, places = values[0].sql, ["$"]
    for dotted, bracketed, number in steps:
        places.append(places[-1] + (f"[{number}]" if number else f'."{dotted or bracketed}"'))
    keys = [f"json_keys({text}, {quote_text(place)})" for place in places[:-1]]
    found = f"json_extract_string({text}, {quote_text(places[-1])})"
    is_named = not steps[-1][2]
    there = f"json_type({text}, {quote_text(places[-1])}) IS NOT NULL"
    sql = MEMBER.format(
        x=text,
        path=quote_text(places[-1]),
        lax=LAX,
        twice=" OR ".join(f"coalesce(length({key}) > length(list_distinct({key})), false)" for key in keys),
        null="" if is_named else f"WHEN {there} THEN 'null'",
        found=found,
        double=cast(TypedSql(f"CAST({found} AS DOUBLE)", "DOUBLE"), "STRING").sql,
        whole=f"CASE WHEN regexp_matches({found}, '{UNLIKE}') "
        f"THEN error('Spark may write this JSON otherwise: ' || {found}) ELSE {found} END",
    )
    return TypedSql(f"({sql})", "STRING")


def _validate_text(node: Any, schema: pa.Schema) -> TypedSql:
    """Return a text that is UTF-8; invalid bytes become NULL, any other text is valid."""
    values = node.expressions[0]
    if type(values).__name__.endswith("Cast") and (value := translate(values.this, schema)).kind == "BINARY":
        return cast(value, "STRING", attempt=True)
    return translate(values, schema)


def _fault(node: Any, schema: pa.Schema) -> TypedSql:
    """Return what is wrong with a value that is cast, from the marker of `attempts`."""
    value, before, after = node.expressions
    return fault(translate(value.this, schema), _target(value), before.name, after.name)


CALLS = {"to_json": _json, "get_json_object": _json_member, "try_validate_utf8": _validate_text, MARKER: _fault}


def _part(sql: str, type_: pa.DataType) -> TypedSql:
    if pa.types.is_timestamp(type_):
        refuse("the embedded engine has no times inside a struct or map")
    if pa.types.is_float32(type_):
        return TypedSql(sql, "FLOAT inside a struct or map")
    return TypedSql(sql, spark_type(type_), inside=type_)


def _text(text: str) -> TypedSql:
    return TypedSql(quote_text(text), "STRING", text)


def _number(text: str) -> TypedSql:
    if "e" in text.lower():
        return TypedSql(f"CAST('{text}' AS DOUBLE)", "DOUBLE")
    _, digits, exponent = Decimal(text).as_tuple()
    type_ = decimal(max(len(digits), -int(exponent)), -int(exponent))
    if "." in text:
        return TypedSql(f"CAST('{text}' AS {type_})", type_)
    bits = (int(text) if int(text) >= 0 else ~int(text)).bit_length()
    type_ = next((name for name, most in (("INT", 31), ("BIGINT", 63)) if bits <= most), type_)
    return TypedSql(f"CAST('{text}' AS {type_})", type_, int(text))


def _negative(node: Any, schema: pa.Schema) -> TypedSql:
    if type(node.this).__name__ == "Literal" and not node.this.is_string:
        return _number("-" + node.this.name)
    value = translate(node.this, schema)
    if value.type == "DOUBLE":  # 0 - 0.0 is 0.0, not -0.0
        return TypedSql(f"(-({value.sql}))", "DOUBLE")
    return _arithmetic("-", _number("0"), value)


def _cases(node: Any, schema: pa.Schema) -> TypedSql:
    value = translate(node.args["default"], schema) if node.args.get("default") else TypedSql("NULL", "NULL")
    for branch in reversed(node.args["ifs"]):
        condition = translate(branch.this, schema)
        if node.this:
            condition = call("EQ", translate(node.this, schema), condition)
        value = call("If", condition, translate(branch.args["true"], schema), value)
    return value


def _casting(node: Any, schema: pa.Schema) -> TypedSql:
    return cast(translate(node.this, schema), _target(node), attempt=bool(node.args.get("safe")))


def _target(node: Any) -> str:
    to = node.args["to"]
    target = {"TEXT": "STRING", "TIMESTAMPTZ": "TIMESTAMP"}.get(to.this.name, to.this.name)
    if target == "DECIMAL":
        target = decimal(*([int(size.name) for size in to.expressions] or [10]))
    known = target in (*DIGITS, *SCALARS.split()) or target.startswith("DECIMAL(")
    if to.args.get("collate") or not known:
        refuse(f"the embedded engine has no {node.sql('spark')}")
    return target


NODES: dict[str, Callable[[Any, pa.Schema], TypedSql]] = {
    "Column": _column,
    "Dot": lambda node, schema: _member(translate(node.this, schema), node.expression.name),
    "Bracket": _entry,
    "Paren": lambda node, schema: replace(translate(node.this, schema), literal=None),
    "Literal": lambda node, _: _text(node.name) if node.is_string else _number(node.name),
    "RawString": lambda node, _: _text(node.name),
    "Null": lambda *_: TypedSql("NULL", "NULL"),
    "Boolean": lambda node, _: TypedSql(str(node.this), "BOOLEAN"),
    "Neg": _negative,
    "Case": _cases,
    "Cast": _casting,
    "TryCast": _casting,
}


def _arithmetic(sign: str, left: TypedSql, right: TypedSql) -> TypedSql:
    kinds = {left.kind, right.kind}
    if "DECIMAL" in kinds <= {"DECIMAL", "INT"} and sign != "%":
        (p, s), (q, t) = left.digits, right.digits
        sum_ = (max(p - s, q - t) + max(s, t) + 1, max(s, t))
        type_ = decimal(*((p + q + 1, s + t) if sign == "*" else sum_))
        left, right = cast(left, decimal(p, s)), cast(right, decimal(q, t))
        return TypedSql(f"CAST({left.sql} {sign} {right.sql} AS {type_})", type_)
    divisor = right.literal
    left, right = in_one_type(left, right)
    if left.kind not in ("INT", "DOUBLE") or (left.kind == "DOUBLE" and sign == "%"):
        refuse(f"the embedded engine has no {left.type} {sign} {right.type}")
    return TypedSql(f"({left.sql} {sign} {nonzero(right, divisor) if sign == '%' else right.sql})", left.type)
