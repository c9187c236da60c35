"""The names and types of a record's fields, as `[format] fields` gives them.

Types have their Arrow names: `int64`, `string`, `decimal(10, 2)`, `timestamp[us]`. A blank and the pattern in which
times are written may follow `timestamp[...]`, `date` or `time[...]`. `string(n)` and `binary(n)` have n bytes. Types
can nest: `list<int64>`, `list<int64, 3>`, `map<string, int64>`, `struct<a: int64, b: list<string>>`. `json` is the text
of a JSON value.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from windrow.errors import SettingsError
from windrow.formats.times import TimePattern
from windrow.model.commits import FEED_COLUMNS

PLAIN = {
    **{f"int{bits}": pa.type_for_alias(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": pa.type_for_alias(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    **{f"timestamp[{unit}]": pa.timestamp(unit, tz="UTC") for unit in ("s", "ms", "us", "ns")},
    **{f"time[{unit}]": pa.time32(unit) for unit in ("s", "ms")},
    **{f"time[{unit}]": pa.time64(unit) for unit in ("us", "ns")},
}
NAMES = {type_: name for name, type_ in PLAIN.items()}
COMPOSED = (
    "decimal(p, s)", "string(n)", "binary(n)", "list<...>", "list<..., n>", "map<string, ...>", "struct<name: ...>",
)  # fmt: skip
ELSEWHERE = {  # the names in other systems
    "bigint": "int64", "long": "int64", "int": "int32", "integer": "int32", "short": "int16", "smallint": "int16",
    "byte": "int8", "tinyint": "int8", "double": "float64", "float": "float32", "real": "float32", "boolean": "bool",
    "text": "string", "str": "string", "varchar": "string", "bytes": "binary", "blob": "binary", "date32": "date",
    "timestamp": "timestamp[us]", "datetime": "timestamp[us]", "numeric": "decimal(p, s)", "decimal": "decimal(p, s)",
    "array": "list<...>", "list": "list<...>", "struct": "struct<name: ...>", "map": "map<string, ...>",
    "time": "time[us]", "time64": "time[us]", "time32": "time[ms]",
}  # fmt: skip
RAW_JSON = "json"  # the unchanged text of a member
MAX_DIGITS = 38
DEEPEST = 32
TIMED = re.compile(r"(date|time\[\w+\]|timestamp\[\w+\]) (.+)", re.DOTALL)
SIZED = re.compile(r"(.*),\s*(\d{1,9})", re.DOTALL)
DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
FIXED = re.compile(r"(string|binary)\(\s*(\d{1,9})\s*\)")


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its name, its type, and the `strptime` pattern of a time that is not in ISO 8601.

    `width` is the size of a fixed-size field in bytes.
    """

    name: str
    type: pa.DataType
    pattern: str | None = None
    width: int | None = None


def parse(types: Mapping[str, str]) -> tuple[Field, ...]:
    """Read the types of fields. Raises SettingsError, which names the field and the most similar type."""
    if not types:
        raise SettingsError("the format has no fields", 'Add them, for example fields = { ts = "timestamp[us]" }.')
    _require_names(types)
    return tuple(_field(name, text.strip()) for name, text in types.items())


def require_unsized(fields: Iterable[Field], format_: str) -> None:
    """Raise SettingsError for a fixed-size field in a format without fixed sizes."""
    for field in fields:
        if field.width is not None:
            without = type_text(field).partition("(")[0]
            raise SettingsError(f"field {field.name!r}: {format_} has no fixed-size fields", f"Write {without!r}.")


def type_text(field: Field) -> str:
    """Return the type of a field as the settings write it, without the pattern of a time."""
    if field.pattern == RAW_JSON:
        return RAW_JSON
    return _text(field.type) if field.width is None else f"{_text(field.type)}({field.width})"


def _field(name: str, text: str) -> Field:
    try:
        if timed := TIMED.fullmatch(text):
            return Field(name, _type(timed[1]), _pattern(*timed.groups()))
        if text == RAW_JSON:
            return Field(name, pa.string(), RAW_JSON)
        if fixed := FIXED.fullmatch(text):
            return Field(name, PLAIN[fixed[1]], width=_width(text, int(fixed[2])))
        return Field(name, _type(text))
    except SettingsError as wrong:
        raise SettingsError(f"field {name!r}: {wrong.message}", wrong.hint) from None


def _width(text: str, width: int) -> int:
    if not width:
        raise SettingsError(f"{text!r} has no bytes", "Use a size of at least 1.")
    return width


def _type(text: str, depth: int = 0) -> pa.DataType:
    if depth > DEEPEST:
        raise SettingsError("the type nests too deeply", f"Nest at most {DEEPEST} levels.")
    if text in PLAIN:
        return PLAIN[text]
    if decimal := DECIMAL.fullmatch(text):
        digits, scale = int(decimal[1]), int(decimal[2])
        if not scale <= digits or not 1 <= digits <= MAX_DIGITS:
            raise SettingsError(
                f"{text} is impossible", f"Use 1 to {MAX_DIGITS} digits, and a scale no larger than that."
            )
        return pa.decimal128(digits, scale)
    head, bracket, inside = text.partition("<")
    if bracket and text.endswith(">") and head in NESTED:
        return NESTED[head](inside[:-1].strip(), depth)
    if FIXED.fullmatch(text) or TIMED.fullmatch(text):
        raise SettingsError(
            f"{text!r} is inside another type", "Leave out sizes and patterns inside lists and structs."
        )
    raise SettingsError(f"unknown type {text!r}", _nearest(text))


def _list(text: str, depth: int) -> pa.DataType:
    if not (sized := SIZED.fullmatch(text)):
        return pa.list_(_type(text, depth + 1))
    if not int(sized[2]):
        raise SettingsError(f"a list of {sized[2]} values", "Use a length of at least 1, or none.")
    return pa.list_(_type(sized[1].strip(), depth + 1), int(sized[2]))


def _map(text: str, depth: int) -> pa.DataType:
    key, _, value = text.partition(",")
    if key.strip() != "string" or not value:
        raise SettingsError(f"{text!r} in a map is not 'string, type'", "Write map<string, int64>: names are texts.")
    return pa.map_(pa.string(), _type(value.strip(), depth + 1))


def _struct(text: str, depth: int) -> pa.DataType:
    fields = []
    for member in _members(text):
        name, colon, type_ = member.partition(":")
        if not colon or not name.strip():
            wrong = f"{member.strip()!r} in a struct is not 'name: type'"
            raise SettingsError(wrong, "Write struct<a: int64, b: string>.")
        fields.append((name.strip(), _type(type_.strip(), depth + 1)))
    return pa.struct(fields)


NESTED = {"list": _list, "map": _map, "struct": _struct}


def _members(text: str) -> list[str]:
    members, depth = [""], 0
    for letter in text:
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and not depth:
            members.append("")
        else:
            members[-1] += letter
    names = [member.partition(":")[0].strip() for member in members]
    for name in _twice(names):
        raise SettingsError(f"a struct has {name!r} twice", "Rename one; names are not case-sensitive.")
    return members


def _pattern(type_: str, text: str) -> str:
    try:
        pattern = TimePattern.of(text, of_day=type_.startswith("time["))
    except ValueError as error:
        raise SettingsError(
            f"the pattern {text!r}: {error}", "Write it as for strptime, such as %d/%m/%Y %H:%M:%S."
        ) from None
    if type_ == "date" and not pattern.date:
        raise SettingsError(f"the pattern {text!r} has more than a date", "Use timestamp[us].")
    return text


def _nearest(text: str) -> str:
    head = re.split(r"[\s<(\[]", text.strip().lower(), maxsplit=1)[0]
    known = [*PLAIN, *COMPOSED]
    near = [ELSEWHERE[head]] if head in ELSEWHERE else difflib.get_close_matches(text.lower(), known, 1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else f"Known types: {', '.join(known)}."


def _require_names(types: Mapping[str, str]) -> None:
    if not all(types):
        raise SettingsError("a field has an empty name", "Give it a name.")
    for name in [name for name in types if name.lower() in FEED_COLUMNS]:
        raise SettingsError(f"field {name!r}: Delta reserves this name", "Choose another name.")
    for name in _twice(types):
        raise SettingsError(f"field {name!r} appears twice", "Rename one; names are not case-sensitive.")


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(map(str.lower, names)).items() if count > 1]


def _text(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"list<{_text(type_.value_type)}>"
    if pa.types.is_fixed_size_list(type_):
        return f"list<{_text(type_.value_type)}, {type_.list_size}>"
    if pa.types.is_map(type_):
        return f"map<string, {_text(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{member.name}: {_text(member.type)}' for member in type_)}>"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    return NAMES[type_]
