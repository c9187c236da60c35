"""JSON: records that are each one object, with members by the names of the fields.

What is JSON says RFC 8259, to the letter: no NaN, no comma too many, no half of a surrogate pair. Members that no field
asks for are ignored, if they are JSON. Of members of one name the last counts, but each must be of its type. A missing
member and null are both NULL; a field of type string with the pattern `json` tells them apart, being the text of the
member as it stands there, `null` included. Binary is base64. A record of blanks says nothing and is skipped.

Records that are plain (`flat`) are read column by column, in one pass. What is left is decoded record by record, which
is the judge of what is JSON; both come to the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa

from windrow.formats.fields import Field, require_unsized
from windrow.formats.flat import Flat
from windrow.formats.members import TOO_DEEP, Members
from windrow.formats.reasons import ENCODING, SYNTAX, Bad, misencoded
from windrow.formats.records import Ints, Parsed, Records
from windrow.formats.shapes import checked, structure

DEEPEST = 200
SECOND, FIRST = 0x80, 0xC0  # from where on a byte is one of a character of several, or the first of them
BLANKS = b" \t\r\n"
PLACED = re.compile(r"(?:JSON is malformed: )?(?P<message>.*?) \(byte (?P<place>\d+)\)")
QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")
WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)
UNTYPED = msgspec.json.Decoder(float_hook=Decimal)


class Json:
    """The parser of JSON objects with some fields. Raises SettingsError for fields that JSON cannot have."""

    def __init__(self, fields: Sequence[Field]) -> None:
        require_unsized(fields, "json")
        decoder = msgspec.json.Decoder(structure(fields), dec_hook=checked, float_hook=Decimal)
        self._flat = Flat.of(fields)
        self._members = Members(tuple(fields), decoder.decode, UNTYPED.decode, self._explain)

    @property
    def schema(self) -> pa.Schema:
        """Return the fields and their types."""
        return self._members.schema

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
        bad = _misencoded(records)
        plain, record = self._flat.read(records, np.delete(np.arange(records.count), list(bad)))
        others = np.delete(np.arange(records.count), record)
        bad = _too_deep(records, others) | bad
        judged = self._members.parse(records, np.setdiff1d(others, list(bad), assume_unique=True), bad)
        if not judged.record.size:
            return replace(judged, fields=plain, record=record)
        together = np.concatenate([record, judged.record])
        order = np.argsort(together)
        fields = pa.concat_tables([plain, judged.fields]).take(pa.array(order))
        return replace(judged, fields=fields, record=together[order])

    def _explain(self, buffer: bytes, error: Exception) -> Bad | None:
        if not buffer.strip(BLANKS):
            return None
        try:
            WELL_FORMED.decode(buffer)
        except RecursionError:
            return Bad(SYNTAX, None, TOO_DEEP)
        except msgspec.DecodeError as malformed:
            return Bad(SYNTAX, None, _malformed(str(malformed)))
        return self._members.misfit(buffer, error)


def _malformed(message: str) -> str:
    placed = PLACED.fullmatch(message)
    if placed is None:
        return "ends within a value, or has half of a surrogate pair"
    return f"{placed['message']} at byte {placed['place']}"


def _misencoded(records: Records) -> dict[int, Bad]:
    """Find what is no UTF-8: at once whether there is any, and where there may be some each record by itself."""
    buffer = records.buffer
    if buffer.max(initial=0) < SECOND:
        return {}
    bounds = np.array([0, len(buffer)], np.int64)
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])
    cuts = np.concatenate([records.begin, records.end])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        inside = buffer[cuts[cuts < len(buffer)]]
        if not np.any((inside >= SECOND) & (inside < FIRST)):
            return {}
    beyond_ascii = np.searchsorted(records.begin, np.flatnonzero(buffer >= SECOND), "right") - 1
    found = ((int(number), misencoded(records.of(number))) for number in np.unique(beyond_ascii) if number >= 0)
    return {number: Bad(ENCODING, None, detail) for number, detail in found if detail is not None}


def _too_deep(records: Records, chosen: Ints) -> dict[int, Bad]:
    """Find what nests deeper than DEEPEST, before a decoder meets the bounds of a stack that depends on its caller."""
    long: Ints = chosen[records.end[chosen] - records.begin[chosen] > 2 * DEEPEST]
    return {int(number): Bad(SYNTAX, None, TOO_DEEP) for number in long if _depth(records.of(number)) > DEEPEST}


def _depth(buffer: bytes) -> int:
    """Return how deep brackets and braces nest, and no more than their number where that is small."""
    if buffer.count(b"[") + buffer.count(b"{") <= DEEPEST:
        return 0
    depth = deepest = 0
    for bracket in BRACKETS.findall(QUOTED.sub(b"", buffer)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest
