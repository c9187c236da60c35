"""Framing: split bytes into records, piece by piece; cut off records that are too long or never end.

A record of more than `max_record_bytes` is not a record: a quote was left open, or the delimiter is wrong. It is cut
off after the first raw delimiter in it, whatever the quotes say, and framing restarts there, so that the good records
after it survive. Without a delimiter it is cut off in pieces until one comes. A record that is open at the end of its
source is cut off in the same way.

The result depends on nothing but the bytes of the source from its start, not on the chunks. The begin of the
unfinished record and the state after the bytes seen so far are all that is needed to continue.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.columnar.compiled import ByteArray, Ints, compiled
from windrow.errors import FormatFailed
from windrow.formats.automaton import Automaton, Followed
from windrow.formats.installed import HINT, failed

# What a span is: a record, or cut off because it is too long, open at the end of the source, or next to bytes that
# never came.
RECORD, OVERSIZE, OPEN, GAP = range(4)
RETURN = ord("\r")
End = Callable[[bytes, int], int | None]
WINDOW = 2**20  # bytes that are given to the function at once, if a record may not be longer
SKIPPING, LOST = -1, -2  # states that look for a delimiter: in a record that is too long, or after a gap


@dataclass(frozen=True, slots=True)
class Framed:
    """Adjacent spans of bytes in order, and where the unfinished `rest` begins.

    `what` says whether a span is a record, or why it was cut off. `known` is how many bytes were needed to decide that,
    one more than there are if it took the end of the source. `state` is the state of framing after all bytes.
    """

    begin: Ints
    end: Ints
    known: Ints
    what: Ints
    rest: int
    state: int


class Framing(Protocol):
    """Splits bytes into records."""

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> Framed:
        """Frame bytes that begin with an unfinished record, of which `seen` bytes were framed before and left `state`.

        `last` says that the source ends with these bytes.
        """

    def content(self, buffer: ByteArray, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return where the content of records begins and ends, without delimiters and lengths."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Finds the ends of records with a function of another package, whose results are checked.

    `end(data, begin)` returns where the record that begins at `begin` ends, None if its last byte is not there. The
    last byte of a record ends it, whatever follows. What is left at the end of a source is a record too. Because of the
    checks, an error in the function can neither lose bytes nor make a run hang.
    """

    name: str
    end: End
    open: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, np.bool_))

    def follow(self, buffer: ByteArray, at: int, state: int, begin: int, most: int) -> Followed:  # noqa: ARG002
        """Find where records end from `begin` on; see `Automaton.follow`. Raises FormatFailed."""
        ends: list[int] = []
        while True:
            data = buffer[begin : begin + max(WINDOW, most)].tobytes()
            found, here = [], 0
            while here < len(data) and (end := self._checked(data, here)) is not None and end - here <= most:
                found.append(begin + end)
                here = end
            ends += found
            begin += here
            if not found:
                return Followed(np.array(ends, np.int64), min(len(buffer), begin + most), 0, begin)

    def _checked(self, data: bytes, begin: int) -> int | None:
        """Return where a record ends."""
        try:
            found = self.end(data, begin)
            end = None if found is None else operator.index(found)
        except Exception as error:
            raise failed(self.name, "find the end of a record", error) from error
        if end is not None and not begin < end <= len(data):
            where = "beyond the bytes that it was given" if end > begin else "where it begins, or before"
            place = f"from {begin} to {end} of {len(data)} bytes"
            raise FormatFailed(f"the format {self.name!r} ended a record {where}: {place}", HINT)
        return end


@dataclass(frozen=True, slots=True)
class DelimitedFraming:
    """Records that an automaton finds; framing restarts at a raw `delimiter`, and nowhere without one.

    With `own` the delimiter is not part of the content. JSON records need no delimiter and keep all of their bytes.
    """

    automaton: Automaton | Ends
    delimiter: bytes
    max_record_bytes: int
    own: bool = True

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> Framed:
        """Frame bytes; see `Framing`."""
        spans = Spans()
        begin, at = 0, seen
        while True:
            if state < 0:
                begin, state = self._skip(spans, buffer, begin, state, last)
                at = begin
                if state < 0:
                    break
            found = self.automaton.follow(buffer, at, state, begin, self.max_record_bytes)
            spans.add(found.ends, begin)
            begin, at, state = found.begin, found.at, found.state
            if at < len(buffer):
                spans.known = at + 1
            elif not last or begin == len(buffer):
                break
            else:
                spans.known = len(buffer) + 1
                if not self.automaton.open[state]:
                    spans.add(np.array([len(buffer)]), begin)
                    begin = len(buffer)
                    break
            begin, state = self._cut(spans, buffer, begin, OVERSIZE if at < len(buffer) else OPEN)
            at = begin
        return spans.framed(begin, state)

    def content(self, buffer: ByteArray, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return where the content of records begins and ends, without the delimiter, which the last one may lack.

        Lines may end as on Windows: a carriage return at the end of a line belongs to its delimiter.
        """
        if not self.own:
            return begin, end
        delimiter = np.frombuffer(self.delimiter, np.uint8)
        return begin, _without(read_only(buffer), begin, end, delimiter, self.delimiter == b"\n")

    def _cut(self, spans: Spans, buffer: ByteArray, begin: int, why: int, skipping: int = SKIPPING) -> tuple[int, int]:
        """Cut off a record after its first delimiter or at the largest size; return the next position and the state."""
        behind = self._behind_delimiter(buffer, begin)
        if behind is not None:
            spans.add(np.array([behind]), begin, why)
            return behind, 0
        end = min(len(buffer), begin + self.max_record_bytes)
        end -= self._begun(buffer[begin:end].tobytes()) if end < len(buffer) else 0
        spans.add(np.array([end]), begin, why)
        return end, skipping

    def _skip(self, spans: Spans, buffer: ByteArray, begin: int, state: int, last: bool) -> tuple[int, int]:
        """Cut off bytes up to a delimiter; return where to continue and the state."""
        why = GAP if state == LOST else OVERSIZE
        while state < 0 and begin < len(buffer):
            behind = self._behind_delimiter(buffer, begin)
            full = begin + self.max_record_bytes + 1
            if behind is None and len(buffer) < full and not last:
                break
            spans.known = max(spans.known, min(full, len(buffer) + 1) if behind is None else behind)
            begin, state = self._cut(spans, buffer, begin, why, state)
        return begin, state

    def _behind_delimiter(self, buffer: ByteArray, begin: int) -> int | None:
        """Return where the first delimiter ends, None if none begins within the largest size of a record."""
        if not self.delimiter:
            return None
        at = buffer[begin : begin + self.max_record_bytes].tobytes().find(self.delimiter)
        return None if at < 0 else begin + at + len(self.delimiter)

    def _begun(self, buffer: bytes) -> int:
        """Return how many bytes at the end may be the start of a delimiter."""
        longest = min(len(self.delimiter) - 1, len(buffer) - 1)
        return next((n for n in range(longest, 0, -1) if buffer.endswith(self.delimiter[:n])), 0)


class Spans:
    """Collects spans as they are found."""

    def __init__(self) -> None:
        self.known = 0
        self._found = [np.empty((4, 0), np.int64)]  # the columns of `Framed`

    def add(self, ends: Ints, begin: int, what: int = RECORD) -> None:
        """Add adjacent spans by their ends; the first one begins at `begin`."""
        if ends.size:
            found = np.empty((4, ends.size), np.int64)
            found[0, 0], found[0, 1:], found[1] = begin, ends[:-1], ends
            np.maximum(ends, self.known, out=found[2])
            found[3] = what
            self._found.append(found)

    def framed(self, rest: int, state: int) -> Framed:
        """Return all spans."""
        found = self._found[1:]
        begin, end, known, what = found[0] if len(found) == 1 else np.concatenate(self._found, axis=1)
        return Framed(begin, end, known, what, rest, state)


@compiled
def _without(buffer: ByteArray, begin: Ints, end: Ints, delimiter: ByteArray, returns: bool) -> Ints:
    """Return where records end without their delimiters, if they have one, and if it `returns`, without a return."""
    found = np.empty(len(begin), np.int64)
    for number in range(len(begin)):
        stop = end[number] - len(delimiter)
        ended = stop >= begin[number]
        for place in range(len(delimiter) if ended else 0):
            ended = ended and buffer[stop + place] == delimiter[place]
        stop = stop if ended else end[number]
        found[number] = stop - (returns and stop > begin[number] and buffer[stop - 1] == RETURN)
    return found
