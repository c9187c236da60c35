"""The spans of all sources of a microbatch, over one run of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, read_only
from windrow.columnar.compiled import ByteArray, Ints
from windrow.expressions import ColumnMapping
from windrow.formats.format import Format
from windrow.formats.framing import RECORD
from windrow.formats.raw.segment import Segment, concat_arrays
from windrow.formats.raw.source import BEGIN, Pieces, locate_spans
from windrow.formats.texts import Texts
from windrow.model.messages import COLUMNS as MESSAGE

CONTENT_BYTES = 1_073_741_824  # per array; the last span may add as much again
PLACE = [
    ("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("ordinal", pa.int64()),
    ("received_at", TIME),
]  # fmt: skip
SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


@dataclass(frozen=True, slots=True)
class RecordSpans:
    """Spans from `start` to `end`, what each is (`framing.RECORD`, ...), and the depot version that completed it.

    `segment` is the segment of each span, `pieces` are the chunks that the bytes come from. `headers` are the spans
    that name the columns.
    """

    segments: Sequence[Segment]
    buffer: ByteArray
    pieces: Pieces
    start: Ints
    end: Ints
    kind: Ints
    version: Ints
    segment: Ints
    headers: Ints

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> RecordSpans:
        """Combine the spans of segments."""
        base = np.cumsum([0, *(len(segment.buffer) for segment in segments)])[:-1]
        framed = [segment.framed for segment in segments]
        counts = [len(result.start) for result in framed]
        first = np.cumsum([0, *counts])[:-1]
        shift = np.repeat(base, counts)
        pieces = [segment.pieces.copy() for segment in segments]
        for of_segment, start in zip(pieces, base.tolist(), strict=True):
            of_segment[:, BEGIN] += start
        headers = [at + segment.header for at, segment in zip(first, segments, strict=True) if segment.header >= 0]
        return cls(
            segments=segments,
            buffer=concat_arrays([segment.buffer for segment in segments], np.uint8),
            pieces=np.concatenate([np.empty((0, 5), np.int64), *pieces]),
            start=concat_arrays([result.start for result in framed], np.int64) + shift,
            end=concat_arrays([result.end for result in framed], np.int64) + shift,
            kind=concat_arrays([result.kind for result in framed], np.int64),
            version=concat_arrays([segment.version for segment in segments], np.int64),
            segment=np.repeat(np.arange(len(segments)), counts),
            headers=np.array(headers, np.int64),
        )

    def records(self) -> Ints:
        """Return which spans are records with values, not headers."""
        is_record = self.kind == RECORD
        is_record[self.headers] = False
        return np.flatnonzero(is_record)

    def between(self, start: int, end: int) -> RecordSpans:
        """Return the spans from number `start` to `end`, renumbered from 0."""
        own, headers = slice(start, end), self.headers[(start <= self.headers) & (self.headers < end)]
        columns = {name: getattr(self, name)[own] for name in ("start", "end", "kind", "version", "segment")}
        return replace(self, headers=headers - start, **columns)

    def split(self, shortened: Ints, ends: Ints, parents: Ints, start: Ints, end: Ints) -> RecordSpans:
        """Shorten some spans, and append records, each with the version and the segment of its parent span."""
        former = self.end.copy()
        former[shortened] = ends
        return replace(
            self,
            start=np.append(self.start, start),
            end=np.append(former, end),
            kind=np.append(self.kind, np.full(start.size, RECORD)),
            version=np.append(self.version, self.version[parents]),
            segment=np.append(self.segment, self.segment[parents]),
        )

    def places(self, spans: Ints) -> dict[str, pa.Array]:
        """Return the columns of `PLACE`: where spans begin, and when the chunk that completed each was received.

        Rows of one span follow each other; the `ordinal` numbers them from 0.
        """
        columns = np.ascontiguousarray(self.pieces.T)
        chunk, offset, received = locate_spans(columns, self.start, self.end, spans)
        return {
            "raw_source": self._names(spans),
            "chunk": pa.array(chunk),
            "offset": pa.array(offset),
            "ordinal": pa.array(number_repeats(spans)),
            "received_at": pa.array(received).view(TIME),
        }

    def contents(self, spans: Ints) -> pa.ChunkedArray:
        """Return the bytes of spans, in arrays within Arrow's size limit."""
        buffer = read_only(self.buffer)
        texts = Texts(buffer, self.start[spans], self.end[spans], np.ones(spans.size, np.bool_))
        number = np.cumsum(texts.end - texts.start) // CONTENT_BYTES
        arrays = [texts.take(np.flatnonzero(number == group)).array(pa.binary()) for group in np.unique(number)]
        return pa.chunked_array(arrays, pa.binary())

    def _names(self, spans: Ints) -> pa.Array:
        """Return the source of each span, run-length encoded at first, because neighbours mostly share it."""
        segment = self.segment[spans] if len(self.segments) > 1 else np.zeros(spans.size, np.int8)
        behind = np.append(np.flatnonzero(segment[1:] != segment[:-1]) + 1, segment.size)[: segment.size]
        names = pa.array([self.segments[number].source for number in segment[behind - 1].tolist()], pa.string())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(behind), names))


def number_repeats(values: Ints) -> Ints:
    """Number equal neighbours from 0."""
    at = np.arange(values.size)
    begins = np.where(np.append(True, values[1:] != values[:-1])[: values.size], at, 0)
    return at - np.maximum.accumulate(begins)


def with_places(fields: pa.Schema) -> pa.Schema:
    """Return the fields and the position of a record (`PLACE`); a field hides a position column of the same name."""
    return pa.schema([*fields, *(pa.field(name, type_) for name, type_ in PLACE if name not in fields.names)])


def narrow_format(mapping: ColumnMapping | None, format_: Format) -> tuple[Format, pa.Schema]:
    """Return the format that converts only what a mapping (or a message) uses, and the columns of records."""
    names = columns_of(format_.parser.schema).names
    # guard: unused-not-converted
    used = format_.using(MESSAGE if mapping is None else mapping.used_columns(names))
    return used, columns_of(used.parser.schema)


def columns_of(fields: pa.Schema) -> pa.Schema:
    """Return the same columns with types that both engines support.

    Integers are signed, timestamps are in microseconds, times of day are texts, and no list has a fixed length.
    """
    return pa.schema([pa.field(field.name, _common(field.type)) for field in with_places(fields)])


def _common(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return TIME
    if pa.types.is_time(type_):
        return pa.string()
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(_common(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), _common(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _common(field.type)) for field in type_])
    return SIGNED.get(type_, type_)
