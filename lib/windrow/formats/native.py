"""Native: fixed-width binary records, whose fields follow each other without gaps, as in a program's memory.

Integers and floats have the width of their type. A bool is one byte, 0 or 1. A timestamp has 64 bits and counts units
since 1970, a date 32 bits and counts days. A time of day counts units since midnight, in 32 bits for seconds and
milliseconds, else 64. `list<float64, 3>` is three numbers. `binary(16)` has 16 bytes. `string(16)` has 16 bytes of
UTF-8, up to the first NUL if there is one. No field can be NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.errors import SettingsError
from windrow.formats import columns
from windrow.formats.counted import ByteOrder, FixedFraming
from windrow.formats.fields import Field, type_text
from windrow.formats.format import Format
from windrow.formats.part import FormatPart
from windrow.formats.records import CAST, ENCODING, SYNTAX, Bad, ByteArray, Ints, Parsed, Records, misencoded, rejects

ASCII = 0x7F
FIRST_DAY, LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def build(section: FormatPart, fields: tuple[Field, ...]) -> Format:
    """Return the format `native`."""
    parser, most = Native(fields, section.byte_order), section.max_record_bytes
    if parser.width > most:
        raise SettingsError(
            f"a record has {parser.width} bytes, but max_record_bytes is {most}", "Raise max_record_bytes."
        )
    return Format(FixedFraming(parser.width, most), parser, text=False)


class Wrong(NamedTuple):
    """Rows with a bad field, and what is wrong with each."""

    reason: str
    rows: Ints
    details: list[str]


class Native:
    """The parser of fixed-width records. Raises SettingsError for fields without a width."""

    def __init__(self, fields: Sequence[Field], order: ByteOrder = "little") -> None:
        if not fields:
            raise SettingsError("a native record without fields has no width", "List its fields in order.")
        self._fields = tuple(fields)
        self._kinds = [_kind(field).newbyteorder("<" if order == "little" else ">") for field in fields]

    @property
    def width(self) -> int:
        """Return the number of bytes in a record."""
        return sum(kind.itemsize for kind in self._kinds)

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the fields."""
        return columns.schema(self._fields)

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
        lengths = records.end - records.begin
        numbers = np.flatnonzero(lengths == self.width)
        bad = {
            int(number): Bad(SYNTAX, None, f"{lengths[number]} bytes instead of {self.width}")
            for number in np.flatnonzero(lengths != self.width)
        }
        values = []
        for field, raw in zip(self._fields, self._cut(self._rows(records, records.begin[numbers])), strict=True):
            column, wrong = _column(field, raw)
            values.append(column)
            for row, detail in zip(wrong.rows.tolist(), wrong.details, strict=True):
                bad.setdefault(int(numbers[row]), Bad(wrong.reason, field.name, detail))
        good = ~np.isin(numbers, list(bad))
        return Parsed(
            pa.table(values, schema=self.schema).filter(pa.array(good)),
            numbers[good],
            rejects(bad),
        )

    def _rows(self, records: Records, begin: Ints) -> ByteArray:
        """Return a row of bytes for each record, without copying if the records are adjacent."""
        if len(begin) and np.all(np.diff(begin) == self.width):
            return records.buffer[begin[0] : begin[-1] + self.width].reshape(-1, self.width)
        return records.buffer[begin[:, None] + np.arange(self.width)]

    def _cut(self, rows: ByteArray) -> Iterator[npt.NDArray[Any]]:
        """Yield the values of each field, for texts and binary as rows of bytes."""
        at = 0
        for kind in self._kinds:
            buffer = np.ascontiguousarray(rows[:, at : at + kind.itemsize])
            raw = kind.base.type is np.void
            yield buffer if raw else buffer.reshape(-1).view(kind.base).astype(kind.base.newbyteorder("="))
            at += kind.itemsize


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
        f"field {field.name!r}: {type_text(field)} has no width",
        "Use integers, floats, bool, date, time, timestamps, string(n), binary(n) or list<..., n> of them.",
    )


def _column(field: Field, values: npt.NDArray[Any]) -> tuple[pa.Array, Wrong]:
    if pa.types.is_string(field.type):
        return _texts(values)
    if pa.types.is_binary(field.type):
        sized = pa.Array.from_buffers(pa.binary(field.width), len(values), [None, pa.py_buffer(values)])
        return sized.cast(field.type), _nothing()
    if pa.types.is_boolean(field.type):
        rows = np.flatnonzero(values > 1)
        wrong = Wrong(CAST, rows, [f"{value} is no bool, which is 0 or 1" for value in values[rows]])
        return pa.array(values.astype(np.bool_)), wrong
    if pa.types.is_fixed_size_list(field.type):
        column, wrong = _column(Field(field.name, field.type.value_type), values)
        rows = wrong.rows // field.type.list_size
        return pa.FixedSizeListArray.from_arrays(column, type=field.type), wrong._replace(rows=rows)
    return pa.array(values).view(field.type), _unknown_times(field.type, values)


def _unknown_times(type_: pa.DataType, values: npt.NDArray[Any]) -> Wrong:
    """Find times outside the years 1 to 9999, which nothing could read again, and times of day outside a day."""
    if pa.types.is_time(type_):
        rows = np.flatnonzero((values < 0) | (values >= DAY[type_.unit]))
        return Wrong(CAST, rows, [f"{value} as `{type_}` is outside a day" for value in values[rows]])
    if not pa.types.is_temporal(type_):
        return _nothing()
    a_day = 1 if pa.types.is_date32(type_) else DAY[type_.unit]
    rows = np.flatnonzero((values // a_day < FIRST_DAY) | (values // a_day > LAST_DAY))
    return Wrong(CAST, rows, [f"{value} as `{type_}` is outside the years 1 to 9999" for value in values[rows]])


def _texts(buffer: ByteArray) -> tuple[pa.Array, Wrong]:
    """Return texts up to their first NUL, and which are not UTF-8; these are in the array unchanged."""
    filled = np.cumsum(buffer == 0, axis=1) == 0
    bounds = np.zeros(len(buffer) + 1, np.int32)
    np.cumsum(filled.sum(axis=1), out=bounds[1:])
    texts = pa.Array.from_buffers(pa.string(), len(buffer), [None, pa.py_buffer(bounds), pa.py_buffer(buffer[filled])])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        found = [
            (row, misencoded(buffer[row][filled[row]].tobytes()))
            for row in np.flatnonzero((buffer > ASCII).any(axis=1))
        ]
        bad = [(row, detail) for row, detail in found if detail is not None]
        return texts, Wrong(ENCODING, np.array([row for row, _ in bad], np.int64), [detail for _, detail in bad])
    return texts, _nothing()


def _nothing() -> Wrong:
    return Wrong(CAST, np.empty(0, np.int64), [])
