"""Framing: bytes into records, piece by piece, with what is too long or never ends cut off and the rest kept.

A record that would have more than `max_record_bytes` is no record: a quote was left open, or the delimiter is another
one. It is cut off behind the first raw delimiter in it, whatever the quotes say, and framing begins anew there, so that
the good records behind it survive. Where there is no delimiter it is cut off in pieces, until one comes. What is open
where its source ends is cut off in the same way.

All of this depends on the bytes alone, from the begin of the source on, not on how they were cut into chunks: what
was framed already is told by where the unfinished record begins and by the state behind the bytes seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.formats.automaton import Automaton
from windrow.formats.kernel import without
from windrow.formats.records import ByteArray, Ints

# What a span is: a record, or cut off because it is too long, open where the source ends, or behind or before bytes
# that never came.
RECORD, OVERSIZE, OPEN, GAP = range(4)
SKIPPING, LOST = -1, -2  # states in which a delimiter is looked for: in a record that is too long, or behind a gap


@dataclass(frozen=True, slots=True)
class Framed:
    """Spans of bytes in their order, one behind the other, and what is left: `rest` is where that begins.

    `what` says whether a span is a record, or why it was cut off; `known` is how many bytes it took to tell, one more
    than there are for the end of the source. `state` is that of the framing behind all bytes.
    """

    begin: Ints
    end: Ints
    known: Ints
    what: npt.NDArray[np.int8]
    rest: int
    state: int


class Framing(Protocol):
    """How bytes become records."""

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> Framed:
        """Frame bytes that begin with an unfinished record; of these `seen` were framed before, and left `state`.

        `last` says that the source ends with them.
        """

    def content(self, buffer: ByteArray, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return where the content of records begins and ends, without what ends or introduces them."""


@dataclass(frozen=True, slots=True)
class DelimitedFraming:
    """Records that an automaton ends; `delimiter` is the raw one, at which framing begins anew.

    With `own` the delimiter belongs to no record; a record of JSON needs none, and keeps all of its bytes.
    """

    automaton: Automaton
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
        """Return where the content of records begins and ends: without the delimiter, which may be missing at last.

        Lines may end as on Windows: a carriage return before the line feed belongs to it.
        """
        if not self.own:
            return begin, end
        delimiter = np.frombuffer(self.delimiter, np.uint8)
        return begin, without(read_only(buffer), begin, end, delimiter, self.delimiter == b"\n")

    def _cut(self, spans: Spans, buffer: ByteArray, begin: int, why: int, skipping: int = SKIPPING) -> tuple[int, int]:
        """Cut off a record behind the first delimiter in it, or at its largest size; return where to go on, and how."""
        behind = self._behind_delimiter(buffer, begin)
        if behind is not None:
            spans.cut_off(begin, behind, why)
            return behind, 0
        end = min(len(buffer), begin + self.max_record_bytes)
        end -= self._begun(buffer[begin:end].tobytes()) if end < len(buffer) else 0
        spans.cut_off(begin, end, why)
        return end, skipping

    def _skip(self, spans: Spans, buffer: ByteArray, begin: int, state: int, last: bool) -> tuple[int, int]:
        """Cut off more up to a delimiter; return where it goes on, and how."""
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
        """Return where the first delimiter ends, if it does within the largest size of a record."""
        at = buffer[begin : begin + self.max_record_bytes].tobytes().find(self.delimiter)
        return None if at < 0 else begin + at + len(self.delimiter)

    def _begun(self, buffer: bytes) -> int:
        """Return how many bytes at the end may be the begin of a delimiter."""
        longest = min(len(self.delimiter) - 1, len(buffer) - 1)
        return next((n for n in range(longest, 0, -1) if buffer.endswith(self.delimiter[:n])), 0)


class Spans:
    """Spans as they are found."""

    def __init__(self) -> None:
        self.known = 0
        self._begin: list[Ints] = []
        self._end: list[Ints] = []
        self._known: list[Ints] = []
        self._what: list[npt.NDArray[np.int8]] = []

    def add(self, ends: Ints, begin: int, what: int = RECORD) -> None:
        """Add spans, the first of which begins at `begin`."""
        if not ends.size:
            return
        self._begin.append(np.concatenate([[begin], ends[:-1]]))
        self._end.append(ends)
        self._known.append(np.maximum(ends, self.known))
        self._what.append(np.full(ends.size, what, np.int8))

    def cut_off(self, begin: int, end: int, why: int) -> None:
        """Add what is no record."""
        self.add(np.array([end]), begin, why)

    def framed(self, rest: int, state: int) -> Framed:
        """Return all of them."""
        begin, end, known = (
            np.concatenate([np.empty(0, np.int64), *parts]) for parts in (self._begin, self._end, self._known)
        )
        what = np.concatenate([np.empty(0, np.int8), *self._what])
        return Framed(begin, end, known, what, rest, state)
