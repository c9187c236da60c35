"""Parsing of spans: good records, and why the others are bad.

A record over several lines that is bad may hold good ones: a quote was opened in the first line, and another one far
behind closed it. Such a record is cut off behind its first line, and the others are framed anew. If they come out even
at its end they are records; if not, it is bad as a whole. So a bad record is told by its own octets, like a good one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.formats.format import Format
from windrow.formats.framing import GAP, OPEN, OVERSIZE, RECORD, DelimitedFraming
from windrow.formats.records import HeaderRefused, Ints, Parsed, Records
from windrow.raw.spans import Spans

CUT = {
    OVERSIZE: ("format_oversize", "more octets than max_record_bytes"),
    OPEN: ("format_syntax", "it is not finished where its source ends"),
    GAP: ("format_gap", "octets before or behind it never came"),
}
MISFRAMED = {"format_columns", "format_syntax"}  # of a record that may be several


@dataclass(frozen=True, slots=True)
class Bad:
    """A span that is no record, and why; `field` is the one that is bad (None: the record as a whole)."""

    span: int
    reason: str
    detail: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """The spans as they were parsed in the end, the fields of the good ones (`span` says which), and the bad ones."""

    spans: Spans
    fields: pa.Table
    span: Ints
    bad: list[Bad]


def parse(spans: Spans, format_: Format) -> Values:
    """Parse the records among spans."""
    bad = [Bad(span, *CUT[int(spans.what[span])]) for span in np.flatnonzero(spans.what != RECORD).tolist()]
    tables: list[pa.Table] = [format_.parser.schema.empty_table()]
    rows: list[Ints] = []
    todo = spans.records()
    bad += list(_bad_headers(spans, format_))
    while todo.size:
        found: list[Bad] = []
        for header, chosen in _by_header(spans, todo).items():
            table, row, refused = _parsed(spans, chosen, header, format_)
            tables.append(table)
            rows.append(row)
            found += refused
        framing = format_.delimited
        before = spans.count
        spans = spans if framing is None else _repaired(spans, found, framing)
        bad += found
        todo = np.arange(before, spans.count)
    span = np.concatenate([np.empty(0, np.int64), *rows])
    order = np.argsort(spans.begin[span], kind="stable")
    fields = pa.concat_tables(tables)
    return Values(spans, fields.take(pa.array(order)) if len(rows) > 1 else fields, span[order], bad)


def _by_header(spans: Spans, chosen: Ints) -> dict[bytes | None, Ints]:
    """Group spans by the header of their source."""
    columns = [segment.columns for segment in spans.segments]
    if len(set(columns)) == 1:
        return {columns[0]: chosen}
    groups: dict[bytes | None, list[int]] = defaultdict(list)
    for number, header in enumerate(columns):
        groups[header].append(number)
    return {header: chosen[np.isin(spans.segment[chosen], among)] for header, among in groups.items()}


def _parsed(spans: Spans, chosen: Ints, header: bytes | None, format_: Format) -> tuple[pa.Table, Ints, list[Bad]]:
    """Parse spans of one header; return fields, of which spans they are, and the bad ones."""
    try:
        parser = format_.parser_of(header)
    except HeaderRefused as error:
        refused = [Bad(span, error.reason, f"the header of its source: {error}") for span in chosen.tolist()]
        return format_.parser.schema.empty_table(), np.empty(0, np.int64), refused
    begin, end = format_.framing.content(spans.octets, spans.begin[chosen], spans.end[chosen])
    parsed: Parsed = parser.parse(Records(spans.octets, begin, end))
    refused = [
        Bad(int(chosen[one["record"]]), one["reason"], _detail(one["column"], one["detail"]), one["column"])
        for one in parsed.rejects.to_pylist()
    ]
    return parsed.fields, chosen[parsed.record], refused


def _bad_headers(spans: Spans, format_: Format) -> Iterator[Bad]:
    for span in spans.headers.tolist():
        try:
            format_.parser_of(spans.segments[int(spans.segment[span])].columns)
        except HeaderRefused as error:
            yield Bad(span, error.reason, str(error))


def _repaired(spans: Spans, bad: list[Bad], framing: DelimitedFraming) -> Spans:
    """Return the spans with bad records of several lines cut behind the first line, and the others as new records."""
    cut, ends = [], []
    parents, begins, behind = [], [], []
    for one in bad:
        if one.reason not in MISFRAMED:
            continue
        found = _lines(spans, int(spans.begin[one.span]), int(spans.end[one.span]), framing)
        if found is None:
            continue
        cut.append(one.span)
        ends.append(found[0])
        parents += [one.span] * (len(found) - 1)
        begins += found[:-1]
        behind += found[1:]
    shorter = spans.shortened(np.array(cut, np.int64), np.array(ends, np.int64))
    return shorter.split(np.array(parents, np.int64), np.array(begins, np.int64), np.array(behind, np.int64))


def _lines(spans: Spans, begin: int, end: int, framing: DelimitedFraming) -> list[int] | None:
    """Return where the first line of a record ends, and each record behind it; None where they come out uneven."""
    content, delimiter = spans.octets[begin:end].tobytes(), framing.delimiter
    first = content.find(delimiter) + len(delimiter)
    if first < len(delimiter) or first >= len(content):
        return None
    rest = spans.octets[begin + first : end]
    framed = framing.frame(rest, 0, 0, last=not content.endswith(delimiter))
    if framed.rest != len(rest) or framed.what.any():
        return None
    return [begin + first, *(framed.end + begin + first).tolist()]


def _detail(column: str | None, detail: str) -> str:
    return detail if column is None else f"{column}: {detail}"
