"""CSV and other formats whose records are columns with a delimiter between them.

Quotes matter twice: `grammar.delimiter_automaton` decides where a record ends, `csv_cells` where its columns end and
what they contain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import read_only
from windrow.columnar.compiled import Ints
from windrow.errors import SettingsError
from windrow.formats import grammar
from windrow.formats.conversion import ENCODING, convert, quote_bytes
from windrow.formats.csv_cells import EMPTY, MALFORMED, OPEN, Cells, Marks
from windrow.formats.fields import Field, require_unsized
from windrow.formats.format import Format
from windrow.formats.framing import DelimitedFraming
from windrow.formats.records import (
    SYNTAX,
    TEXT_AFTER_QUOTE,
    FieldParser,
    InvalidHeader,
    ParseResult,
    Records,
    uniform_rejects,
)
from windrow.formats.settings import FormatSettings

COLUMNS = "format_columns"
BROKEN = {OPEN: "a quote is not closed", MALFORMED: TEXT_AFTER_QUOTE}
IGNORED = -1


def build(section: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """Return the format `csv`."""
    columns, quote, escape = section.delimiter.encode(), section.quote_char.encode(), section.escape_char.encode()
    record = section.record_delimiter.encode()
    parser = CsvParser(fields, columns, quote, escape, tuple(text.encode() for text in section.null_values), record)
    automaton = grammar.delimiter_automaton(record, columns, quote, escape)
    framing = DelimitedFraming(automaton, record, section.max_record_bytes)
    return Format(framing, parser, header=parser.header if section.has_header else None)


@dataclass(frozen=True, slots=True)
class CsvParser(FieldParser):
    """The parser of delimited records.

    Texts in `nulls` are NULL unless they are quoted. `order` names the columns if they are not the fields in order. An
    empty record is skipped, unless records have one column: then it is that column's value. Raises SettingsError for
    invalid fields, and for an empty delimiter.
    """

    fields: tuple[Field, ...]
    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""
    nulls: tuple[bytes, ...] = (b"",)
    record_delimiter: bytes = b"\n"
    order: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse invalid fields and an empty delimiter."""
        if not self.delimiter:
            raise SettingsError("the delimiter is empty", "Set it, for example to a comma.")
        require_unsized(self.fields, "csv")

    def _with(self, fields: tuple[Field, ...]) -> CsvParser:
        return replace(self, fields=fields, order=self.order or tuple(field.name for field in self.fields))

    def header(self, record: bytes) -> CsvParser:
        """Return the parser for the records after this header; columns that are not fields are ignored.

        If no column has exactly the name of a field, case is ignored. Raises InvalidHeader if a field is missing or
        appears twice.
        """
        buffer = np.frombuffer(record, np.uint8)
        whole = Records(buffer, np.array([0]), np.array([buffer.size]))
        count = int(Cells.of(whole, self._marks, np.empty(0, np.int64)).count[0])
        if count in BROKEN:
            raise InvalidHeader(SYNTAX, f"the header: {BROKEN[count]}")
        cells = Cells.of(whole, self._marks, np.arange(count))
        names = [_name(*cells.texts(row, ()).some(np.zeros(1, np.int64))) for row in range(count)]
        order = list(names)
        for field in self.fields:
            same = [at for at, name in enumerate(names) if name == field.name]
            same = same or [at for at, name in enumerate(names) if name.casefold() == field.name.casefold()]
            if len(same) != 1:
                there = ", ".join(names) or "none"
                what = "repeats" if same else "does not have"
                raise InvalidHeader(COLUMNS, f"the header {what} the field {field.name!r}; its columns: {there}")
            order[same[0]] = field.name
        return replace(self, order=tuple(order))

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        order = [field.name for field in self.fields] if self.order is None else self.order
        row = {field.name: number for number, field in enumerate(self.fields)}
        cells = Cells.of(records, self._marks, np.array([row.get(name, IGNORED) for name in order]))
        count = len(order)
        texts = (cells.texts(number, self.nulls) for number in row.values())
        chosen, skipped = np.flatnonzero(cells.count == count), np.flatnonzero(cells.count == EMPTY)
        return self.join(map(convert, texts, self.fields), chosen, _explain_cell_count(cells.count, count), skipped)

    @property
    def _marks(self) -> Marks:
        escapes = self.quote and self.escape and self.escape != self.quote  # a quote is escaped by doubling it
        delimiter, line = (read_only(np.frombuffer(text, np.uint8)) for text in (self.delimiter, self.record_delimiter))
        quote, escape = self.quote[0] if self.quote else -1, self.escape[0] if escapes else -1
        return Marks(delimiter, quote, escape, line)


def _explain_cell_count(count: Ints, expected: int) -> Iterator[pa.Table]:
    bad = np.flatnonzero((count != expected) & (count != EMPTY))
    for columns_there in np.unique(count[bad]).tolist():
        record = bad[count[bad] == columns_there]
        if columns_there in BROKEN:
            yield uniform_rejects(record, SYNTAX, None, BROKEN[columns_there])
        else:
            there = f"{columns_there} column{'s' if columns_there > 1 else ''}"
            yield uniform_rejects(record, COLUMNS, None, f"{there} instead of {expected}")


def _name(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidHeader(ENCODING, f"the header: {quote_bytes(text)} is not UTF-8") from None
