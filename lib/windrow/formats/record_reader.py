"""Formats that are read one record at a time, by functions of another package; types, NULLs and reasons are Windrow's.

A function returns the values of a record by the names of fields, or those of several rows. Each value becomes a text,
which is converted to the type of its field as a column of CSV is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

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
from windrow.formats.record_rows import RowCollector, Rows, TooManyRows
from windrow.formats.records import SYNTAX, FieldParser, InvalidHeader, ParseResult, RecordError, Records, rejects
from windrow.formats.settings import FormatSettings

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
    """Return a format of which `read` turns one record into values by field name, or None for a record to skip.

    `read` may also return several rows: mappings, or Arrow's `RecordBatch` or `Table`. With `header` instead, the
    first record of each source is given to it, and it returns what reads the others. `ends` says where records end: at
    a delimiter, which `read` does not get; by an automaton; or where a function `(data, begin) -> int | None` says.
    After a record of more than `max_record_bytes` framing resumes after the next `resume_at`; without it, the rest of
    the source is rejected. With `text`, a source may begin with a byte-order mark. Raises SettingsError for fields of
    fixed size.
    """
    name = settings.type or ""
    require_unsized(fields, name)
    most, parser = (
        settings.max_record_bytes,
        PerRecord(name, fields, read, settings.null_values, settings.max_decoded_bytes),
    )
    named = None if header is None else partial(parser.after, header)
    if isinstance(ends, bytes):
        return Format(DelimitedFraming(grammar.delimited(ends), ends, most), parser, text=text, header=named)
    finder = ends if isinstance(ends, Automaton) else FunctionFinder(name, ends)
    return Format(DelimitedFraming(finder, resume_at, most, Content.WHOLE), parser, text=text, header=named)


@dataclass(frozen=True, slots=True)
class PerRecord(FieldParser):
    """The parser of records that a function reads. A record for which it raises is bad; its texts may be `nulls`.

    The rows of one record have at most `most_bytes`.
    """

    name: str
    fields: tuple[Field, ...]
    read: Read | None
    nulls: tuple[str, ...] = ("",)
    most_bytes: int = 2**30

    def after(self, header: ReadHeader, record: bytes) -> PerRecord:
        """Return the parser of the records after a header. Raises HeaderRefused, FormatPluginError."""
        read, why = self._try(header, record)
        if why is not None:
            raise InvalidHeader(why.reason, why.detail)
        return PerRecord(self.name, self.fields, read, self.nulls, self.most_bytes)

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
        result = self.joined(map(convert, texts, self.fields), np.arange(record.size), (), np.empty(0, np.int64))
        return _by_record(result, record, rejects(bad), skipped)

    def _try(self, function: Callable[[bytes], T], record: bytes) -> tuple[T | None, RecordError | None]:
        """Return what a function of the package makes of a record, or why it is bad. Raises FormatPluginError."""
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
    """Return rows, which were judged one by one, by their records: all rows of a record are good, or it is bad.

    Its first bad row gives the reason.
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
