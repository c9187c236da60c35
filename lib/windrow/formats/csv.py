"""CSV, and whatever else has a record of columns with something between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from windrow.errors import SettingsError
from windrow.formats import columns, grammar
from windrow.formats.automaton import Automaton
from windrow.formats.cells import EMPTY, OPEN, Cells, Marks
from windrow.formats.conversion import ENCODING, quoted
from windrow.formats.fields import Field, require_flat, require_unsized
from windrow.formats.records import HeaderRefused, Ints, Parsed, Records, alike

COLUMNS, SYNTAX = "format_columns", "format_syntax"
UNCLOSED = "a quote is not closed"
IGNORED = -1


@dataclass(frozen=True, slots=True)
class Csv:
    """The values of delimited records.

    `nulls` are NULL where they are not in quotes. Of the fields only those in `only` are converted, if it is given.
    `order` names the columns if they are not the fields in their order. A record that is empty is skipped, unless a
    record is one column, of which it then is the value. Raises SettingsError for fields or delimiters that cannot be.
    """

    fields: tuple[Field, ...]
    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""
    record: bytes = b"\n"
    nulls: tuple[bytes, ...] = (b"",)
    only: frozenset[str] | None = None
    order: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        if not self.delimiter:
            raise SettingsError("the columns of a record need a delimiter", "Give one, such as a comma.")
        grammar.require_apart(self.record, self.delimiter, self.quote, self.escape)
        require_flat(self.fields, "csv")
        require_unsized(self.fields, "csv")

    @property
    def automaton(self) -> Automaton:
        """Return what cuts bytes into the records that this reads."""
        return grammar.delimited(self.record, self.delimiter, self.quote, self.escape)

    @property
    def schema(self) -> pa.Schema:
        """Return the fields that are converted, and their types."""
        return columns.schema(self._wanted)

    def header(self, record: bytes) -> Csv:
        """Return the parser of records behind this header record: columns that are no fields are ignored.

        Raises HeaderRefused where a field is missing or comes twice.
        """
        buffer = np.frombuffer(record, np.uint8)
        whole = Records(buffer, np.array([0]), np.array([buffer.size]))
        count = int(Cells.of(whole, self._marks, np.empty(0, np.int64)).count[0])
        if count == OPEN:
            raise HeaderRefused(SYNTAX, f"the header: {UNCLOSED}")
        cells = Cells.of(whole, self._marks, np.arange(count))
        names = [_name(*cells.texts(row, ()).some(np.zeros(1, np.int64))) for row in range(count)]
        for field in self.fields:
            count = names.count(field.name)
            if count != 1:
                there = ", ".join(names) or "none"
                what = "misses" if not count else "has twice"
                raise HeaderRefused(COLUMNS, f"the header {what} the field {field.name!r}; its columns: {there}")
        return replace(self, order=tuple(names))

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
        order = [field.name for field in self.fields] if self.order is None else self.order
        row = {field.name: number for number, field in enumerate(self._wanted)}
        cells = Cells.of(records, self._marks, np.array([row.get(name, IGNORED) for name in order]))
        wanted = len(order)
        texts = (cells.texts(number, self.nulls) for number in row.values())
        chosen, skipped = np.flatnonzero(cells.count == wanted), np.flatnonzero(cells.count == EMPTY)
        return columns.parsed(self._wanted, texts, chosen, _refused(cells.count, wanted), skipped)

    @property
    def _wanted(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if self.only is None or field.name in self.only)

    @property
    def _marks(self) -> Marks:
        return Marks.of(self.record, self.delimiter, self.quote, self.escape)


def _refused(count: Ints, wanted: int) -> Iterator[pa.Table]:
    bad = np.flatnonzero((count != wanted) & (count != EMPTY))
    for columns_there in np.unique(count[bad]).tolist():
        record = bad[count[bad] == columns_there]
        if columns_there == OPEN:
            yield alike(record, SYNTAX, None, UNCLOSED)
        else:
            there = f"{columns_there} column{'s' if columns_there > 1 else ''}"
            yield alike(record, COLUMNS, None, f"{there} where {wanted} {'are' if wanted > 1 else 'is'} wanted")


def _name(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise HeaderRefused(ENCODING, f"the header: {quoted(text)} is not UTF-8") from None
