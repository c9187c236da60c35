"""Spark's get_json_object in DuckDB's SQL."""

from __future__ import annotations

import re

from windrow.expressions.casts import TypedSql, cast, quote_text

# What a path of get_json_object leads through: fields by name, and then elements by number.
STEP = re.compile(r"""\.([\w@:-]+)|\['([\w@:. -]+)'\]|(?<!\$)\[(\d+)\]""")
# DuckDB reads JSON that Jackson, Spark's parser, refuses: trailing commas, NaN, and what exceeds Jackson's limits.
LAX = (
    r",[ \t\r\n]*[}\]]|[:,\[][ \t\r\n]*-?(?i:nan|inf(?:inity)?)[ \t\r\n]*[,}\]]|[0-9.]{1000}|"
    r"(?:[\[{][^\[{]*){1000}"
)
# An object or array in which Spark writes a number or a character in another way than DuckDB.
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


def json_member(*values: TypedSql) -> TypedSql | None:
    """Return get_json_object(text, path) as Spark finds it: the first field of a name that has a value.

    What Spark reads differently, or may, is an error: JSON that is not quite JSON, a name twice, a number beyond a
    double. None for other arguments than a text and a path of names and numbers.
    """
    path = str(values[-1].literal) if values else ""
    steps = STEP.findall(path)
    written = "$" + "".join(step[0] for step in STEP.finditer(path))
    if [value.kind for value in values] != ["STRING", "STRING"] or not steps or written != path:
        return None
    text, places = values[0].sql, ["$"]
    for dotted, bracketed, number in steps:
        places.append(places[-1] + (f"[{number}]" if number else f'."{dotted or bracketed}"'))
    keys = [f"json_keys({text}, {quote_text(place)})" for place in places[:-1]]
    member = f"json_extract_string({text}, {quote_text(places[-1])})"
    named = not steps[-1][2]
    there = f"json_type({text}, {quote_text(places[-1])}) IS NOT NULL"
    sql = MEMBER.format(
        x=text,
        path=quote_text(places[-1]),
        lax=LAX,
        twice=" OR ".join(f"coalesce(length({key}) > length(list_distinct({key})), false)" for key in keys),
        null="" if named else f"WHEN {there} THEN 'null'",
        found=member,
        double=cast(TypedSql(f"CAST({member} AS DOUBLE)", "DOUBLE"), "STRING").sql,
        whole=f"CASE WHEN regexp_matches({member}, '{UNLIKE}') "
        f"THEN error('Spark may write this JSON otherwise: ' || {member}) ELSE {member} END",
    )
    return TypedSql(f"({sql})", "STRING")
