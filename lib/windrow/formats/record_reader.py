"""Formats that are read one record at a time, by functions of another package; types, NULLs and reasons are Windrow's.

A function returns the values of a record by field name, for one row or several. Each value becomes a text, which is
converted to the type of its field like a column of CSV.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from functools import partial
from numbers import Integral
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.compiled import Ints
from windrow.errors import first_line
from windrow.formats import grammar
from windrow.formats.automaton import Automaton
from windrow.formats.conversion import ENCODING, convert
from windrow.formats.fields import Field, require_unsized
from windrow.formats.format import Format
from windrow.formats.framing import Content, DelimitedFraming, FindEnd, FunctionFinder
from windrow.formats.installed import TRANSIENT, plugin_error
from windrow.formats.records import SYNTAX, FieldParser, InvalidHeader, ParseResult, RecordError, Records, rejects
from windrow.formats.settings import FormatSettings

VALUE_BYTES = 8  # overhead of a value beyond its text
Row = Mapping[str, Any]
Rows: TypeAlias = Row | Iterable[Row] | pa.RecordBatch | pa.Table | None
Read = Callable[[bytes], Rows]
ReadHeader = Callable[[bytes], Read]
T = TypeVar("T")


def per_record(
    settings: FormatSettings,
    fields: tuple[Field, ...],
    read: Read | None = None,
    ends: bytes | Automaton | FindEnd = b"\n",
    *,
    header: ReadHeader | None = None,
    resume_at: bytes = b"",
    text: bool = True,
) -> Format:
    """Return a format whose `read` turns one record into values by field name, or into None to skip the record.

    `read` may also return several rows: mappings, or Arrow's `RecordBatch` or `Table`. If `header` is given instead, it
    gets the first record of each source and returns the function that reads the others. `ends` says where records end:
    at a delimiter, which is not passed to `read`; by an automaton; or where a function `(data, begin) -> int | None`
    says. After a record of more than `max_record_bytes` framing resumes after the next `resume_at`; without it, the
    rest of the source is rejected. With `text`, a source may begin with a byte-order mark. Raises SettingsError for
    fields of fixed size.
    """
    name = settings.type or ""
    require_unsized(fields, name)
    most = settings.max_record_bytes
    parser = PerRecord(name, fields, read, settings.null_values, settings.max_decoded_bytes)
    named = None if header is None else partial(parser.after, header)
    if isinstance(ends, bytes):
        return Format(DelimitedFraming(grammar.delimiter_automaton(ends), ends, most), parser, text=text, header=named)
    finder = ends if isinstance(ends, Automaton) else FunctionFinder(name, ends)
    return Format(DelimitedFraming(finder, resume_at, most, Content.WHOLE), parser, text=text, header=named)


@dataclass(frozen=True, slots=True)
class PerRecord(FieldParser):
    """A parser that reads each record with a function. A record for which it raises is bad; `nulls` become NULL.

    The rows of one record have at most `most_bytes`.
    """

    name: str
    fields: tuple[Field, ...]
    read: Read | None
    nulls: tuple[str, ...] = ("",)
    most_bytes: int = 2**30

    def after(self, header: ReadHeader, record: bytes) -> PerRecord:
        """Return the parser of the records after a header. Raises InvalidHeader, FormatPluginError."""
        read, why = self._try(header, record)
        if why is not None:
            raise InvalidHeader(why.reason, why.detail)
        return replace(self, read=read)

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones. Raises FormatPluginError."""
        rows, bad = RowCollector(self.fields, self.most_bytes), dict[int, RecordError]()
        read = self.read or _unreadable
        for number in range(records.count):
            _, why = self._try(partial(_add, rows, number, read), records.of(number))
            if why is not None:
                bad[number] = why
        nulls = pa.array([text.encode() for text in self.nulls], pa.large_binary())
        texts = (pc.if_else(pc.is_in(column, value_set=nulls), None, column) for column in rows.columns())
        record = rows.record
        skipped = np.setdiff1d(np.arange(records.count), np.append(record, np.array(list(bad), np.int64)))
        result = self.join(map(convert, texts, self.fields), np.arange(record.size), (), np.empty(0, np.int64))
        return _by_record(result, record, rejects(bad), skipped)

    def _try(self, function: Callable[[bytes], T], record: bytes) -> tuple[T | None, RecordError | None]:
        """Return the result of a function of the package, or why the record is bad. Raises FormatPluginError."""
        try:
            return function(record), None
        except UnicodeError as error:
            return None, RecordError(ENCODING, None, f"not UTF-8: {first_line(error)}")
        except TRANSIENT as error:
            raise plugin_error(self.name, "read a record", error) from error
        except TooManyRows as error:
            return None, RecordError("format_oversize", None, str(error))
        except ValueError as error:
            return None, RecordError(SYNTAX, None, first_line(error))
        except Exception as error:  # noqa: BLE001 a record that a package cannot read must not stop the others
            return None, RecordError(SYNTAX, None, f"{self.name}: {type(error).__name__}: {first_line(error)}")


def _add(rows: RowCollector, number: int, read: Read, record: bytes) -> None:
    rows.add(number, read(record))


def _unreadable(_record: bytes) -> Mapping[str, object]:
    raise ValueError("its source has no header")


def _by_record(result: ParseResult, record: Ints, bad: pa.Table, skipped: Ints) -> ParseResult:
    """Return rows, which were judged one by one, by record: a record is good only if all of its rows are.

    The first bad row gives the reason.
    """
    rows = result.rejects["record"].to_numpy()
    numbers, first = np.unique(record[rows], return_index=True)
    refused = result.rejects.take(pa.array(first))
    within = rows[first] - np.searchsorted(record, numbers)
    counts = np.searchsorted(record, numbers, "right") - np.searchsorted(record, numbers)
    where = pc.binary_join_element_wise(refused["detail"], ", in row ", pa.array(within).cast(pa.string()), "")
    detail = pc.if_else(pa.array(counts > 1), where, refused["detail"])
    refused = refused.set_column(0, "record", pa.array(numbers)).set_column(3, "detail", detail)
    # guard: record-all-or-nothing
    good = ~np.isin(record[result.record], numbers)
    fields = result.fields if good.all() else result.fields.filter(pa.array(good))
    together = pa.concat_tables([bad, refused.cast(bad.schema)]).sort_by("record").combine_chunks()
    return ParseResult(fields, record[result.record][good], together, skipped)


class TooManyRows(Exception):
    """The rows of one record have more bytes than is allowed; the message is one line."""


class RowCollector:
    """Collects the rows of records in order; the rows of one record have at most `most_bytes` in total."""

    def __init__(self, fields: tuple[Field, ...], most_bytes: int) -> None:
        self._fields, self._most_bytes = fields, most_bytes
        self._pending: list[list[bytes | None]] = []
        self._columns: list[list[pa.Array]] = [[] for _ in fields]
        self._records: list[int] = []
        self._counts: list[int] = []

    def add(self, record: int, rows: Rows) -> None:
        """Add the rows of a record, none of them if it fails. Raises ValueError, TypeError, TooManyRows."""
        if rows is None:
            return
        if isinstance(rows, pa.RecordBatch | pa.Table):
            batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
            result = [[_texts_of(batch, field) for field in self._fields] for batch in batches]
            self._require_few(sum(array.nbytes for columns in result for array in columns))
            self._flush()
            for columns in result:
                for arrays, array in zip(self._columns, columns, strict=True):
                    arrays.append(array)
            count = rows.num_rows
        else:
            texts = [self._texts(rows)] if isinstance(rows, Mapping) else list(self._several(rows))
            self._pending += texts
            count = len(texts)
        self._records.append(record)
        self._counts.append(count)

    @property
    def record(self) -> Ints:
        """Return the record of each row."""
        return np.repeat(np.array(self._records, np.int64), self._counts)

    def columns(self) -> list[pa.Array]:
        """Return the texts of each field."""
        self._flush()
        none = pa.array([], pa.large_binary())
        return [pa.concat_arrays([none, *arrays]) for arrays in self._columns]

    def _flush(self) -> None:
        """Move the rows that came as mappings into the columns."""
        for at, arrays in enumerate(self._columns if self._pending else ()):
            arrays.append(pa.array([row[at] for row in self._pending], pa.large_binary()))
        self._pending = []

    def _several(self, rows: Any) -> Iterator[list[bytes | None]]:
        size = 0
        for row in rows:
            texts = self._texts(row)
            size += sum(VALUE_BYTES + len(text or b"") for text in texts)
            self._require_few(size)
            yield texts

    def _texts(self, row: Any) -> list[bytes | None]:
        """Return a row's texts by field. Raises ValueError and TypeError."""
        if not isinstance(row, Mapping):
            raise TypeError(f"a row is {type(row).__name__}, not a mapping")
        return [text_of(row.get(field.name), field.type) for field in self._fields]

    def _require_few(self, byte_count: int) -> None:
        # guard: rows-of-record-bounded
        if byte_count > self._most_bytes:
            raise TooManyRows(f"its rows have more than max_decoded_bytes, {self._most_bytes}")


def _texts_of(batch: pa.RecordBatch, field: Field) -> pa.Array:
    """Return the values of a column as texts; NULL if there is no such column. Raises ValueError for invalid data."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.large_binary())
    column, is_ = batch.column(field.name), pa.types
    if is_.is_string(column.type) or is_.is_large_string(column.type):  # each text is checked for UTF-8 later
        column = column.view(pa.binary() if is_.is_string(column.type) else pa.large_binary())
    column.validate(full=True)
    if is_.is_dictionary(column.type):
        column = column.dictionary_decode()
    own = column.type
    if is_.is_timestamp(own) and own.tz is not None:
        column = column.cast(pa.timestamp(own.unit, "UTC"))
    if is_.is_floating(own) and own != field.type:
        column = column.cast(pa.float64())
    mixed = is_.is_floating(own) and not is_.is_floating(field.type)  # Arrow writes 1.0 as 1, an integer
    if (is_.is_primitive(own) and not mixed) or is_.is_decimal(own):
        return column.cast(pa.string()).cast(pa.large_binary())
    if not is_.is_nested(own) and not mixed:
        return column.cast(pa.large_binary())
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([text_of(value, field.type) for value in values], pa.large_binary())


def text_of(value: Any, type_: pa.DataType | None = None) -> bytes | None:  # noqa: PLR0911 one line for each type
    """Return a value as the text of a column of this type; None for NULL. Raises TypeError if it has no text."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, Integral):
        return b"%d" % int(value)
    if isinstance(value, float):
        return float.__repr__(value).encode()
    if isinstance(value, date | time):
        return value.isoformat().encode()
    if isinstance(value, Decimal):
        return str(value).encode()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(_plain(value, type_), ensure_ascii=False).encode()
    raise TypeError(f"a {type(value).__name__} cannot become text")


def _plain(value: Any, type_: pa.DataType | None) -> Any:
    """Return a value, and the values inside it, in JSON types: bytes become base64 for a binary type."""
    if isinstance(value, Mapping):
        return {name: _plain(member, _inside(type_, name)) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element, _inside(type_)) for element in value]
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    text = text_of(value) or b""
    return base64.b64encode(text).decode() if type_ == pa.binary() else text.decode()


def _inside(type_: pa.DataType | None, name: object = None) -> pa.DataType | None:
    """Return the type of the values in a list or map, or of the field of a struct with this name; None if unknown."""
    if isinstance(type_, pa.StructType):
        return type_.field(name).type if name in type_.names else None
    if isinstance(type_, pa.MapType):
        return type_.item_type
    return getattr(type_, "value_type", None)
