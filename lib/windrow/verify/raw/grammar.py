"""Check with a regular expression that a CSV record of several lines is one record, and not one that swallowed others.

Bytes in good records + rejected bytes = bytes read holds also for a record that holds ten lines, because a quote was
opened by mistake. RFC 4180 (with the declared escape) says what one record is, and the expression is written from it,
not from the automaton that framed the record. Records of one line, which are nearly all, are not matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.formats.format import Format
from windrow.formats.part import FormatPart
from windrow.formats.raw.arrived import arrived_of
from windrow.formats.raw.stage import Staged

PLACE = pa.schema([("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64())])


def csv_record(section: FormatPart) -> re.Pattern[bytes]:
    """Return the expression that matches one record of CSV, with or without what ends it."""
    quote, escape, field, end = (
        re.escape(text.encode())
        for text in (section.quote, section.escape, section.delimiter, section.record_delimiter)
    )
    inside = (
        rb"[^%b]|%b%b" % (quote, quote, quote) if escape in {b"", quote} else rb"[^%b%b]|%b." % (quote, escape, escape)
    )
    quoted, plain = rb"%b(?:%b)*+%b *" % (quote, inside, quote), rb"(?!%b)(?:(?!%b|%b).)*" % (quote, field, end)
    value = rb"(?:%b|%b)" % (quoted, plain)
    return re.compile(rb"%b(?:%b%b)*(?:\r?%b)?" % (value, field, value, end), re.DOTALL)


def several_records(rows: pa.Table, staged: Staged, format_: Format) -> pa.Table:
    """Return the places (`PLACE`) of the good records among `staged` that are no record by the grammar.

    Only records whose first and last chunks are among `rows` are looked at.
    """
    section = format_.limits
    if section.type != "csv" or not section.quote or any(name in section.fields for name in PLACE.names):
        return PLACE.empty_table()
    parts = []
    for is_good, table in ((True, staged.fields), (False, staged.rejects)):
        places = table.select(PLACE.names).filter(pc.is_valid(table["offset"]))
        parts.append(places.append_column("good", pa.repeat(is_good, places.num_rows)))
    spans = pa.concat_tables(parts)
    found = list(_found(rows, spans, format_))
    return pa.Table.from_pylist(found, PLACE)


def _found(rows: pa.Table, spans: pa.Table, format_: Format) -> Iterator[dict[str, object]]:
    expression, delimiter = csv_record(format_.limits), format_.limits.record_delimiter.encode()
    for name, chunks in arrived_of(rows, format_.decode).items():
        content = {chunk.number: bytes(chunk.content) for chunk in chunks}
        numbers = sorted(content)
        data, base = b"".join(content[one] for one in numbers), np.cumsum([0, *(len(content[one]) for one in numbers)])
        own = spans.filter(pc.equal(spans["raw_source"], name))
        chunk, offset = own["chunk"].to_numpy(), own["offset"].to_numpy()
        is_here = np.isin(chunk, numbers)
        begin = base[np.searchsorted(numbers, chunk[is_here])] + offset[is_here]
        order = np.argsort(begin, kind="stable")
        begin, good = begin[order], own["good"].to_numpy(zero_copy_only=False)[is_here][order]
        for at, end in zip(begin[good].tolist(), np.append(begin, len(data))[1:][good].tolist(), strict=True):
            if data.find(delimiter, at, end - len(delimiter)) < 0:
                continue
            record = expression.match(data, at, end)
            behind = data[record.end() : end].strip(b"\r" + delimiter) if record else b""
            # Behind the last record bytes may follow that are unfinished.
            whole = record and (not behind or (end == len(data) and record[0].endswith(delimiter)))
            if not whole:
                number = int(np.searchsorted(base, at, side="right")) - 1
                yield {"raw_source": name, "chunk": numbers[number], "offset": at - int(base[number])}
