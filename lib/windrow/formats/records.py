"""Records, between framing and values: where each one is, what came of it, and why a bad one is bad."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.arrow import no_rows

Ints = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]
REJECTS = pa.schema([("record", pa.int64()), ("reason", pa.string()), ("column", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records of a run of bytes: record `i` is `bytes[begin[i]:end[i]]`, without what ends or introduces it."""

    buffer: ByteArray
    begin: Ints
    end: Ints

    @property
    def count(self) -> int:
        """Return how many there are."""
        return int(self.begin.size)

    def of(self, record: int) -> bytes:
        """Return the bytes of one record."""
        return self.buffer[self.begin[record] : self.end[record]].tobytes()


@dataclass(frozen=True, slots=True)
class Parsed:
    """What came of records: `fields` has a row for each good one, `record` says which, in rising order.

    `rejects` has a row for each bad one (`REJECTS`): its number, the reason, the field that is bad (NULL: the record as
    a whole) and what is wrong with it. `skipped` are those that say nothing, such as empty lines of CSV. Good, bad and
    skipped together are all records, each once.
    """

    fields: pa.Table
    record: Ints
    rejects: pa.Table
    skipped: Ints = field(default_factory=lambda: np.empty(0, np.int64))


class Refused(NamedTuple):
    """A bad record: its number, the reason, the field that is bad (None: the record as a whole), and what is wrong."""

    record: int
    reason: str
    column: str | None
    detail: str


def rejects(refused: Iterable[Refused]) -> pa.Table:
    """Return bad records as a table, in rising order."""
    columns = list(zip(*sorted(refused), strict=True))
    if not columns:
        return no_rows(REJECTS)
    return pa.Table.from_arrays([pa.array(*one) for one in zip(columns, REJECTS.types, strict=True)], schema=REJECTS)


def alike(record: Ints, reason: str, column: str | None, detail: pa.Array | str) -> pa.Table:
    """Return records that are bad for one reason in one field as a table; `detail` may be one for each."""
    count = record.size
    told = detail if isinstance(detail, pa.Array) else pa.repeat(pa.scalar(detail, pa.string()), count)
    rest = [pa.repeat(pa.scalar(value, pa.string()), count) for value in (reason, column)]
    return pa.Table.from_arrays([pa.array(record, pa.int64()), *rest, told], schema=REJECTS)


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Return bad records of several kinds as one table, in rising order."""
    held = [part for part in parts if part.num_rows]
    return pa.concat_tables(held).sort_by("record").combine_chunks() if held else no_rows(REJECTS)


class HeaderRefused(ValueError):
    """A header record does not say where the fields are: the `reason` and the `detail` of its reject."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Parser(Protocol):
    """The values of one format. What becomes of a record depends on nothing but its own bytes."""

    @property
    def schema(self) -> pa.Schema:
        """Return the fields and their types."""

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
