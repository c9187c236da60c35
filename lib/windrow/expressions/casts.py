"""Values of the translation, with Spark's types, and how DuckDB casts them as Spark would.

A time is a whole number of microseconds, so neither a time zone nor a float can change it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa

from windrow.expressions.attempts import MAX_QUOTED

OTHERWISE = "Run with --engine spark, or rewrite it."

SCALARS = "INT DECIMAL DOUBLE BOOLEAN STRING BINARY DATE TIMESTAMP TIMESTAMP_NTZ"
DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
MAX_DIGITS, MICROSECOND_DIGITS = 38, 6
TYPES = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "double": "DOUBLE"}
TYPES |= {"float": "FLOAT", "bool": "BOOLEAN", "date32[day]": "DATE", "null": "NULL"}
TYPES |= dict.fromkeys(("string", "large_string", "string_view"), "STRING")
TYPES |= dict.fromkeys(("binary", "large_binary", "binary_view"), "BINARY")


@dataclass(frozen=True, slots=True)
class TypedSql:
    """A piece of SQL for DuckDB and the Spark type of its result.

    `literal` is the value if the text is a literal, `inside` the Arrow type in which fields are looked up.
    """

    sql: str
    type: str
    literal: str | int | None = None
    inside: pa.DataType | None = None

    @property
    def kind(self) -> str:
        """Return what operators and casts distinguish: the type without its width."""
        return "INT" if self.type in DIGITS else self.type.partition("(")[0]

    @property
    def digits(self) -> tuple[int, int]:
        """Return precision and scale as Spark counts them."""
        if self.type in DIGITS:
            return len(str(self.literal).strip("-")) if self.literal is not None else DIGITS[self.type], 0
        precision, scale = re.findall(r"\d+", self.type)
        return int(precision), int(scale)


def spark_type(type_: pa.DataType) -> str:
    """Return Spark's name of an Arrow type."""
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ"
    return TYPES.get(str(type_), str(type_).replace("decimal128", "DECIMAL"))


def decimal(precision: int, scale: int = 0) -> str:
    """Return a DECIMAL type; refuse one with too many digits."""
    if not 0 <= scale <= precision <= MAX_DIGITS:
        refuse(f"a number of more than {MAX_DIGITS} digits", "Cast to a smaller DECIMAL first.")
    return f"DECIMAL({precision}, {scale})"


class UnsupportedExpression(Exception):
    """An expression cannot be used: the reason and a hint; the mapping adds which one it is."""


def refuse(reason: str, hint: str = OTHERWISE) -> NoReturn:
    """Refuse a text; never returns."""
    raise UnsupportedExpression(reason, hint)


def closest_name(name: str, names: Sequence[str]) -> str:
    """Say which of the names was probably meant."""
    near = difflib.get_close_matches(name, names, 1, 0.5)
    return f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."


def resolve(root: str, columns: Sequence[str]) -> str:
    """Return the column that a name stands for; case is ignored, as on Spark."""
    matching = [column for column in columns if column.lower() == root.lower()]
    if len(matching) > 1:
        refuse(f"{root!r} can be {' or '.join(matching)}", "Rename one of these columns of the input.")
    return matching[0] if matching else refuse(f"the input has no column {root!r}", closest_name(root, columns))


def quote_text(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"


# Casts between kinds of types. {text} is a text in a form that both engines read alike, or else makes the cast fail.
BLANK, SPACE = r"[\x00-\x20\x7F]*", r"[\x00-\x20]*"
NUMBER = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
DAY, TIME = r"(\d\d\d\d-\d\d-\d\d)", r"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)(?:(\.\d\d?\d?\d?\d?\d?)\d*)?"
ZONE = r"(Z|[+-](?:0\d|1[0-7]):[0-5]\d)"
# At most 200 digits and an exponent of two, so that no double is too large.
DOUBLE = r"([+-]?(?:[0-9]{1,200}\.?[0-9]{0,200}|\.[0-9]{1,200})(?:[eE][+-]?[0-9]{1,2})?)"
FORMS = {
    "DOUBLE": {
        rf"{SPACE}{DOUBLE}{SPACE}": r"\1",
        rf"{SPACE}(?i:nan){SPACE}": "nan",
        rf"{SPACE}([+-]?)(?i:inf|infinity){SPACE}": r"\1inf",
    },
    "INT": {rf"{BLANK}([+-]?[0-9]+){BLANK}": r"\1"},
    "DECIMAL": {rf"{SPACE}{NUMBER}{SPACE}": r"\1"},
    "BOOLEAN": {rf"{BLANK}(?i:t|true|y|yes|1){BLANK}": "true", rf"{BLANK}(?i:f|false|n|no|0){BLANK}": "false"},
    "TIMESTAMP": {
        rf"{BLANK}{DAY}{BLANK}": r"\1 00:00:00Z",
        rf"{BLANK}{DAY}[ T]{TIME}{BLANK}": r"\1 \2\3Z",
        rf"{BLANK}{DAY}[ T]{TIME}{ZONE}{BLANK}": r"\1 \2\3\4",
    },
}
# Texts of other forms that Spark may still read: DuckDB has no other digits and errs in exponents (90e-3).
UNSURE = {
    **dict.fromkeys(("INT", "BOOLEAN"), "$."),
    "DOUBLE": rf"^{SPACE}[+-]?(?:0[xX].*|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?){SPACE}$",
    "DECIMAL": rf"^{SPACE}[+-]?(?:\pN+\.?\pN*|\.\pN+)(?:[eE][+-]?\pN+)?{SPACE}$",
    # A year of four to six digits, alone or with a month, or a time of day; Spark accepts no other text with digits.
    "TIMESTAMP": rf"^{BLANK}[+-]?(?:[0-9]{{4,6}}(?:-[0-9]|{BLANK}$)|T[0-9]|[0-9]{{1,2}}:)",
}
# The text of a DOUBLE in Java's form: the fewest digits that read back the same, but two where one digit is less near,
# which happens only up to {tiny}.
FEW = "CASE WHEN abs({x}) <= {tiny} THEN format('{{:.1e}}', {exact}) ELSE CAST({x} AS STRING) END"
WHOLE, POWER = rf"regexp_extract({FEW}, '^-?(\d+)', 1)", f"regexp_extract({FEW}, 'e(.*)', 1)"
DIGITS_READ = rf"({WHOLE} || regexp_extract({FEW}, '\.(\d+)', 1))"
EXPONENT = f"length({WHOLE}) - 1 - length({DIGITS_READ}) + length(ltrim({DIGITS_READ}, '0'))"
MEANING = f"trim({DIGITS_READ}, '0')"
FLOAT_TEXT = (
    "CASE WHEN isnan({x}) THEN 'NaN' WHEN isinf({x}) THEN CASE WHEN {x} > 0 THEN 'Infinity' ELSE '-Infinity' END "
    "WHEN {x} = 0 OR (abs({x}) >= 0.001 AND abs({x}) < 10000000) THEN CAST({x} AS STRING) "
    f"ELSE CASE WHEN {{x}} < 0 THEN '-' ELSE '' END || {MEANING}[1] || '.' || coalesce(nullif({MEANING}[2:], ''), '0') "
    f"|| 'E' || ({EXPONENT} + coalesce(TRY_CAST({POWER} AS INT), 0)) END"
)
DOUBLE_TEXT = FLOAT_TEXT.replace("{tiny}", "1e-322").replace("{exact}", "{x}")
# A FLOAT comes as its shortest text; a number this short has the same digits as a DOUBLE.
SINGLE_TEXT = FLOAT_TEXT.replace("{tiny}", "1e-43").replace("{exact}", "CAST({x} AS FLOAT)")
CASTS = {
    **dict.fromkeys(("INT INT", "INT DECIMAL", "DECIMAL DECIMAL", "INT DOUBLE"), "{cast}({x} AS {type})"),
    **dict.fromkeys(("INT STRING", "BOOLEAN STRING"), "CAST({x} AS STRING)"),
    **dict.fromkeys(("STRING INT", "STRING DECIMAL", "STRING DOUBLE", "STRING BOOLEAN"), "{cast}({text} AS {type})"),
    "INT BOOLEAN": "({x} <> 0)",
    "DECIMAL DOUBLE": "CAST(CAST({x} AS STRING) AS DOUBLE)",
    "FLOAT DOUBLE": "CAST(CAST({x} AS FLOAT) AS DOUBLE)",
    "DECIMAL STRING": r"regexp_replace(CAST({x} AS STRING), '^(-?)\.', '\10.')",
    "DECIMAL INT": "{cast}(trunc({x}) AS {type})",
    "DOUBLE INT": "{cast}(trunc({x}) AS {type})",
    "FLOAT STRING": SINGLE_TEXT.replace("{x}", "CAST({x} AS DOUBLE)"),
    "DOUBLE STRING": DOUBLE_TEXT,
    "BINARY STRING": "decode({x})",
    "STRING BINARY": "encode({x})",
    "STRING TIMESTAMP": "epoch_us({cast}({text} AS TIMESTAMPTZ))",
    "TIMESTAMP_NTZ TIMESTAMP": "{x}",
    "DATE TIMESTAMP": "(date_diff('day', DATE '1970-01-01', {x}) * 86400000000)",
}


def cast(value: TypedSql, target: str, *, attempt: bool = False) -> TypedSql:
    """Return a value in another type, as Spark casts it; `attempt` gives NULL where it cannot."""
    kind = TypedSql("", target).kind
    if value.type == target:
        return replace(value, literal=None)
    if value.kind == "NULL":
        return TypedSql(f"CAST(NULL AS {'BIGINT' if kind.startswith('TIMESTAMP') else target})", target)
    template = CASTS.get(f"{value.kind} {kind}")
    if template is None:
        refuse(f"the embedded engine has no cast of {value.type} to {target}")
    if attempt and f"{value.kind} {kind}" == "BINARY STRING":
        template = "try(decode({x}))"
    verb, text = ("TRY_CAST" if attempt else "CAST"), _readable(value.sql, kind, attempt=attempt)
    return TypedSql(template.format(x=value.sql, cast=verb, type=target, text=text), target)


def fault(value: TypedSql, target: str, before: str, after: str) -> TypedSql:
    """Return the sentence that a value cannot be cast, from the texts around it; NULL if it can."""
    kind = TypedSql("", target).kind
    template = "" if value.type == target else CASTS.get(f"{value.kind} {kind}", "")
    if "{cast}" not in template and value.kind != "BINARY":
        return TypedSql("CAST(NULL AS STRING)", "STRING")
    attempt = cast(value, target, attempt=True).sql
    shown = f"hex({value.sql})" if value.kind == "BINARY" else cast(value, "STRING").sql
    sentence = f"{quote_text(before)} || substring({shown}, 1, {MAX_QUOTED}) || {quote_text(after)}"
    return TypedSql(f"CASE WHEN {value.sql} IS NOT NULL AND {attempt} IS NULL THEN {sentence} END", "STRING")


def _readable(text: str, kind: str, *, attempt: bool) -> str:
    """Return a text in the form that a cast reads correctly; NULL, or a text that no cast reads, if there is none.

    A text that Spark might still read must not silently become NULL: for it, TRY_CAST fails too.
    """
    whens = [
        f"WHEN regexp_matches({text}, '^{form}$') THEN regexp_replace({text}, '^{form}$', '{result}')"
        for form, result in FORMS.get(kind, {}).items()
    ]
    if attempt:
        whens.append(f"WHEN regexp_matches({text}, '{UNSURE.get(kind)}') THEN error('perhaps a {kind}: ' || {text})")
        return f"CASE {' '.join(whens)} END"
    return f"CASE {' '.join(whens)} ELSE 'not a {kind}: ' || {text} END"
