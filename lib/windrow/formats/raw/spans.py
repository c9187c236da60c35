"""Spans of all sources of a microbatch side by side, over one run of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, read_only
from windrow.formats.framing import RECORD
from windrow.formats.raw.segment import Segment
from windrow.formats.raw.source import BEGIN, Pieces, placed
from windrow.formats.records import ByteArray, Ints
from windrow.formats.texts import Texts

CONTENT_BYTES = 1_073_741_824  # of an array, and at most as much again for one more span
PLACE = [("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("received_at", TIME)]

Number = TypeVar("Number", np.uint8, np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """Bytes from `begin` to `end`, what each is (`framing.RECORD`, ...), in which depot version that was known.

    `segment` says of which segment a span is; `pieces` of which chunks the bytes are. `headers` are spans that name
    the columns.
    """

    segments: Sequence[Segment]
    buffer: ByteArray
    pieces: Pieces
    begin: Ints
    end: Ints
    what: Ints
    version: Ints
    segment: Ints
    headers: Ints

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Spans:
        """Return the spans of segments."""
        base = np.cumsum([0, *(len(segment.buffer) for segment in segments)])[:-1]
        counts = [len(segment.begin) for segment in segments]
        first = np.cumsum([0, *counts])[:-1]
        shift = np.repeat(base, counts)
        pieces = [segment.pieces.copy() for segment in segments]
        for part, begin in zip(pieces, base.tolist(), strict=True):
            part[:, BEGIN] += begin
        headers = [at + segment.header for at, segment in zip(first, segments, strict=True) if segment.header >= 0]
        return cls(
            segments=segments,
            buffer=_together([segment.buffer for segment in segments], np.uint8),
            pieces=np.concatenate([np.empty((0, 5), np.int64), *pieces]),
            begin=_together([segment.begin for segment in segments], np.int64) + shift,
            end=_together([segment.end for segment in segments], np.int64) + shift,
            what=_together([segment.what for segment in segments], np.int64),
            version=_together([segment.version for segment in segments], np.int64),
            segment=np.repeat(np.arange(len(segments)), counts),
            headers=np.array(headers, np.int64),
        )

    @property
    def count(self) -> int:
        """Return how many there are."""
        return int(self.begin.size)

    def records(self) -> Ints:
        """Return which spans are records that hold values."""
        held = self.what == RECORD
        held[self.headers] = False
        return np.flatnonzero(held)

    def split(self, parents: Ints, begin: Ints, end: Ints) -> Spans:
        """Return the spans with more records behind them, each a part of the span that is its parent."""
        return replace(
            self,
            begin=np.append(self.begin, begin),
            end=np.append(self.end, end),
            what=np.append(self.what, np.full(begin.size, RECORD)),
            version=np.append(self.version, self.version[parents]),
            segment=np.append(self.segment, self.segment[parents]),
        )

    def shortened(self, spans: Ints, end: Ints) -> Spans:
        """Return the spans with some of them ending earlier."""
        ends = self.end.copy()
        ends[spans] = end
        return replace(self, end=ends)

    def places(self, spans: Ints) -> dict[str, pa.Array]:
        """Return where spans begin, and when the chunk was received that completed each: the columns of `PLACE`."""
        columns = np.ascontiguousarray(self.pieces.T)
        chunk, offset, received = placed(columns, self.begin, self.end, spans)
        return {
            "raw_source": self._names(spans),
            "chunk": pa.array(chunk),
            "offset": pa.array(offset),
            "received_at": pa.array(received).view(TIME),
        }

    def contents(self, spans: Ints) -> pa.ChunkedArray:
        """Return the bytes of spans, in arrays that are no longer than Arrow allows."""
        buffer = read_only(self.buffer)
        texts = Texts(buffer, self.begin[spans], self.end[spans], np.ones(spans.size, np.bool_))
        part = np.cumsum(texts.end - texts.begin) // CONTENT_BYTES
        parts = [texts.take(np.flatnonzero(part == one)).array(pa.binary()) for one in np.unique(part)]
        return pa.chunked_array(parts, pa.binary())

    def _names(self, spans: Ints) -> pa.Array:
        """Return the source of each span; mostly it is that of the span before."""
        segment = self.segment[spans] if len(self.segments) > 1 else np.zeros(spans.size, np.int8)
        behind = np.append(np.flatnonzero(segment[1:] != segment[:-1]) + 1, segment.size)[: segment.size]
        names = pa.array([self.segments[number].source for number in segment[behind - 1].tolist()], pa.string())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(behind), names))


def _together(parts: Sequence[npt.NDArray[Number]], kind: type[Number]) -> npt.NDArray[Number]:
    """Return arrays one behind the other; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, kind), *parts])
