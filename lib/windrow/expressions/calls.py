"""Calls of functions and operators that both engines know, by rules for the types of their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from windrow.expressions.casts import DIGITS, MICROSECOND_DIGITS, SCALARS, TypedSql, cast, decimal, quote_text, refuse

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
NUMBERS = ("INT", "DECIMAL", "BOOLEAN", "DOUBLE", "FLOAT")
# Patterns that Java and RE2 match alike, some written differently (RE2); a solid one never matches an empty text.
ATOM = r"(?:[\w /:;,=@#%&!~<>\"'-]|\\[dDwW./\\-]|\[\^?(?:\w-\w|[\w /:;,.=@#+*]|\\[dw.])+-?\])"
MORE = rf"(?:{ATOM}|\.|\\[sS])(?:[+*?]\??|\{{\d{{1,2}}(?:,\d{{0,2}})?\}}\??)?"
PATTERN = re.compile(rf"\^?(?:{MORE}|\||\((?![?*+{{])|\)(?![+*?{{]))*\$?")
LINE_END = r"\n\r\x{85}\x{2028}\x{2029}"
RE2 = {".": f"[^{LINE_END}]", r"\s": r"[ \t-\r]", r"\S": r"[^ \t-\r]", "$": rf"(?:\r\n|[{LINE_END}])?\z"}
EATS_RETURN = re.compile(r"(?:\[\^[^\]]*\]|\\[sDW])(?![+*](?!\?))")
SOLID = re.compile(rf"\^?(?:{ATOM}\+?)+")


def call(name: str, *values: TypedSql) -> TypedSql:
    """Return the call of a function or an operator by the first rule that accepts the values."""
    for rule in re.finditer(rf"^{re.escape(name)}\((.*?)\) (\w+) = (.*)$", RULES, re.MULTILINE):
        *first, last = rule[1].split(", ")
        arguments = [*first, *[last.strip("*")] * (len(values) - len(first) if "*" in last else 1)]
        if len(arguments) == len(values):
            named = list(zip(arguments, values, strict=True))
            same = [value for argument, value in named if argument == "same"]
            alike = in_one_type(*same) if same else []
            rest = iter(alike)
            sql = [next(rest).sql if argument == "same" else ARGUMENTS[argument](value) for argument, value in named]
            if None not in sql:
                return TypedSql(_fill(rule[3], sql), alike[0].type if rule[2] == "SAME" else rule[2])
    return refuse(f"the embedded engine has no {name}({', '.join(value.type for value in values)}) like this")


def _fill(template: str, parts: Sequence[str | None]) -> str:
    rest = (part for part in parts if part is not None)
    return re.sub(r"\{(.*?)\}", lambda hole: hole[1].join(rest) if hole[1] else next(rest), template)


def nonzero(value: TypedSql, literal: str | int | None) -> str:
    """Return SQL for a divisor that stops the run if it is 0."""
    return value.sql if literal else f"CASE {value.sql} WHEN 0 THEN error('division by zero') ELSE {value.sql} END"


def in_one_type(*values: TypedSql) -> list[TypedSql]:
    """Return the values cast to the one type that Spark would choose for them."""
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


def _of(kind: str, target: str = "") -> Callable[[TypedSql], str | None]:
    return lambda value: cast(value, target or kind).sql if value.kind in (kind, "NULL") else None


def _fixed(kind: type, fits: Callable[[Any], Any]) -> Callable[[TypedSql], str | None]:
    return lambda value: value.sql if isinstance(value.literal, kind) and fits(value.literal) else None


def _pattern(text: str | int | None) -> str | None:
    pattern = java_to_re2(text) if isinstance(text, str) else None
    return None if pattern is None else quote_text(pattern)


def java_to_re2(text: str) -> str | None:
    """Return a Java pattern in RE2 syntax, None if it may mean something else there."""
    if not PATTERN.fullmatch(text):
        return None
    # Java's $ also matches before a line end at the end of the text, but never inside \r\n.
    if text.endswith("$") and ("|" in re.sub(r"\([^()]*\)", "", text) or EATS_RETURN.search(text)):
        return None
    return re.sub(r"\[.*?\]|\\.|\.|\$$", lambda part: RE2.get(part[0], part[0]), text)


def _lettered(text: str) -> str:
    strange = f"error('letters whose case is not the same everywhere: ' || {text})"
    return f"CASE WHEN regexp_matches({text}, '{STRANGE_LETTER}') THEN {strange} ELSE {text} END"


# All but the letters whose case Java and DuckDB change alike in any version of Unicode, and those without case.
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
    "divisor": lambda value: nonzero(cast(value, "BIGINT"), value.literal) if value.kind == "INT" else None,
    "seconds": lambda value: value.sql if value.kind == "DECIMAL" and value.digits[1] <= MICROSECOND_DIGITS else None,
    "letters": lambda value: _lettered(value.sql) if value.kind == "STRING" else None,
    "literal": _fixed(str, lambda _: True),
    "word": _fixed(str, bool),
    "index": _fixed(int, bool),
    "start": _fixed(int, lambda number: number > 0),
    "count": _fixed(int, lambda number: number >= 0),
    "utf8": _fixed(str, lambda text: text.upper() == "UTF-8"),
    # Before 4.2, a pattern with a character beyond these matches nothing in Spark.
    "like": _fixed(str, lambda text: "\\" not in text and all(letter <= "\uffff" for letter in text)),
    "pattern": lambda value: _pattern(value.literal),
    "endless": lambda value: None if str(value.literal).endswith("$") else _pattern(value.literal),
    "solid": _fixed(str, SOLID.fullmatch),
    "replacement": _fixed(str, lambda text: not re.search(r"[\\$]", text)),
}
