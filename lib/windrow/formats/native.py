"""Native: fixed-width binary records, whose fields follow each other without gaps, as in a program's memory.

Integers and floats have the width of their type. A bool is one byte, 0 or 1. A timestamp has 64 bits and counts units
since 1970, a date 32 bits and counts days. A time of day counts units since midnight, in 32 bits for seconds and
milliseconds, else 64. `list<float64, 3>` is three numbers. `binary(16)` has 16 bytes. `string(16)` has 16 bytes of
UTF-8, up to the first NUL if there is one. No field can be NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.arrow import read_only
from windrow.columnar.compiled import ByteArray, Flags
from windrow.errors import SettingsError
from windrow.formats.conversion import CAST, ConversionResult, convert
from windrow.formats.fields import Field, type_text
from windrow.formats.format import Format
from windrow.formats.framing_by_length import ByteOrder, FixedFraming
from windrow.formats.records import SYNTAX, FieldParser, ParseResult, Records, uniform_rejects
from windrow.formats.settings import FormatSettings
from windrow.formats.texts import Texts, gather_bytes

FIRST_DAY, LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def build(section: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """Return the format `native`."""
    parser, most = NativeParser(fields, section.byte_order), section.max_record_bytes
    if parser.width > most:
        raise SettingsError(
            f"a record has {parser.width} bytes, but max_record_bytes is {most}", "Raise max_record_bytes."
        )
    return Format(FixedFraming(parser.width, most), parser, text=False)


class NativeParser(FieldParser):
    """The parser of fixed-width records. Raises SettingsError for fields without a width."""

    def __init__(self, fields: Sequence[Field], order: ByteOrder = "little") -> None:
        if not fields:
            raise SettingsError("a native record without fields has no width", "List its fields in order.")
        self.fields = tuple(fields)
        kinds = [(f"_{number}", _kind(field)) for number, field in enumerate(fields)]
        self._record = np.dtype(kinds).newbyteorder("<" if order == "little" else ">")
        self._names = {field.name: f"_{number}" for number, field in enumerate(fields)}

    def _with(self, fields: tuple[Field, ...]) -> NativeParser:
        parser = copy(self)
        parser.fields = fields
        return parser

    @property
    def width(self) -> int:
        """Return the number of bytes in a record."""
        return self._record.itemsize

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        lengths = records.end - records.start
        whole, other = np.flatnonzero(lengths == self.width), np.flatnonzero(lengths != self.width)
        refused = [
            uniform_rejects(other[lengths[other] == size], SYNTAX, None, f"{size} bytes instead of {self.width}")
            for size in np.unique(lengths[other]).tolist()
        ]
        start = records.start[whole]
        data, _ = gather_bytes(read_only(records.buffer), start, start + self.width)
        rows = data.view(self._record)
        values = (_column(field, rows[self._names[field.name]]) for field in self.fields)
        return self.join(values, whole, refused, np.empty(0, np.int64))


def _kind(field: Field) -> np.dtype[Any]:
    type_, is_ = field.type, pa.types
    if field.width is not None:
        return np.dtype((np.void, field.width))
    if is_.is_boolean(type_):
        return np.dtype(np.uint8)
    if is_.is_timestamp(type_) or is_.is_time64(type_):
        return np.dtype(np.int64)
    if is_.is_date32(type_) or is_.is_time32(type_):
        return np.dtype(np.int32)
    if is_.is_fixed_size_list(type_):
        return np.dtype((_kind(Field(field.name, type_.value_type)), type_.list_size))
    if is_.is_integer(type_) or is_.is_floating(type_):
        return np.dtype(type_.to_pandas_dtype())
    raise SettingsError(
        f"field {field.name!r}: {type_text(field)} has no fixed width",
        "Use integers, floats, bool, date, time, timestamps, string(n), binary(n) or list<..., n> of them.",
    )


def _column(field: Field, options: npt.NDArray[Any]) -> ConversionResult:
    if field.width is not None:
        rows = np.ascontiguousarray(options).view(np.uint8).reshape(-1, field.width)
        return convert(_texts(rows, whole=pa.types.is_binary(field.type)), field)
    values = options.astype(options.dtype.newbyteorder("=")).reshape(-1)
    if pa.types.is_fixed_size_list(field.type):
        inner = _column(Field(field.name, field.type.value_type), values)
        lists = pa.FixedSizeListArray.from_arrays(inner.values, type=field.type)
        bad, first = np.unique(inner.bad // field.type.list_size, return_index=True)
        return ConversionResult(lists, bad, inner.reason, inner.detail.take(pa.array(first)))
    if pa.types.is_boolean(field.type):
        return _judge(pa.array(values.astype(np.bool_)), values, values > 1, "is no bool, which is 0 or 1")
    wrong, what = np.zeros(values.size, np.bool_), ""
    if pa.types.is_time(field.type):
        wrong, what = (values < 0) | (values >= DAY[field.type.unit]), "is outside a day"
    elif pa.types.is_temporal(field.type):
        days = values // (1 if pa.types.is_date32(field.type) else DAY[field.type.unit])
        wrong, what = (days < FIRST_DAY) | (days > LAST_DAY), "is outside the years 1 to 9999"
    return _judge(pa.array(values).view(field.type), values, wrong, f"as `{field.type}` {what}")


def _judge(column: pa.Array, values: npt.NDArray[Any], wrong: Flags, what: str) -> ConversionResult:
    rows = np.flatnonzero(wrong)
    return ConversionResult(column, rows, CAST, pa.array([f"{value} {what}" for value in values[rows]], pa.string()))


def _texts(buffer: ByteArray, *, whole: bool) -> Texts:
    """Return rows of bytes as texts, up to their first NUL unless `whole`."""
    rows, width = buffer.shape
    start = np.arange(rows) * width
    length = width if whole else np.where((buffer == 0).any(axis=1), (buffer == 0).argmax(axis=1), width)
    return Texts(read_only(buffer.reshape(-1)), start, start + length, np.ones(rows, np.bool_))
