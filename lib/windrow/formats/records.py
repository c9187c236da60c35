"""Records between framing and values: where each one is, its values, and why a bad one is bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.arrow import no_rows

Ints = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]
CAST, ENCODING, SYNTAX = "format_cast", "format_encoding", "format_syntax"
REJECTS = pa.schema([("record", pa.int64()), ("reason", pa.string()), ("column", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records in a run of bytes: record `i` is `buffer[begin[i]:end[i]]`, without delimiter or length."""

    buffer: ByteArray
    begin: Ints
    end: Ints

    @property
    def count(self) -> int:
        """Return the number of records."""
        return int(self.begin.size)

    def of(self, record: int) -> bytes:
        """Return the bytes of one record."""
        return self.buffer[self.begin[record] : self.end[record]].tobytes()


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing: `fields` has a row for each good record, `record` says which, in ascending order.

    `rejects` has a row (`REJECTS`) for each bad record: its number, the reason, the bad field (NULL: the whole record)
    and the detail. `skipped` records are empty, such as blank lines in CSV. Each record is good, bad or skipped.
    """

    fields: pa.Table
    record: Ints
    rejects: pa.Table
    skipped: Ints = field(default_factory=lambda: np.empty(0, np.int64))


class Bad(NamedTuple):
    """Why a record is bad: the reason, the bad field (None: the whole record), and the detail."""

    reason: str
    column: str | None
    detail: str


def rejects(bad: Mapping[int, Bad]) -> pa.Table:
    """Return bad records, by number, as a table in ascending order."""
    rows = [(number, *why) for number, why in sorted(bad.items())]
    return pa.Table.from_pylist([dict(zip(REJECTS.names, row, strict=True)) for row in rows], REJECTS)


def uniform_rejects(record: Ints, reason: str, column: str | None, detail: pa.Array | str) -> pa.Table:
    """Return records that are bad for one reason in one field as a table; `detail` may be an array, one for each."""
    count = record.size
    explained = detail if isinstance(detail, pa.Array) else pa.repeat(pa.scalar(detail, pa.string()), count)
    rest = [pa.repeat(pa.scalar(value, pa.string()), count) for value in (reason, column)]
    return pa.Table.from_arrays([pa.array(record, pa.int64()), *rest, explained], schema=REJECTS)


def merged_rejects(tables: Sequence[pa.Table]) -> pa.Table:
    """Return several tables of bad records as one, in ascending order."""
    held = [table for table in tables if table.num_rows]
    return pa.concat_tables(held).sort_by("record").combine_chunks() if held else no_rows(REJECTS)


def misencoded(content: bytes) -> str | None:
    """Explain where bytes are not UTF-8, None if they are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}: {error.reason}"
    return None


class HeaderRefused(ValueError):
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

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
