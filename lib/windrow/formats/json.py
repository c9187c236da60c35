"""JSON: each record is one object, and its members have the names of the fields.

RFC 8259 is followed strictly: no NaN, no trailing comma, no half of a surrogate pair. Members without a field are
ignored if they are valid JSON. Of several members with one name the last counts, but each must have the right type. A
missing member and null are both NULL. A `json` field tells them apart: it is the unchanged text of the member, `null`
included. Binary values are base64. A record of blanks is skipped.

Plain records (see `flat`) are read column by column, in one pass. The others are decoded one by one. The decoder
defines what JSON is, and both ways give the same result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from windrow.columnar.compiled import Ints
from windrow.formats import grammar
from windrow.formats.conversion import ENCODING
from windrow.formats.fields import Field, require_unsized
from windrow.formats.flat import FlatJsonReader
from windrow.formats.format import Format
from windrow.formats.framing import Content, DelimitedFraming
from windrow.formats.members import TOO_DEEP, ObjectParser, ill_formed
from windrow.formats.records import SYNTAX, ParseResult, RecordError, Records
from windrow.formats.settings import FormatSettings
from windrow.formats.shapes import NEGATIVE_ZERO, NumberText, Repeated, convert_value, has_floats, sign_zeros, structure

DEEPEST = 200
MAX_DEPTH = 32  # of records without delimiter: each level is a state of their automaton
SECOND, FIRST = 0x80, 0xC0  # bytes from SECOND on belong to a character of several bytes, from FIRST on they begin one
BLANKS = b" \t\r\n"
QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")
WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)
UNTYPED = msgspec.json.Decoder(float_hook=NumberText)


def build(section: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """Return the format `json`."""
    delimiter, most = section.record_delimiter.encode(), section.max_record_bytes
    if delimiter:
        return Format(DelimitedFraming(grammar.delimited(delimiter), delimiter, most), Json(fields))
    return Format(DelimitedFraming(grammar.objects(MAX_DEPTH), b"\n", most, Content.VALUE), Json(fields))


class Json(ObjectParser):
    """The parser of JSON objects. Raises SettingsError for fields that JSON cannot have."""

    def __init__(self, fields: Sequence[Field]) -> None:
        require_unsized(fields, "json")
        self._decoder = msgspec.json.Decoder(structure(fields), dec_hook=convert_value, float_hook=NumberText)
        self._flat = FlatJsonReader.of(fields)
        decode = self._signed if has_floats(field.type for field in fields) else self._decoder.decode
        super().__init__(fields, decode, UNTYPED.decode)

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        bad = _misencoded(records)
        plain, record = self._flat.read(records, np.delete(np.arange(records.count), list(bad)))
        others = np.delete(np.arange(records.count), record)
        bad = _too_deep(records, others) | bad
        judged = self.parse_chosen(records, np.setdiff1d(others, list(bad), assume_unique=True), bad)
        if not judged.record.size:
            return replace(judged, fields=plain, record=record)
        together = np.concatenate([record, judged.record])
        order = np.argsort(together)
        fields = pa.concat_tables([plain, judged.fields]).take(pa.array(order))
        return replace(judged, fields=fields, record=together[order])

    def _signed(self, buffer: bytes) -> Any:
        """Decode a record, and keep the sign of `-0` in floats."""
        record = self._decoder.decode(buffer)
        if NEGATIVE_ZERO.search(buffer):
            sign_zeros(record, json.loads(buffer.decode(), parse_int=str, parse_float=str), self.fields)
        return record

    def explain(self, buffer: bytes, error: Exception) -> RecordError | None:
        """Say why a record cannot be decoded; None if it is blank."""
        if not buffer.strip(BLANKS):
            return None
        bad = ill_formed(WELL_FORMED, buffer, "ends within a value, or has half of a surrogate pair")
        return bad or self.explain_mismatch(buffer, error)

    def untyped(self, buffer: bytes) -> Any:
        """Decode a record without types, and keep all members with one name."""
        return json.loads(buffer.decode(), parse_float=NumberText, object_pairs_hook=Repeated)


def _misencoded(records: Records) -> dict[int, RecordError]:
    """Find records that are not UTF-8: check all bytes at once, and record by record only if that fails."""
    buffer = records.buffer
    if buffer.max(initial=0) < SECOND:
        return {}
    bounds = np.array([0, len(buffer)], np.int64)
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])
    cuts = np.concatenate([records.start, records.end])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        inside = buffer[cuts[cuts < len(buffer)]]
        if not np.any((inside >= SECOND) & (inside < FIRST)):
            return {}
    beyond_ascii = np.searchsorted(records.start, np.flatnonzero(buffer >= SECOND), "right") - 1
    bad = {}
    for number in np.unique(beyond_ascii[beyond_ascii >= 0]).tolist():
        try:
            records.of(number).decode()
        except UnicodeDecodeError as error:
            bad[number] = RecordError(ENCODING, None, f"not UTF-8 at byte {error.start}: {error.reason}")
    return bad


def _too_deep(records: Records, chosen: Ints) -> dict[int, RecordError]:
    """Find records that nest deeper than DEEPEST, before the decoder meets a stack limit that depends on its caller."""
    long: Ints = chosen[records.end[chosen] - records.start[chosen] > 2 * DEEPEST]
    return {int(number): RecordError(SYNTAX, None, TOO_DEEP) for number in long if _depth(records.of(number)) > DEEPEST}


def _depth(buffer: bytes) -> int:
    """Return how deep brackets and braces nest, or 0 if there are too few of them to matter."""
    if buffer.count(b"[") + buffer.count(b"{") <= DEEPEST:
        return 0
    depth = deepest = 0
    for bracket in BRACKETS.findall(QUOTED.sub(b"", buffer)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest
