"""Records between framing and values: where each one is, its values, and why a bad one is bad."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import empty_table
from windrow.columnar.compiled import ByteArray, Ints
from windrow.formats.conversion import ConversionResult
from windrow.formats.fields import Field

SYNTAX = "format_syntax"
TEXT_AFTER_QUOTE = "a quote is not closed, or text follows the closing quote"
REJECTS = pa.schema([("record", pa.int64()), ("reason", pa.string()), ("column", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records in a run of bytes: record `i` is `buffer[start[i]:end[i]]`, without delimiter or length."""

    buffer: ByteArray
    start: Ints
    end: Ints

    @property
    def count(self) -> int:
        """Return the number of records."""
        return int(self.start.size)

    def of(self, record: int) -> bytes:
        """Return the bytes of one record."""
        return self.buffer[self.start[record] : self.end[record]].tobytes()


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The result of parsing: `fields` has the rows of good records, `record` each row's record, in ascending order.

    A record may yield several rows. `rejects` has a row (`REJECTS`) for each bad record: its number, the reason, the
    bad field (NULL: the whole record) and the detail. `skipped` records are empty, such as blank lines in CSV. Each
    record is either good, bad or skipped.
    """

    fields: pa.Table
    record: Ints
    rejects: pa.Table
    skipped: Ints = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))


class RecordError(NamedTuple):
    """Why a record is bad: the reason, the bad field (None: the whole record), and the detail."""

    reason: str
    column: str | None
    detail: str


def rejects(bad: Mapping[int, RecordError]) -> pa.Table:
    """Return bad records, by number, as a table in ascending order."""
    rows = [(number, *why) for number, why in sorted(bad.items())]
    return pa.Table.from_pylist([dict(zip(REJECTS.names, row, strict=True)) for row in rows], REJECTS)


def uniform_rejects(record: Ints, reason: str, column: str | None, detail: pa.Array | str) -> pa.Table:
    """Return a table of records that are bad for one reason in one field; `detail` may be an array, one for each."""
    count = record.size
    explained = detail if isinstance(detail, pa.Array) else pa.repeat(pa.scalar(detail, pa.string()), count)
    rest = [pa.repeat(pa.scalar(value, pa.string()), count) for value in (reason, column)]
    return pa.Table.from_arrays([pa.array(record, pa.int64()), *rest, explained], schema=REJECTS)


class FieldParser:
    """A parser whose columns are its fields."""

    __slots__ = ()
    fields: tuple[Field, ...]

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the fields."""
        return pa.schema([(field.name, field.type) for field in self.fields])

    def using(self, names: Collection[str]) -> Self:
        """Return the parser of the same records that converts only the fields with these names."""
        return self._with(tuple(field for field in self.fields if field.name in names))

    def _with(self, fields: tuple[Field, ...]) -> Self:
        parser: Any = self
        return dataclasses.replace(parser, fields=fields)

    def join(
        self, columns: Iterable[ConversionResult], record: Ints, refused: Iterable[pa.Table], skipped: Ints
    ) -> ParseResult:
        """Join the values of the fields, one for each number in `record`; add bad records to those already `refused`.

        A record's first bad field gives the reason.
        """
        good, values, reasons = np.ones(record.size, np.bool_), [], [empty_table(REJECTS), *refused]
        for field, converted in zip(self.fields, columns, strict=True):
            values.append(converted.values)
            first = good[converted.bad]
            if first.any():
                detail = converted.detail.filter(pa.array(first))
                reasons.append(uniform_rejects(record[converted.bad[first]], converted.reason, field.name, detail))
            good[converted.bad] = False
        if not good.all():
            kept = pa.array(good)
            values, record = [column.filter(kept) for column in values], record[good]
        rejects = pa.concat_tables(reasons).sort_by("record").combine_chunks()
        return ParseResult(pa.Table.from_arrays(values, schema=self.schema), record, rejects, skipped)


class InvalidHeader(ValueError):
    """A header record does not say where the fields are; `reason` and `detail` go into its reject."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Parser(Protocol):
    """The parser of one format. The result for a record depends on nothing but its own bytes."""

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the fields."""

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
