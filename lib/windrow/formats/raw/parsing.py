"""Parse spans of bytes: the values of good records, and the reasons of bad ones.

A bad record of several lines may contain good ones: a quote opened in its first line, another quote far below closed
it, and a delimiter happened to follow. The record is cut off after its first line, and the remaining lines are framed
again. If the last one ends exactly where the record ends, they are records; otherwise the whole record is bad. So the
fate of a bad record, like that of a good one, depends only on its own bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import read_only, string_array
from windrow.columnar.compiled import Ints
from windrow.errors import FormatPluginError, WindrowError
from windrow.formats.format import Format
from windrow.formats.framing import GAP, MALFORMED, OPEN, OVERSIZE, RECORD, DelimitedFraming
from windrow.formats.installed import HINT, plugin_error
from windrow.formats.raw.spans import RecordSpans
from windrow.formats.records import (
    REJECTS,
    TEXT_AFTER_QUOTE,
    InvalidHeader,
    Parser,
    ParseResult,
    Records,
    uniform_rejects,
)
from windrow.formats.texts import gather_bytes

CUT = {
    OVERSIZE: ("format_oversize", "more bytes than max_record_bytes"),
    OPEN: ("format_syntax", "it is not finished when its source ends"),
    GAP: ("format_gap", "bytes before or after it never came"),
    MALFORMED: ("format_syntax", TEXT_AFTER_QUOTE),
}
MISFRAMED = string_array(["format_columns", "format_syntax"])  # reasons that may mean several records


@dataclass(frozen=True, slots=True)
class RecordValues:
    """The final spans, the rows of good ones (`span` has the span of each row), and the bad ones (`REJECTS`)."""

    spans: RecordSpans
    fields: pa.Table
    span: Ints
    bad: pa.Table


def parse(spans: RecordSpans, format_: Format) -> RecordValues:
    """Parse the spans that are records."""
    bad = [
        uniform_rejects(np.flatnonzero(spans.kind == what), reason, None, why) for what, (reason, why) in CUT.items()
    ]
    tables: list[pa.Table] = [format_.parser.schema.empty_table()]
    rows: list[Ints] = []
    todo = spans.records()
    bad += _bad_headers(spans, format_)
    while todo.size:
        result: list[pa.Table] = []
        for header, chosen in _by_header(spans, todo).items():
            table, row, refused = _parse_spans(spans, chosen, header, format_)
            tables.append(table)
            rows.append(row)
            result.append(refused)
        framing = format_.delimited
        before = spans.start.size
        spans = spans if framing is None else _repair(spans, pa.concat_tables(result), framing)
        bad += result
        todo = np.arange(before, spans.start.size)
    span, fields = np.concatenate([np.empty(0, np.int64), *rows]), pa.concat_tables(tables)
    if len(rows) > 1:
        order = np.argsort(spans.start[span], kind="stable")
        span, fields = span[order], fields.take(pa.array(order))
    return RecordValues(spans, fields, span, pa.concat_tables(bad))


def _by_header(spans: RecordSpans, chosen: Ints) -> dict[bytes | None, Ints]:
    columns = [segment.columns for segment in spans.segments]
    if len(set(columns)) == 1:
        return {columns[0]: chosen}
    groups: dict[bytes | None, list[int]] = defaultdict(list)
    for number, header in enumerate(columns):
        groups[header].append(number)
    return {header: chosen[np.isin(spans.segment[chosen], among)] for header, among in groups.items()}


def _parse_spans(
    spans: RecordSpans, chosen: Ints, header: bytes | None, format_: Format
) -> tuple[pa.Table, Ints, pa.Table]:
    """Parse spans with one header; return the fields, the spans they belong to, and the bad ones."""
    try:
        parser = format_.parser_of(header)
    except InvalidHeader as error:
        refused = uniform_rejects(chosen, error.reason, None, f"the header of its source: {error}")
        return format_.parser.schema.empty_table(), np.empty(0, np.int64), refused
    first, last = int(spans.start[chosen].min(initial=len(spans.buffer))), int(spans.end[chosen].max(initial=0))
    buffer = spans.buffer[first:last]
    start, end = format_.framing.content(buffer, spans.start[chosen] - first, spans.end[chosen] - first)
    parsed = _whole(parser, Records(buffer, start, end), format_.limits.type)
    return parsed.fields, chosen[parsed.record], _reject_by_span(parsed.rejects, chosen)


def _whole(parser: Parser, records: Records, name: str | None) -> ParseResult:
    """Parse records. Raises FormatPluginError if that fails, or unless each is good, bad or skipped exactly once."""
    try:
        parsed = parser.parse(records)
        good = (
            parsed.fields.schema == parser.schema
            and parsed.rejects.schema == REJECTS
            and parsed.fields.num_rows == parsed.record.size
            and _each_once(parsed, records.count)
        )
    except WindrowError:
        raise
    except Exception as error:
        raise plugin_error(name, "parse records", error) from error
    if not good:
        # guard: each-record-once
        raise FormatPluginError(f"the format {name!r} does not return each of {records.count} records once", HINT)
    return parsed


def _each_once(parsed: ParseResult, count: int) -> bool:
    """Tell whether the rows are in the order of their records, and all other records are either bad or skipped."""
    good = parsed.record
    if good.size and not (good[0] >= 0 and good[-1] < count and bool((good[1:] >= good[:-1]).all())):
        return False
    others = np.ones(count, np.bool_)
    others[good] = False
    named = np.append(parsed.rejects["record"].to_numpy(), parsed.skipped)
    return np.array_equal(np.flatnonzero(others), np.sort(named))


def _reject_by_span(rejects: pa.Table, chosen: Ints) -> pa.Table:
    """Return the rejects of a parser by span, with the field name in the detail."""
    span = pa.array(chosen[rejects["record"].to_numpy()], pa.int64())
    column, detail = rejects["column"], rejects["detail"]
    within = pc.if_else(column.is_valid(), pc.binary_join_element_wise(column, detail, ": "), detail)
    return pa.table([span, rejects["reason"], column, within], schema=REJECTS)


def _bad_headers(spans: RecordSpans, format_: Format) -> Iterator[pa.Table]:
    for span in spans.headers.tolist():
        try:
            format_.parser_of(spans.segments[int(spans.segment[span])].columns)
        except InvalidHeader as error:
            yield uniform_rejects(np.array([span]), error.reason, None, str(error))


def _repair(spans: RecordSpans, bad: pa.Table, framing: DelimitedFraming) -> RecordSpans:
    """Return the spans with bad records cut off after their first line, and their remaining lines as new records."""
    cut, ends = [], []
    parents, begins, stops = [], [], []
    for span in _of_several_lines(spans, bad, framing.delimiter).tolist():
        lines = _lines(spans, int(spans.start[span]), int(spans.end[span]), framing)
        if lines is None:
            continue
        cut.append(span)
        ends.append(lines[0])
        parents += [span] * (len(lines) - 1)
        begins += lines[:-1]
        stops += lines[1:]
    if not cut:
        return spans
    return spans.split(np.array(cut), np.array(ends), np.array(parents, np.int64), np.array(begins), np.array(stops))


def _of_several_lines(spans: RecordSpans, bad: pa.Table, delimiter: bytes) -> Ints:
    """Return bad spans that may be several records: those with the first byte of a delimiter before their end."""
    span: Ints = bad["record"].filter(pc.is_in(bad["reason"], value_set=MISFRAMED)).to_numpy()
    start = spans.start[span]
    content, bounds = gather_bytes(read_only(spans.buffer), start, np.maximum(start, spans.end[span] - len(delimiter)))
    first, behind = np.searchsorted(np.flatnonzero(content == delimiter[0]), [bounds[:-1], bounds[1:]])
    return span[first < behind]


def _lines(spans: RecordSpans, start: int, end: int, framing: DelimitedFraming) -> list[int] | None:
    """Return where the first line of a record ends, and each record after it; None if the last one does not fit."""
    content, delimiter = spans.buffer[start:end].tobytes(), framing.delimiter
    first = content.find(delimiter) + len(delimiter)
    if first < len(delimiter) or first >= len(content):
        return None
    rest = spans.buffer[start + first : end]
    framed = framing.frame(rest, 0, 0, last=not content.endswith(delimiter))
    # The parser rejects a malformed line, as it would anywhere.
    if framed.tail != len(rest) or not np.isin(framed.kind, (RECORD, MALFORMED)).all():
        return None
    return [start + first, *(framed.end + start + first).tolist()]
