"""Records that are one object each: JSON and MessagePack. Arrow columns are built from their members.

Records are decoded one by one, because only that ensures that a bad record does not affect its neighbours. This costs
little: no Python code runs per member, and columns are built from a few thousand objects at a time, which are still in
the processor's cache. Plain JSON records (see `flat`) are read column by column instead, in one pass. The decoder
defines what JSON is, and both ways give the same result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from windrow.columnar.compiled import Ints
from windrow.errors import SettingsError
from windrow.formats import grammar, shapes
from windrow.formats.conversion import CAST, ENCODING
from windrow.formats.fields import Field, require_unsized, type_text
from windrow.formats.flat import FlatJsonReader
from windrow.formats.format import Format
from windrow.formats.framing import Content, DelimitedFraming
from windrow.formats.records import SYNTAX, FieldParser, ParseResult, RecordError, Records, rejects
from windrow.formats.settings import FormatSettings

SLICE_RECORDS = 4096
SLICE_BYTES = 2**26
MAX_VALUE = 60
MSGPACK = msgspec.msgpack.Decoder(msgspec.Raw)
TOO_DEEP = "nests too deeply"
PLACED = re.compile(r"(?:.* is malformed: )?(?P<message>.*?) \(byte (?P<place>\d+)\)", re.DOTALL)
DEEPEST = 200
MAX_DEPTH = 32  # of records without delimiter: each level is a state of their automaton
SECOND, FIRST = 0x80, 0xC0  # bytes from SECOND on belong to a character of several bytes, from FIRST on they begin one
BLANKS = b" \t\r\n"
QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")
WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)
UNTYPED = msgspec.json.Decoder(float_hook=shapes.NumberText)


def build(section: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """Return the format `json`."""
    delimiter, most = section.record_delimiter.encode(), section.max_record_bytes
    if delimiter:
        return Format(DelimitedFraming(grammar.delimiter_automaton(delimiter), delimiter, most), Json(fields))
    return Format(DelimitedFraming(grammar.objects(MAX_DEPTH), b"\n", most, Content.VALUE), Json(fields))


class ObjectParser(FieldParser):
    """The parser of records that are objects with these fields."""

    def __init__(
        self, fields: Sequence[Field], decode: Callable[[bytes], Any], untyped: Callable[[bytes], Any]
    ) -> None:
        """`decode` is the method of a msgspec decoder of `shapes.structure`; `untyped` that of one without types."""
        self.fields = tuple(fields)
        self._decode, self._untyped = decode, untyped

    def _with(self, fields: tuple[Field, ...]) -> Self:
        kind: Any = type(self)
        return kind(fields)

    def explain(self, buffer: bytes, error: Exception) -> RecordError | None:
        """Say why a record cannot be decoded; None if it is empty and therefore skipped."""
        raise NotImplementedError

    def decode_untyped(self, buffer: bytes) -> Any:
        """Decode a record without types; `Repeated` objects keep all members with the same name."""
        return self._untyped(buffer)

    def parse_chosen(self, records: Records, chosen: Ints, known: dict[int, RecordError]) -> ParseResult:
        """Return the values of the chosen records, and the reasons of the bad ones; `known` were already found bad."""
        bad: dict[int, RecordError | None] = dict(known)
        batches, kept = [], []
        for numbers in _slices(records, chosen):
            batch, those = self._slice(records, numbers, bad)
            batches.append(batch)
            kept.append(those)
        return ParseResult(
            pa.Table.from_batches(batches, self.schema),
            np.concatenate([np.empty(0, np.int64), *kept]),
            rejects({number: why for number, why in bad.items() if why is not None}),
            np.array(sorted(number for number, why in bad.items() if why is None), np.int64),
        )

    def explain_mismatch(self, buffer: bytes, error: Exception) -> RecordError:
        """Explain where a well-formed record does not fit the fields."""
        message, _, place = str(error).partition(" - at `")
        path = place.removesuffix("`")
        if not path.startswith("$"):
            return RecordError(SYNTAX, None, str(error).lower())
        at_path = (node for node in self._nodes(buffer, self.decode_untyped) if node.path == path)
        node_at_fault = next((node for node in at_path if not shapes.has_field_type(node)), None)
        return RecordError(CAST, self._field(path), f"{path}: {message.lower()}{_preview(node_at_fault)}")

    def _slice(
        self, records: Records, numbers: Ints, bad: dict[int, RecordError | None]
    ) -> tuple[pa.RecordBatch, Ints]:
        pieces = _pieces(records, numbers)
        rows: list[Any] = []
        failed: list[int] = []
        decoded = map(self._decode, pieces)
        while True:
            try:
                rows.extend(decoded)  # keeps what was decoded before a failure; the next round continues after it
                break
            except shapes.FAILURES as error:
                at = len(rows) + len(failed)
                failed.append(at)
                bad[int(numbers[at])] = self.explain(pieces[at], error)
        return self._batch(records, rows, np.delete(numbers, failed), bad)

    def _batch(
        self, records: Records, rows: list[Any], numbers: Ints, bad: dict[int, RecordError | None]
    ) -> tuple[pa.RecordBatch, Ints]:
        columns, wrong = [], np.zeros(len(rows), np.bool_)
        for number, field in enumerate(self.fields):
            array, flags = shapes.column(list(map(attrgetter(f"_{number}"), rows)), field)
            columns.append(array)
            wrong |= flags
        for at in np.flatnonzero(wrong):
            bad[int(numbers[at])] = self._untimely(records.of(numbers[at]))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return (batch.filter(pa.array(~wrong)), numbers[~wrong]) if wrong.any() else (batch, numbers)

    def _untimely(self, buffer: bytes) -> RecordError:
        """Explain which value of a record cannot be read."""
        untimely = next((node for node in self._nodes(buffer, self._untyped) if not shapes.is_readable(node)), None)
        if untimely is None:
            return RecordError(CAST, None, "a value cannot be read")
        return RecordError(
            CAST, untimely.field.name, f"{untimely.path}: no {type_text(Field('', untimely.type))}{_preview(untimely)}"
        )

    def _nodes(self, buffer: bytes, decode: Callable[[bytes], Any]) -> Iterator[shapes.Node]:
        try:
            record = decode(buffer)
        except (ValueError, RecursionError):  # for example for an integer of thousands of digits
            return
        yield from shapes.nodes(record, self.fields)

    def _field(self, path: str) -> str | None:
        names = [field.name for field in self.fields if path.startswith(f"$.{field.name}")]
        return max(names, key=len, default=None)


class Json(ObjectParser):
    """The parser of JSON objects, whose members have the names of the fields.

    RFC 8259 is followed strictly: no NaN, no trailing comma, no lone surrogate. Members without a field are ignored if
    they are valid JSON. Of several members with the same name the last counts, but each must have the right type. A
    missing member and null are both NULL. A `json` field tells them apart: it is the unchanged text of the member,
    `null` included. Binary values are base64. A record of blanks is skipped. Raises SettingsError for fields that JSON
    cannot have.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        require_unsized(fields, "json")
        self._decoder = msgspec.json.Decoder(
            shapes.structure(fields), dec_hook=shapes.convert_value, float_hook=shapes.NumberText
        )
        self._flat = FlatJsonReader.of(fields)
        decode = self._decode_signed if shapes.has_floats(field.type for field in fields) else self._decoder.decode
        super().__init__(fields, decode, UNTYPED.decode)

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        bad = _find_misencoded(records)
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

    def _decode_signed(self, buffer: bytes) -> Any:
        """Decode a record, and keep the sign of `-0` in floats."""
        record = self._decoder.decode(buffer)
        if shapes.NEGATIVE_ZERO.search(buffer):
            shapes.sign_zeros(record, json.loads(buffer.decode(), parse_int=str, parse_float=str), self.fields)
        return record

    def explain(self, buffer: bytes, error: Exception) -> RecordError | None:
        """Say why a record cannot be decoded; None if it is blank."""
        if not buffer.strip(BLANKS):
            return None
        bad = ill_formed(WELL_FORMED, buffer, "ends within a value, or has half of a surrogate pair")
        return bad or self.explain_mismatch(buffer, error)

    def decode_untyped(self, buffer: bytes) -> Any:
        """Decode a record without types, and keep all members with the same name."""
        return json.loads(buffer.decode(), parse_float=shapes.NumberText, object_pairs_hook=shapes.Repeated)


class MessagePack(ObjectParser):
    """The parser of MessagePack: each record is one map. Raises SettingsError for fields that MessagePack cannot have.

    Fields and reject reasons are the same as in JSON, with these differences: binary values are binary, texts without a
    field need not be UTF-8, and there are no `json` fields. Times are texts.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        for field in fields:
            if shapes.is_raw(field):
                raise SettingsError(f"field {field.name!r}: msgpack has no json fields", "Use another type.")
        require_unsized(fields, "msgpack")
        decoder = msgspec.msgpack.Decoder(shapes.structure(fields), dec_hook=shapes.convert_value)
        super().__init__(fields, decoder.decode, msgspec.msgpack.decode)

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        return self.parse_chosen(records, np.arange(records.count), {})

    def explain(self, buffer: bytes, error: Exception) -> RecordError:
        """Say why a record cannot be decoded."""
        bad = ill_formed(MSGPACK, buffer, "ends too early")
        if bad is not None:
            return bad
        if isinstance(error, UnicodeDecodeError):
            return RecordError(ENCODING, None, f"a text is not UTF-8: {error.reason}")
        return self.explain_mismatch(buffer, error)


def ill_formed(decoder: Any, buffer: bytes, unplaced: str) -> RecordError | None:
    """Explain why a decoder without types refuses a record, or None; `unplaced` is the reason if no place is known."""
    try:
        decoder.decode(buffer)
    except RecursionError:
        return RecordError(SYNTAX, None, TOO_DEEP)
    except msgspec.DecodeError as malformed:
        placed = PLACED.fullmatch(str(malformed))
        return RecordError(SYNTAX, None, f"{placed['message']} at byte {placed['place']}" if placed else unplaced)
    return None


def _slices(records: Records, numbers: Ints) -> Iterator[Ints]:
    """Split the numbers so that few records and bytes are decoded at a time."""
    byte_counts = np.cumsum(records.end[numbers] - records.start[numbers])
    rank = np.arange(len(numbers)) // SLICE_RECORDS + byte_counts // SLICE_BYTES
    cuts = np.flatnonzero(np.diff(rank)) + 1
    return (slice_ for slice_ in np.split(numbers, cuts) if len(slice_))


def _pieces(records: Records, numbers: Ints) -> list[bytes]:
    start, end = records.start[numbers], records.end[numbers]
    first, buffer = start[0], records.buffer[start[0] : end[-1]].tobytes()
    return [buffer[begin:stop] for begin, stop in zip((start - first).tolist(), (end - first).tolist(), strict=True)]


def _preview(node: shapes.Node | None) -> str:
    if node is None:
        return ""
    text = json.dumps(node.value, ensure_ascii=False, default=str, skipkeys=True)
    return f": {text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + '…'}"


def _find_misencoded(records: Records) -> dict[int, RecordError]:
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
    """Find records that nest deeper than DEEPEST, before the decoder hits a stack limit that depends on its caller."""
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
