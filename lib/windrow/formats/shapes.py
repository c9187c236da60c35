"""Translate typed fields to msgspec types, and the decoded values to Arrow.

Types are strict: a text that looks like a number is not a number, an integer has no point and fits its type, and
nothing is rounded except to the nearest float. Only decimals may be numbers or texts, because JSON readers that use
floats would lose their digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, Optional, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.compiled import Flags
from windrow.errors import SettingsError
from windrow.formats.conversion import convert
from windrow.formats.fields import RAW_JSON, Field
from windrow.formats.texts import Texts, are_utf8

FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NEGATIVE_ZERO = re.compile(rb"-0(?![.\deE])")


class Node(NamedTuple):
    """A value within a record: its field, its type, its path (`$.a.b[3]`) and the value."""

    field: Field
    type: pa.DataType
    path: str
    value: Any


class NumberText(str):
    """The text of a JSON number with a point or an exponent, so that no digit is lost."""

    __slots__ = ()


class Repeated(dict[str, Any]):
    """An object in which the last of several members with one name counts; `pairs` has all of them."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def convert_value(kind: Any, value: Any) -> Any:
    """Convert a value to a type unknown to msgspec, as its `dec_hook`; `of` raises ValueError."""
    return kind.of(value)


def structure(fields: Sequence[Field]) -> type[msgspec.Struct]:
    """Return the class of a record: attributes `_0`, `_1`... for the fields in order, None if a member is missing.

    Raises SettingsError for a field name with quotes or backslashes.
    """
    names = {f"_{number}": field.name for number, field in enumerate(fields)}
    members = [(member, _annotation(field), None) for member, field in zip(names, fields, strict=True)]
    try:
        return msgspec.defstruct("Record", members, rename=names, gc=False)
    except ValueError as error:
        raise SettingsError(f"a field has an invalid name: {error}", "Leave out quotes and backslashes.") from error


def column(values: list[Any], field: Field) -> tuple[pa.Array, Flags]:
    """Return the values of a field as an Arrow array, and which of them are bad."""
    if is_raw(field):
        return pa.array([None if value is None else bytes(value) for value in values], field.type), np.zeros(
            len(values), np.bool_
        )
    return _convert(pa.array(values, _written_type(field.type)), field.type, field.pattern)


def read_json(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    """Return texts as JSON values of the type of a field, and which texts are good; NULL is not good."""
    decoder = msgspec.json.Decoder(_annotation(field), dec_hook=convert_value, float_hook=NumberText)
    good = are_utf8(texts.buffer, texts.start, texts.end, texts.valid)
    values: list[Any] = [None] * texts.count
    chosen = np.flatnonzero(good)
    for number, text in zip(chosen.tolist(), texts.some(chosen), strict=True):
        try:
            values[number] = decoder.decode(text)
        except FAILURES:
            good[number] = False
            continue
        if has_floats([field.type]) and NEGATIVE_ZERO.search(text):
            written = json.loads(text.decode(), parse_int=str, parse_float=str)
            values[number] = _restore_sign(values[number], written, field.type)
    array, wrong = column(values, field)
    return array, good & ~wrong


def has_floats(types: Iterable[pa.DataType]) -> bool:
    """Tell whether a type is a float or contains one."""
    return any(
        pa.types.is_floating(type_) or has_floats(type_.field(number).type for number in range(type_.num_fields))
        for type_ in types
    )


def sign_zeros(record: msgspec.Struct, written: dict[str, Any], fields: Sequence[Field]) -> None:
    """Restore the sign of `-0` in floats, which msgspec drops; `written` is the record with its numbers as texts."""
    for number, field in enumerate(fields):
        if has_floats([field.type]):
            setattr(
                record, f"_{number}", _restore_sign(getattr(record, f"_{number}"), written.get(field.name), field.type)
            )


def nodes(record: dict[str, Any], fields: Sequence[Field]) -> Iterator[Node]:
    """Yield the values of the fields, nested ones too, in a record that was decoded without types."""
    for field in fields:
        for value in _members(record, field.name):
            yield from _nodes(Node(field, field.type, f"$.{field.name}", value))


def is_raw(field: Field) -> bool:
    """Tell whether a field is the unchanged text of its member."""
    return field.pattern == RAW_JSON


def is_readable(node: Node) -> bool:
    """Tell whether a time, a decimal or a float32 can be read; other values are always good."""
    if node.value is None or _written_type(node.type) == node.type or pa.types.is_nested(node.type):
        return True
    text = str(node.value) if pa.types.is_decimal(node.type) else _text(node.value)
    return not _convert(pa.array([text], pa.string()), node.type, node.field.pattern)[1][0]


def has_field_type(node: Node) -> bool:
    """Tell whether a value has the type of its field."""
    try:
        msgspec.convert(_with_floats(node.value), _optional(node.type), dec_hook=convert_value)
    except msgspec.ValidationError:
        return False
    return True


def _with_floats(value: Any) -> Any:
    """Return a value with floats in place of texts of numbers, except for numbers out of range."""
    if isinstance(value, NumberText):
        return value if math.isinf(float(value)) else float(value)
    if isinstance(value, dict):
        return {name: _with_floats(member) for name, member in value.items()}
    return [_with_floats(element) for element in value] if isinstance(value, list) else value


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    if pa.types.is_struct(node.type) and isinstance(node.value, dict):
        for field in node.type:
            for value in _members(node.value, field.name):
                yield from _nodes(Node(node.field, field.type, f"{node.path}.{field.name}", value))
    elif pa.types.is_map(node.type) and isinstance(node.value, dict):
        for value in _members(node.value):
            yield from _nodes(Node(node.field, node.type.item_type, f"{node.path}[...]", value))
    elif _is_list(node.type) and isinstance(node.value, list):
        for number, value in enumerate(node.value):
            yield from _nodes(Node(node.field, node.type.value_type, f"{node.path}[{number}]", value))


def _members(record: dict[str, Any], name: str | None = None) -> list[Any]:
    pairs = record.pairs if isinstance(record, Repeated) else record.items()
    return [value for pair, value in pairs if name in {None, pair}]


def _restore_sign(value: Any, written: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if _is_list(type_):
        return [_restore_sign(element, text, type_.value_type) for element, text in zip(value, written, strict=True)]
    if pa.types.is_map(type_):
        return {name: _restore_sign(member, written[name], type_.item_type) for name, member in value.items()}
    if pa.types.is_struct(type_):
        return {name: _restore_sign(member, written[name], type_.field(name).type) for name, member in value.items()}
    if written == "-0" and pa.types.is_floating(type_):
        return Float32Text("-0") if pa.types.is_float32(type_) else -0.0
    return value


def _annotation(field: Field) -> Any:
    return msgspec.Raw if is_raw(field) else _optional(field.type)


def _optional(type_: pa.DataType) -> Any:
    return Optional[_plain(type_)]  # noqa: UP045 classes that are made at run time do not support |


def _plain(type_: pa.DataType) -> Any:  # noqa: PLR0911 one line for each type
    is_ = pa.types
    if is_.is_integer(type_):
        return _whole(type_)
    if is_.is_floating(type_):
        return Float32Text if pa.types.is_float32(type_) else float
    if is_.is_boolean(type_):
        return bool
    if is_.is_decimal128(type_):
        return DecimalText
    if is_.is_string(type_) or is_.is_timestamp(type_) or is_.is_date32(type_) or is_.is_time(type_):
        return str
    if is_.is_binary(type_):
        return bytes
    return _container(type_)


def _container(type_: pa.DataType) -> Any:
    is_ = pa.types
    if is_.is_list(type_):
        return list[_optional(type_.value_type)]  # type: ignore[misc]
    if is_.is_fixed_size_list(type_):
        size = type_.list_size
        return Annotated[list[_optional(type_.value_type)], msgspec.Meta(min_length=size, max_length=size)]  # type: ignore[misc]
    if is_.is_map(type_):
        return dict[str, _optional(type_.item_type)]  # type: ignore[misc]
    members = {field.name: _optional(field.type) for field in type_}
    return TypedDict("Members", members, total=False)  # type: ignore[operator]


class Float32Text(str):
    """The text of a float32, which is rounded once: a float64 in between may lie half way between two float32."""

    __slots__ = ()

    @classmethod
    def of(cls, value: Any) -> Float32Text:
        """Return the text of any number."""
        if isinstance(value, bool) or not isinstance(value, int | float | NumberText):
            raise ValueError(f"Expected `float`, got `{type(value).__name__}`")  # noqa: TRY004 msgspec's way
        return cls(_text(value))


class DecimalText(str):
    """The text of a decimal."""

    __slots__ = ()

    @classmethod
    def of(cls, value: Any) -> DecimalText:
        """Return the text of any number; return a text unchanged."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"Expected `decimal`, got `{type(value).__name__}`")  # noqa: TRY004 msgspec's way
        return cls(value)


def _text(value: Any) -> str:
    """Return a number as a text with all its digits; return a text unchanged."""
    return value if isinstance(value, str) else str(Decimal(value))


def _whole(type_: pa.DataType) -> Any:
    bits = type_.bit_width
    if not pa.types.is_unsigned_integer(type_):
        return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
    if bits < 64:  # noqa: PLR2004 msgspec cannot compare with larger numbers
        return Annotated[int, msgspec.Meta(ge=0, le=2**bits - 1)]

    class Natural(int):
        @classmethod
        def of(cls, value: Any) -> Natural:
            if type(value) is not int or not 0 <= value < 2**bits:
                raise ValueError(f"Expected `int` from 0 to {2**bits - 1}")
            return cls(value)

    return Natural


def _written_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(type_) or pa.types.is_float32(type_) or pa.types.is_decimal(type_):
        return pa.string()
    if _is_list(type_):
        size = type_.list_size if pa.types.is_fixed_size_list(type_) else -1
        return pa.list_(type_.value_field.with_type(_written_type(type_.value_type)), size)
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), _written_type(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_written_type(field.type)) for field in type_])
    return type_


def _convert(array: pa.Array, type_: pa.DataType, pattern: str | None) -> tuple[pa.Array, Flags]:
    if array.type == type_:
        return array, np.zeros(len(array), np.bool_)
    if pa.types.is_list(type_):
        values, wrong = _convert(array.values, type_.value_type, pattern)
        whole = pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=array.is_null())
        return whole, _any(wrong, array.offsets.to_numpy())
    if pa.types.is_fixed_size_list(type_):
        values, wrong = _convert(array.values, type_.value_type, pattern)
        whole = pa.FixedSizeListArray.from_arrays(values, type=type_, mask=array.is_null())
        return whole, np.logical_or.reduce(wrong.reshape(-1, type_.list_size), axis=1)
    if pa.types.is_map(type_):
        values, wrong = _convert(array.items, type_.item_type, pattern)
        whole = pa.MapArray.from_arrays(array.offsets, array.keys, values, type=type_, mask=array.is_null())
        return whole, _any(wrong, array.offsets.to_numpy())
    if pa.types.is_struct(type_):
        members = [_convert(array.field(number), field.type, pattern) for number, field in enumerate(type_)]
        whole = pa.StructArray.from_arrays([member for member, _ in members], fields=list(type_), mask=array.is_null())
        return whole, np.logical_or.reduce([wrong for _, wrong in members])
    wrong = np.zeros(len(array), np.bool_)
    read = convert(array, Field("", type_, pattern))
    wrong[read.bad] = True
    return read.values, wrong


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_))


def _any(wrong: Flags, offsets: npt.NDArray[np.int32]) -> Flags:
    before = np.concatenate([[0], np.cumsum(wrong)])
    return before[offsets[1:]] > before[offsets[:-1]]
