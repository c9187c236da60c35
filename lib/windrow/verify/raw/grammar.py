"""Check with a regular expression that a CSV record of several lines is one record and did not swallow others.

The equation bytes in good records + rejected bytes = bytes read also holds if a record contains ten lines because of a
stray quote. RFC 4180 (with the declared escape) defines a record, and the expression follows this definition, not the
automaton that framed the record. Records of one line, nearly all of them, are not matched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.formats.format import Format
from windrow.formats.raw.arrived import chunks_by_source
from windrow.formats.raw.decompression import Decompression
from windrow.formats.raw.segment import ByteRun
from windrow.formats.raw.source import BEGIN, CHUNK, RawSourceState, sources_of
from windrow.formats.raw.stage import StageResult, release_chunks
from windrow.formats.settings import FormatSettings

PLACE = pa.schema([("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64())])
FOUND = PLACE.append(pa.field("form", pa.int64()))


class Grammar(NamedTuple):
    """What matches one record, and what ends a line."""

    expression: re.Pattern[bytes]
    delimiter: bytes


def csv_record(section: FormatSettings) -> re.Pattern[bytes]:
    """Return the expression that matches one CSV record, with or without its delimiter.

    After a value of several lines, an unquoted value contains no quote.
    """
    quote, escape, column, end = (
        re.escape(text.encode())
        for text in (section.quote_char, section.escape_char, section.delimiter, section.record_delimiter)
    )
    inside = (
        rb"[^%b]|%b%b" % (quote, quote, quote) if escape in {b"", quote} else rb"[^%b%b]|%b." % (quote, escape, escape)
    )
    line, lines = (
        rb"%b(?:%b)*+%b *" % (quote, character, quote) for character in (rb"(?!%b)(?:%b)" % (end, inside), inside)
    )
    plain = rb"(?!%b)(?:(?!%b|%b).)*+" % (quote, column, end)
    strict = rb"(?:(?!%b|%b|%b).)*+" % (quote, column, end)
    first, then = rb"(?:%b|%b)" % (line, plain), rb"(?:%b|%b)" % (lines, strict)
    return re.compile(rb"(?:%b%b)*%b(?:%b%b)*(?:\r?%b)?" % (first, column, then, column, then, end), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Framings:
    """The bytes taken from raw sources, by chunk, and where the reader found records and rejects in them.

    `form` is the number of the grammar of a record, -1 if there is none.
    """

    contents: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(bytes)))
    places: list[pa.Table] = field(default_factory=lambda: [FOUND.empty_table()])
    grammars: list[Grammar] = field(default_factory=list)

    def add(self, rows: pa.Table, partial: pa.Table, staged: StageResult, format_: Format) -> None:
        """Add the staged result of rows, given the partial rows before. Fields named as in `PLACE` hide records."""
        limits, form = format_.limits, -1
        sources = sources_of(partial)
        for name, chunks in chunks_by_source(rows).items():
            source = sources.get(name) or RawSourceState(name)
            steps, _ = release_chunks(source, chunks, format_)
            if format_.codec != "none" or source.encoded:
                steps = Decompression.of(source, steps, format_).steps
            for run in steps:
                if isinstance(run, ByteRun):
                    self._add_run(name, run)
        if limits.type == "csv" and limits.quote_char and not any(name in limits.fields for name in PLACE.names):
            form = len(self.grammars)
            self.grammars.append(Grammar(csv_record(limits), limits.record_delimiter.encode()))
        rejects = staged.rejects.filter(pc.is_valid(staged.rejects["offset"]))
        for table, own in ((staged.fields, form), (rejects, -1)):
            places = table.select(PLACE.names).append_column("form", pa.repeat(own, table.num_rows))
            self.places.append(places.cast(FOUND))

    def _add_run(self, name: str, run: ByteRun) -> None:
        """Add the bytes of chunks; the bytes of one chunk may come in several runs."""
        bounds = [*run.pieces[:, BEGIN].tolist(), run.buffer.size]
        for chunk, begin, end in zip(run.pieces[:, CHUNK].tolist(), bounds, bounds[1:], strict=False):
            self.contents[name][chunk] += run.buffer[begin:end].tobytes()

    def several(self, partial: pa.Table) -> pa.Table:
        """Return the places (`PLACE`) of good records that violate the grammar; `partial` is what is unfinished."""
        if not self.grammars:
            return PLACE.empty_table()
        own = partial.filter(pc.is_valid(partial["framing"]))
        rest = dict(zip(own["raw_source"].to_pylist(), pc.binary_length(own["content"]).to_pylist(), strict=True))
        places = pa.concat_tables(self.places).sort_by([(name, "ascending") for name in PLACE.names])
        ends = pc.run_end_encode(places["raw_source"].combine_chunks()).run_ends.to_pylist()
        wrong: list[dict[str, Any]] = []
        for begin, end in zip([0, *ends], ends, strict=False):
            name, part = places["raw_source"][begin].as_py(), places.slice(begin, end - begin)
            wrong += self._wrong(name, part, rest.get(name, 0))
        return pa.Table.from_pylist(wrong, PLACE)

    def _wrong(self, name: str, places: pa.Table, rest: int) -> Iterator[dict[str, Any]]:
        """Yield the wrong records of a source; its last `rest` bytes are unfinished."""
        numbers = sorted(self.contents[name])
        data = b"".join(self.contents[name][number] for number in numbers)
        base = np.cumsum([0, *(len(self.contents[name][number]) for number in numbers)])
        chunk, offset, form = (places[column].to_numpy() for column in ("chunk", "offset", "form"))
        begins = base[np.searchsorted(numbers, chunk)] + offset
        ends = np.append(begins[1:], len(data) - rest)
        for at in np.flatnonzero(form >= 0).tolist():
            begin, end, (expression, delimiter) = int(begins[at]), int(ends[at]), self.grammars[form[at]]
            if data.find(delimiter, begin, end - len(delimiter)) < 0:
                continue
            match = expression.match(data, begin, end)
            if match is None or data[match.end() : end].strip(b"\r" + delimiter):
                yield {"raw_source": name, "chunk": int(chunk[at]), "offset": int(offset[at])}
