"""Spark SQL to SQL for DuckDB that gives the same values, node by node; what has no rule here is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa

from windrow.expressions.attempts import MARKER
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
from windrow.expressions.json_member import json_member
from windrow.expressions.patterns import SOLID, java_to_re2

# What both engines do alike: name(arguments, see ARGUMENTS) type = SQL for DuckDB.
RULES = """
split_part(text, word, index) STRING = split_part({}, {}, {})
substring(text, start) STRING = substring({}, {})
substring(text, start, count) STRING = substring({}, {}, {})
substr(text, start) STRING = substring({}, {})
substr(text, start, count) STRING = substring({}, {}, {})
lower(letters) STRING = lower({})
upper(letters) STRING = upper({})
trim(text) STRING = trim({}, ' ')
ltrim(text) STRING = ltrim({}, ' ')
rtrim(text) STRING = rtrim({}, ' ')
replace(text, word, text) STRING = replace({}, {}, {})
regexp_extract(text, pattern) STRING = regexp_extract({}, {}, 1)
regexp_extract(text, pattern, start) STRING = regexp_extract({}, {}, {})
regexp_extract(text, endless, count) STRING = regexp_extract({}, {}, {})
regexp_replace(text, solid, replacement) STRING = regexp_replace({}, {}, {}, 'g')
length(text) INT = CAST(length({}) AS INT)
length(binary) INT = CAST(octet_length({}) AS INT)
concat(written, written*) STRING = ({ || })
concat_ws(literal, text, text*) STRING = concat_ws({, })
decode(binary, utf8) STRING = decode({})
coalesce(same, same*) SAME = coalesce({, })
nullif(same, same) SAME = nullif({}, {})
timestamp_micros(whole) TIMESTAMP = {}
timestamp_millis(whole) TIMESTAMP = ({} * 1000)
timestamp_seconds(whole) TIMESTAMP = ({} * 1000000)
timestamp_seconds(seconds) TIMESTAMP = CAST({} * 1000000 AS BIGINT)
to_timestamp(moment) TIMESTAMP = {}
unix_micros(time) BIGINT = {}
If(truth, same, same) SAME = CASE WHEN {} THEN {} ELSE {} END
In(same, same, same*) BOOLEAN = ({} IN ({, }))
Is(any, null) BOOLEAN = ({} IS {})
Between(same, same, same) BOOLEAN = ({} BETWEEN {} AND {})
Like(text, like) BOOLEAN = ({} LIKE {})
Not(truth) BOOLEAN = (NOT {})
And(truth, truth) BOOLEAN = ({} AND {})
Or(truth, truth) BOOLEAN = ({} OR {})
EQ(same, same) BOOLEAN = ({} = {})
NEQ(same, same) BOOLEAN = ({} <> {})
LT(same, same) BOOLEAN = ({} < {})
LTE(same, same) BOOLEAN = ({} <= {})
GT(same, same) BOOLEAN = ({} > {})
GTE(same, same) BOOLEAN = ({} >= {})
NullSafeEQ(same, same) BOOLEAN = ({} IS NOT DISTINCT FROM {})
DPipe(written, written) STRING = ({} || {})
IntDiv(whole, divisor) BIGINT = ({} // {})
"""
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
NUMBERS = ("INT", "DECIMAL", "BOOLEAN", "DOUBLE", "FLOAT")
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
            refuse(f"{node.sql('spark')} can be read in two ways", "Put parentheses around its parts.")
    if kind in NODES:
        return NODES[kind](node, schema)
    if kind == "Anonymous" and node.name.lower() in CALLS:
        return CALLS[node.name.lower()](node, schema)
    if kind != "Anonymous" and kind not in SIGNS and f"\n{kind}(" not in RULES:
        refuse(f"the embedded engine has no {node.sql('spark')}")
    values = [translate(child, schema) for child in node.iter_expressions()]
    if kind in SIGNS:
        return _arithmetic(SIGNS[kind], *values)
    value = _call(node.name.lower() if kind == "Anonymous" else kind, *values)
    return _call("Not", value) if parts.get("negate") else value


def duckdb_field(field: pa.Field) -> pa.Field:
    """Return the field as DuckDB gets it: a time as a count, a float32 as its shortest text, and no dictionaries."""
    type_ = _decoded(field.type)
    if pa.types.is_float32(type_):
        return field.with_type(pa.string())
    return field.with_type(pa.int64() if pa.types.is_timestamp(type_) else type_)


def _decoded(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _column(node: Any, schema: pa.Schema) -> TypedSql:
    """Return a column, or a field in it; times, which come as counts, are floored to microseconds."""
    root, *path = (part.name for part in node.parts)
    name = resolve(root, schema.names)
    sql, type_ = '"' + name.replace('"', '""') + '"', _decoded(schema.field(name).type)
    if pa.types.is_timestamp(type_):
        sql = COUNTS[type_.unit].format(sql)
    return reduce(member, path, TypedSql(sql, spark_type(type_), inside=type_))


def member(value: TypedSql, name: str) -> TypedSql:
    """Return a field of a struct."""
    if value.inside is None or not pa.types.is_struct(value.inside):
        refuse(f"{value.type} has no field {name!r}")
    field = value.inside.field(resolve(name, value.inside.names))
    return _part(f"struct_extract({value.sql}, {quote_text(field.name)})", field.type)


def _entry(node: Any, schema: pa.Schema) -> TypedSql:
    value, key = translate(node.this, schema), translate(node.expressions[0], schema)
    if value.inside is None or not pa.types.is_map(value.inside) or not isinstance(key.literal, str):
        refuse(f"the embedded engine has no {node.sql('spark')}")
    return _part(f"map_extract_value({value.sql}, {key.sql})", value.inside.item_type)


def _json(node: Any, schema: pa.Schema) -> TypedSql:
    """Return to_json(struct(columns)) as Spark writes it: NULL is left out, times have milliseconds in UTC."""
    values: Any = node.expressions[0] if len(node.expressions) == 1 else None
    if type(values).__name__ != "Anonymous" or values.name.lower() != "struct" or not values.expressions:
        refuse(f"the embedded engine has no {node.sql('spark')}", "It has to_json(struct(*)) and columns for the star.")
    members = []
    for column in values.expressions:
        if type(column).__name__ != "Column" or len(column.parts) > 1 or column.name not in schema.names:
            refuse(f"the embedded engine has no {column.sql('spark')} inside of to_json(struct(...))")
        value = _column(column, schema)
        if value.kind not in JSON or (value.kind == "DECIMAL" and value.digits[1] > MICROSECOND_DIGITS):
            refuse(
                f"the embedded engine has no JSON of {value.type}, which {column.name} is", "Name the other columns."
            )
        name = quote_text(json.dumps(column.name, ensure_ascii=False) + ":")
        text = cast(value, "STRING").sql if value.kind in NUMBERS else ""  # others have their own way into JSON
        members.append(f"({name} || {JSON[value.kind].format(x=value.sql, text=text)})")
    return TypedSql(f"('{{' || concat_ws(',', {', '.join(members)}) || '}}')", "STRING")


def _json_member(node: Any, schema: pa.Schema) -> TypedSql:
    member = json_member(*(translate(child, schema) for child in node.expressions))
    if member is None:
        refuse(
            f"the embedded engine has no {node.sql('spark')}",
            "It has get_json_object(text, '$.name'), with more names, and numbers in brackets.",
        )
    return member


def _validated(node: Any, schema: pa.Schema) -> TypedSql:
    """Return a text that is UTF-8; of bytes NULL if they are not, and all other text is."""
    values = node.expressions[0]
    if type(values).__name__.endswith("Cast") and (value := translate(values.this, schema)).kind == "BINARY":
        return cast(value, "STRING", attempt=True)
    return translate(values, schema)


def _fault(node: Any, schema: pa.Schema) -> TypedSql:
    """Return what is wrong with a value that is cast, by the marker of `attempts`."""
    value, before, after = node.expressions
    return fault(translate(value.this, schema), _target(value), before.name, after.name)


CALLS = {"to_json": _json, "get_json_object": _json_member, "try_validate_utf8": _validated, MARKER: _fault}


def _part(sql: str, type_: pa.DataType) -> TypedSql:
    if pa.types.is_timestamp(type_):
        refuse("the embedded engine has no times inside of a struct or map")
    if pa.types.is_float32(type_):
        return TypedSql(sql, "FLOAT inside of a struct or map")
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
            condition = _call("EQ", translate(node.this, schema), condition)
        value = _call("If", condition, translate(branch.args["true"], schema), value)
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
    "Dot": lambda node, schema: member(translate(node.this, schema), node.expression.name),
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
    left, right = _alike(left, right)
    if left.kind not in ("INT", "DOUBLE") or (left.kind == "DOUBLE" and sign == "%"):
        refuse(f"the embedded engine has no {left.type} {sign} {right.type}")
    return TypedSql(f"({left.sql} {sign} {_nonzero(right, divisor) if sign == '%' else right.sql})", left.type)


def _nonzero(value: TypedSql, literal: str | int | None) -> str:
    return value.sql if literal else f"CASE {value.sql} WHEN 0 THEN error('division by zero') ELSE {value.sql} END"


def _alike(*values: TypedSql) -> list[TypedSql]:
    """Return the values in the one type in which Spark would put them together."""
    typed = [value for value in values if value.kind != "NULL"]
    kinds, types = {value.kind for value in typed}, {value.type for value in typed}
    if len(types) == 1 and typed[0].kind in SCALARS.split():
        target = typed[0].type
    elif kinds == {"INT"}:
        target = max(types, key=lambda type_: DIGITS[type_])
    elif kinds and kinds <= {"INT", "DECIMAL"}:
        scale = max(value.digits[1] for value in typed)
        target = decimal(max(value.digits[0] - value.digits[1] for value in typed) + scale, scale)
    elif kinds == {"INT", "DOUBLE"}:
        target = "DOUBLE"
    else:
        refuse(f"{' and '.join(sorted(types)) or 'only NULL'} together", "Cast them to one type.")
    return [cast(value, target) for value in values]


def _call(name: str, *values: TypedSql) -> TypedSql:
    """Return the call of a function or an operator by the first rule that takes the values."""
    for rule in re.finditer(rf"^{re.escape(name)}\((.*?)\) (\w+) = (.*)$", RULES, re.MULTILINE):
        *first, last = rule[1].split(", ")
        arguments = [*first, *[last.strip("*")] * (len(values) - len(first) if "*" in last else 1)]
        if len(arguments) == len(values):
            named = list(zip(arguments, values, strict=True))
            same = [value for argument, value in named if argument == "same"]
            alike = _alike(*same) if same else []
            rest = iter(alike)
            sql = [next(rest).sql if argument == "same" else ARGUMENTS[argument](value) for argument, value in named]
            if None not in sql:
                return TypedSql(_filled(rule[3], sql), alike[0].type if rule[2] == "SAME" else rule[2])
    return refuse(f"the embedded engine has no {name}({', '.join(value.type for value in values)}) like this")


def _filled(template: str, parts: Sequence[str | None]) -> str:
    rest = (part for part in parts if part is not None)
    return re.sub(r"\{(.*?)\}", lambda hole: hole[1].join(rest) if hole[1] else next(rest), template)


def _of(kind: str, target: str = "") -> Callable[[TypedSql], str | None]:
    return lambda value: cast(value, target or kind).sql if value.kind in (kind, "NULL") else None


def _fixed(kind: type, fits: Callable[[Any], Any]) -> Callable[[TypedSql], str | None]:
    return lambda value: value.sql if isinstance(value.literal, kind) and fits(value.literal) else None


def _pattern(text: str | int | None) -> str | None:
    pattern = java_to_re2(text) if isinstance(text, str) else None
    return None if pattern is None else quote_text(pattern)


def _lettered(text: str) -> str:
    strange = f"error('letters whose case is not the same everywhere: ' || {text})"
    return f"CASE WHEN regexp_matches({text}, '{STRANGE_LETTER}') THEN {strange} ELSE {text} END"


# All but the letters whose case Java and DuckDB change alike, whatever Unicode they know, and those without case.
STRANGE_LETTER = (
    r"[^\x00-\xDE\xE0-\x{12F}\x{131}-\x{148}\x{14A}-\x{17F}\x{300}-\x{33F}\x{400}-\x{45F}\x{2000}-\x{206F}"
    r"\x{2E80}-\x{9FFF}\x{AC00}-\x{D7A3}\x{1F000}-\x{1FAFF}]"
)
ARGUMENTS: dict[str, Callable[[TypedSql], str | None]] = {
    "any": lambda value: value.sql,
    "null": lambda value: value.sql if value.sql == "NULL" else None,
    "text": _of("STRING"),
    "written": lambda value: cast(value, "STRING").sql if value.kind in ("STRING", "NULL", *NUMBERS) else None,
    "binary": _of("BINARY"),
    "truth": _of("BOOLEAN"),
    "time": _of("TIMESTAMP"),
    "whole": _of("INT", "BIGINT"),
    "moment": _of("STRING", "TIMESTAMP"),
    "divisor": lambda value: _nonzero(cast(value, "BIGINT"), value.literal) if value.kind == "INT" else None,
    "seconds": lambda value: value.sql if value.kind == "DECIMAL" and value.digits[1] <= MICROSECOND_DIGITS else None,
    "letters": lambda value: _lettered(value.sql) if value.kind == "STRING" else None,
    "literal": _fixed(str, lambda _: True),
    "word": _fixed(str, bool),
    "index": _fixed(int, bool),
    "start": _fixed(int, lambda number: number > 0),
    "count": _fixed(int, lambda number: number >= 0),
    "utf8": _fixed(str, lambda text: text.upper() == "UTF-8"),
    # Before 4.2 Spark matches nothing by a pattern with a character beyond these.
    "like": _fixed(str, lambda text: "\\" not in text and all(letter <= "\uffff" for letter in text)),
    "pattern": lambda value: _pattern(value.literal),
    "endless": lambda value: None if str(value.literal).endswith("$") else _pattern(value.literal),
    "solid": _fixed(str, SOLID.fullmatch),
    "replacement": _fixed(str, lambda text: not re.search(r"[\\$]", text)),
}
