"""A segment: framed bytes of a raw source without a gap, and the chunks they come from.

It begins with the bytes that an earlier microbatch left, and ends with the last chunk so far, or at a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from windrow.columnar.compiled import ByteArray, Ints
from windrow.formats.format import Format
from windrow.formats.framing import AFTER_GAP, BLANK, GAP, RECORD, FrameResult, SpanCollector
from windrow.formats.raw.queue import ChunkGap, QueuedChunk, ReleasedChunk
from windrow.formats.raw.source import BEGIN, CHUNK, OFFSET, RECEIVED_AT, VERSION, Pieces, RawSourceState

Number = TypeVar("Number", np.uint8, np.int64)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NO_HEADER = b""  # the header of a source whose first chunk was given up


@dataclass(frozen=True, slots=True)
class ByteRun:
    """The bytes of consecutive chunks, a row of `Pieces` for each, and whether the source ends with them."""

    buffer: ByteArray
    pieces: Pieces
    last: bool

    @classmethod
    def of(cls, taken: list[ReleasedChunk]) -> ByteRun:
        """Join the chunks that a queue released."""
        contents = [np.frombuffer(step.chunk.content, np.uint8) for step in taken]
        begins = np.cumsum([0, *(content.size for content in contents)])
        rows = [
            [start, step.chunk.number, step.chunk.offset, step.chunk.received_at, step.version]
            for start, step in zip(begins[:-1].tolist(), taken, strict=True)
        ]
        pieces = np.array(rows, np.int64).reshape(-1, 5)
        return cls(concat_arrays(contents, np.uint8), pieces, bool(taken) and taken[-1].chunk.last)

    @classmethod
    def of_chunks(cls, chunks: list[QueuedChunk]) -> ByteRun:
        """Join chunks that were released in their `version`."""
        return cls.of([ReleasedChunk(chunk, chunk.version) for chunk in chunks])

    def join(self, run: ByteRun) -> ByteRun:
        """Return the bytes of both runs."""
        pieces = run.pieces.copy()
        pieces[:, BEGIN] += self.buffer.size
        return ByteRun(
            concat_arrays([self.buffer, run.buffer], np.uint8), np.concatenate([self.pieces, pieces]), run.last
        )

    def chunks_from(self, at: int) -> list[QueuedChunk]:
        """Return the bytes from a position on as chunks, each with the version that released it."""
        if at == self.buffer.size:
            return []
        pieces, buffer = _skip_bytes(self.pieces, at), self.buffer[at:].tobytes()
        bounds = np.append(pieces[:, BEGIN], len(buffer)).tolist()
        return [
            QueuedChunk(row[CHUNK], buffer[start:end], False, row[RECEIVED_AT], row[VERSION], b"", offset=row[OFFSET])
            for row, start, end in zip(pieces.tolist(), bounds, bounds[1:], strict=False)
            if start < end
        ]


Step: TypeAlias = ByteRun | ChunkGap  # what comes next in a source


def steps_of(released: Iterable[ReleasedChunk | ChunkGap]) -> Iterator[Step]:
    """Join the chunks that a queue released, up to each gap."""
    for kind, steps in groupby(released, type):
        if kind is ChunkGap:
            yield from cast("Iterator[ChunkGap]", steps)
        else:
            yield ByteRun.of(cast("list[ReleasedChunk]", list(steps)))


@dataclass(frozen=True, slots=True)
class Segment:
    """Framed bytes, the chunks they come from, and the depot version that completed each span.

    `header` is the number of the span that names the columns, -1 if there is none; `columns` is its content. `mark` is
    the size of the byte-order mark, which is in no span.
    """

    source: str
    buffer: ByteArray
    pieces: Pieces
    framed: FrameResult
    version: Ints
    columns: bytes | None
    header: int = -1
    mark: int = 0


def segments(source: RawSourceState, steps: Iterable[Step], format_: Format) -> Iterator[Segment]:
    """Frame what a source's queue released, and keep the unfinished bytes in the source."""
    run: ByteRun | None = None
    for step in steps:
        if isinstance(step, ByteRun):
            if run is not None:
                yield _segment(source, run, format_)
            run = step
            continue
        yield _segment(source, run or ByteRun.of([]), format_, gap=step.version)
        run = None
        source.state = AFTER_GAP
        source.has_started = True
        if format_.header is not None and source.header is None:
            source.header = NO_HEADER
    if run is not None:
        yield _segment(source, run, format_)


def _segment(source: RawSourceState, run: ByteRun, format_: Format, gap: int | None = None) -> Segment:
    """Frame the rest of a source and the chunks after it; if a gap follows, in the version `gap`, no bytes are kept."""
    buffer, pieces = _join_rest(source, run, gap)
    last, seen = run.last, len(source.tail) if source.has_started else 0
    mark = _mark(source, buffer, format_, last or gap is not None)
    if mark < 0:
        source.tail, source.pieces = buffer.tobytes(), pieces
        return Segment(
            source.name, buffer[:0], pieces[:0], SpanCollector().result(0, 0), np.empty(0, np.int64), source.header
        )
    if mark:
        buffer, pieces = buffer[mark:], _skip_bytes(pieces, mark)
    changed = source.fingerprint != format_.fingerprint and source.state >= 0
    framed = format_.framing.frame(buffer, 0 if changed else seen, 0 if changed else source.state, last)
    if gap is not None:
        framed = _cut_rest(framed, len(buffer))
    source.fingerprint, source.state = format_.fingerprint, framed.state
    source.tail, source.pieces = buffer[framed.tail :].tobytes(), _skip_bytes(pieces, framed.tail)
    header = _header(source, framed, buffer, format_)
    first = np.searchsorted(framed.decided_after - 1, pieces[:, BEGIN])  # the first span that each piece completes
    version = np.repeat(pieces[:, VERSION], np.diff(first, append=framed.decided_after.size))
    if gap is not None:
        version[framed.decided_after > len(buffer)] = gap
    return Segment(source.name, buffer, pieces, framed, version, source.header, header, mark)


def _join_rest(source: RawSourceState, run: ByteRun, gap: int | None) -> tuple[ByteArray, Pieces]:
    """Return the rest of a source and a run, and their pieces; the rest gets the version that completes it."""
    if not source.tail:
        return run.buffer, run.pieces
    old, new = source.pieces.copy(), run.pieces.copy()
    old[:, VERSION] = new[0, VERSION] if len(new) or gap is None else gap
    new[:, BEGIN] += len(source.tail)
    return concat_arrays([np.frombuffer(source.tail, np.uint8), run.buffer], np.uint8), np.concatenate([old, new])


def concat_arrays(arrays: list[npt.NDArray[Number]], kind: type[Number]) -> npt.NDArray[Number]:
    """Concatenate arrays; if only one has values, it is not copied."""
    filled: list[npt.NDArray[Number]] = [array for array in arrays if array.size]
    return filled[0] if len(filled) == 1 else np.concatenate([np.empty(0, kind), *filled])


def _mark(source: RawSourceState, buffer: ByteArray, format_: Format, last: bool) -> int:
    """Return the size of the byte-order mark at the start of a source, -1 if it is not known yet."""
    if source.has_started or not format_.text:
        source.has_started = True
        return 0
    size = mark_size(buffer[: len(BYTE_ORDER_MARK)].tobytes(), last)
    source.has_started = size >= 0
    return size


def mark_size(start: bytes, last: bool) -> int:
    """Return the size of the byte-order mark at the start of the bytes, -1 if more are needed to tell."""
    if start.startswith(BYTE_ORDER_MARK):
        return len(BYTE_ORDER_MARK)
    return -1 if BYTE_ORDER_MARK.startswith(start) and not last else 0


def _header(source: RawSourceState, framed: FrameResult, buffer: ByteArray, format_: Format) -> int:
    """Return the number of the header's span and remember the header; -1 if there is none.

    The header is the first record that is not empty; those above it become BLANK.
    """
    if format_.header is None or source.header is not None:
        return -1
    for first in np.flatnonzero(framed.kind == RECORD).tolist():
        start, end = format_.framing.content(buffer, framed.start[[first]], framed.end[[first]])
        # guard: header-not-empty
        if start[0] < end[0]:
            source.header = buffer[start[0] : end[0]].tobytes()
            return int(first)
        framed.kind[first] = BLANK
    return -1


def _cut_rest(framed: FrameResult, length: int) -> FrameResult:
    if framed.tail == length:
        return framed
    start, end = np.append(framed.start, framed.tail), np.append(framed.end, length)
    return FrameResult(
        start, end, np.append(framed.decided_after, length + 1), np.append(framed.kind, GAP), length, AFTER_GAP
    )


def _skip_bytes(pieces: Pieces, at: int) -> Pieces:
    """Return the pieces of the bytes from a position on."""
    if not pieces.size:
        return pieces
    kept = pieces[int(piece_of(pieces, np.array([at]))[0]) :].copy()
    kept[0, OFFSET] += at - kept[0, BEGIN]
    kept[:, BEGIN] -= at
    kept[0, BEGIN] = 0
    return kept


def piece_of(pieces: Pieces, position: Ints) -> Ints:
    """Return which piece each of a few positions is in; a position after all pieces is in the last one."""
    return np.searchsorted(pieces[:, BEGIN], position, "right") - 1
