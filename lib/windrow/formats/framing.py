r"""Framing: split bytes into records, piece by piece.

The bytes `a,1\nb,2\nc` are two records, `a,1\n` and `b,2\n`, and the rest `c`, which waits for more bytes. The result
depends only on the bytes of the source from its start, not on how they were cut into chunks. To continue, framing needs
to know where the unfinished record begins, and the state after the bytes seen so far.

More than `max_record_bytes` are not a record: a quote was left open, or the delimiter is wrong. They are cut off after
the first delimiter among them, whatever the quotes say. In `"open quote\ngood\n` with a small limit, the first line is
cut off and `good` is a record again. Without a delimiter, bytes are cut off in pieces until one arrives. A record that
is open at the end of its source is cut off in the same way, and so is a malformed one: in
`1,"open quote\n2,good\n3,"closed"\n` the quote of the third line closes that of the first, and text follows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.columnar.compiled import ByteArray, Flags, Ints, compile_lazily
from windrow.errors import FormatPluginError
from windrow.formats.automaton import Automaton, ScanResult
from windrow.formats.installed import HINT, plugin_error

# The kinds of spans: a record; bytes cut off because they are too long, open at the end of the source, next to bytes
# that never came, or malformed; or an empty line above a header.
RECORD, OVERSIZE, OPEN, GAP, MALFORMED, BLANK = range(6)
CARRIAGE_RETURN = ord("\r")


class Content(Enum):
    """Which bytes of a record are its content: all before the delimiter, all from a brace or bracket on, or all."""

    UNDELIMITED, VALUE, WHOLE = range(3)


FindEnd = Callable[[bytes, int], int | None]
WINDOW = 2**20  # bytes passed to the function at once, unless a record may be longer
# Bytes outside of JSON objects: those that open one, those that may be part of another value, and mere separators.
OPENS, IN_VALUE = b"{[", b'"-}]' + bytes(byte for byte in range(256) if chr(byte).isalnum() or not chr(byte).isascii())
# States that look for a delimiter: in a record that is too long, after a gap, or from the start of a malformed record.
SKIPPING, AFTER_GAP, BROKEN = -1, -2, -3


@dataclass(frozen=True, slots=True)
class FrameResult:
    """Adjacent spans of bytes in order, and where the unfinished rest begins (`tail`).

    `kind` says whether a span is a record, or why it was cut off. `decided_after` is the number of bytes that decided
    that: one more than there are if the end of the source did. `state` is the state of framing after all bytes.
    """

    start: Ints
    end: Ints
    decided_after: Ints
    kind: Ints
    tail: int
    state: int


class Framing(Protocol):
    """Splits bytes into records."""

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> FrameResult:
        """Frame bytes that begin with an unfinished record, of which `seen` bytes were framed before, up to `state`.

        `last` says that the source ends with these bytes.
        """

    def content(self, buffer: ByteArray, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return where the content of records begins and ends, without delimiters and lengths."""


@dataclass(frozen=True, slots=True)
class FunctionFinder:
    """Finds the ends of records with a function of another package, whose results are checked.

    `find_end(data, start)` returns where the record that begins at `start` ends, None if its last byte has not come
    yet. The last byte of a record ends it, whatever follows. The rest at the end of a source is a record too. Because
    of the checks, an error in the function can neither lose bytes nor make a run hang.
    """

    name: str
    find_end: FindEnd
    open: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, np.bool_))
    malformed: int = -1

    def follow(self, buffer: ByteArray, at: int, state: int, start: int, most: int) -> ScanResult:  # noqa: ARG002
        """Find where records end from `start` on; see `Automaton.follow`. Raises FormatPluginError."""
        ends: list[int] = []
        while True:
            data = buffer[start : start + max(WINDOW, most)].tobytes()
            result, here = [], 0
            while here < len(data) and (end := self._checked(data, here)) is not None and end - here <= most:
                result.append(start + end)
                here = end
            ends += result
            start += here
            if not result:
                return ScanResult(np.array(ends, np.int64), min(len(buffer), start + most), 0, start)

    def _checked(self, data: bytes, start: int) -> int | None:
        try:
            result = self.find_end(data, start)
            end = None if result is None else operator.index(result)
        except Exception as error:
            raise plugin_error(self.name, "find the end of a record", error) from error
        if end is not None and not start < end <= len(data):
            where = "beyond the bytes that it was given" if end > start else "where it begins, or before"
            place = f"from {start} to {end} of {len(data)} bytes"
            raise FormatPluginError(f"the format {self.name!r} ended a record {where}: {place}", HINT)
        return end


@dataclass(frozen=True, slots=True)
class DelimitedFraming:
    """Records that an automaton finds; after bad bytes framing resumes at a raw `delimiter`, if there is one.

    JSON records need no delimiter: their content is a `VALUE`, and the bytes before it only separate records.
    """

    automaton: Automaton | FunctionFinder
    delimiter: bytes
    max_record_bytes: int
    holds: Content = Content.UNDELIMITED

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> FrameResult:
        """Frame bytes; see `Framing`.

        `start` is where the current record begins, `at` the next byte to examine. A round ends when no further
        delimiter has come, all bytes are framed, or the current record has to be cut off.
        """
        spans = SpanCollector()
        start, at = 0, seen
        while True:
            if state < 0:
                start, state = self._skip(spans, buffer, start, state, last)
                at = start
                if state < 0:
                    break
            run = self.automaton.follow(buffer, at, state, start, self.max_record_bytes)
            spans.add(run.ends, start)
            start, at, state = run.start, run.at, run.state
            if at < len(buffer):
                spans.decided_after = at + 1
            elif not last or start == len(buffer):
                break
            else:
                spans.decided_after = len(buffer) + 1
                if not (self.automaton.open[state] or state == self.automaton.malformed):
                    spans.add(np.array([len(buffer)]), start)
                    start = len(buffer)
                    break
            # guard: malformed-cut-off
            if state == self.automaton.malformed:
                state = BROKEN
                continue
            start, state = self._cut_record(spans, buffer, start, OVERSIZE if at < len(buffer) else OPEN)
            at = start
        return spans.result(start, state)

    def content(self, buffer: ByteArray, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return where the content of records begins and ends; the last one may lack its delimiter.

        Lines may end as on Windows: a carriage return at the end of a line belongs to its delimiter.
        """
        if self.holds is Content.WHOLE:
            return start, end
        if self.holds is Content.VALUE:
            return _skip_separators(read_only(buffer), start, end, _among(OPENS), _among(IN_VALUE)), end
        delimiter = np.frombuffer(self.delimiter, np.uint8)
        return start, _strip_delimiters(read_only(buffer), start, end, delimiter, self.delimiter == b"\n")

    def _cut_record(
        self, spans: SpanCollector, buffer: ByteArray, start: int, why: int, skipping: int = SKIPPING
    ) -> tuple[int, int]:
        """Cut off a record after its first delimiter or at the largest size; return the next position and the state."""
        after = self._after_delimiter(buffer, start)
        if after is not None:
            spans.add(np.array([after]), start, why)
            return after, 0
        end = min(len(buffer), start + self.max_record_bytes)
        end -= self._partial_delimiter_bytes(buffer[start:end].tobytes()) if end < len(buffer) else 0
        spans.add(np.array([end]), start, why)
        return end, skipping

    def _skip(self, spans: SpanCollector, buffer: ByteArray, start: int, state: int, last: bool) -> tuple[int, int]:
        """Cut off bytes up to a delimiter; return where to continue and the state."""
        why = {SKIPPING: OVERSIZE, AFTER_GAP: GAP, BROKEN: MALFORMED}[state]
        while state < 0 and start < len(buffer):
            after = self._after_delimiter(buffer, start)
            full = start + self.max_record_bytes + 1
            if after is None and len(buffer) < full and not last:
                break
            spans.decided_after = max(spans.decided_after, min(full, len(buffer) + 1) if after is None else after)
            start, state = self._cut_record(spans, buffer, start, why, state)
        return start, state

    def _after_delimiter(self, buffer: ByteArray, start: int) -> int | None:
        """Return where the first delimiter ends, None if there is none within the largest size of a record."""
        if not self.delimiter:
            return None
        at = buffer[start : start + self.max_record_bytes].tobytes().find(self.delimiter)
        return None if at < 0 else start + at + len(self.delimiter)

    def _partial_delimiter_bytes(self, buffer: bytes) -> int:
        """Return how many bytes at the end may be the start of a delimiter."""
        longest = min(len(self.delimiter) - 1, len(buffer) - 1)
        return next((n for n in range(longest, 0, -1) if buffer.endswith(self.delimiter[:n])), 0)


class SpanCollector:
    """Collects spans as they are found."""

    def __init__(self) -> None:
        self.decided_after = 0
        self._found = [np.empty((4, 0), np.int64)]  # the columns of `FrameResult`

    def add(self, ends: Ints, start: int, kind: int = RECORD) -> None:
        """Add adjacent spans by their ends; the first one begins at `start`."""
        if ends.size:
            spans = np.empty((4, ends.size), np.int64)
            spans[0, 0], spans[0, 1:], spans[1] = start, ends[:-1], ends
            np.maximum(ends, self.decided_after, out=spans[2])
            spans[3] = kind
            self._found.append(spans)

    def result(self, rest: int, state: int) -> FrameResult:
        """Return all spans."""
        spans = self._found[1:]
        start, end, decided_after, kind = spans[0] if len(spans) == 1 else np.concatenate(self._found, axis=1)
        return FrameResult(start, end, decided_after, kind, rest, state)


@compile_lazily
def _skip_separators(buffer: ByteArray, start: Ints, end: Ints, opens: Flags, in_value: Flags) -> Ints:
    """Return where the first object or array of each record begins.

    A record without one, after the last object of a source, is empty if none of its bytes can be part of a value.
    """
    starts = np.empty(len(start), np.int64)
    for number in range(len(start)):
        at, is_value = start[number], False
        while at < end[number] and not opens[buffer[at]]:
            is_value |= in_value[buffer[at]]
            at += 1
        starts[number] = start[number] if at == end[number] and is_value else at
    return starts


def _among(chosen: bytes) -> Flags:
    return np.isin(np.arange(256), list(chosen))


@compile_lazily
def _strip_delimiters(buffer: ByteArray, start: Ints, end: Ints, delimiter: ByteArray, strip_return: bool) -> Ints:
    """Return where records end without delimiters and, with `strip_return`, without a carriage return before them."""
    stops = np.empty(len(start), np.int64)
    for number in range(len(start)):
        stop = end[number] - len(delimiter)
        ended = stop >= start[number]
        for place in range(len(delimiter) if ended else 0):
            ended = ended and buffer[stop + place] == delimiter[place]
        stop = stop if ended else end[number]
        stops[number] = stop - (strip_return and stop > start[number] and buffer[stop - 1] == CARRIAGE_RETURN)
    return stops
