"""Framing of records whose length is known: fixed-width records, and records that follow their length.

Only the record before says where a record begins. So no record can be found after a gap: all bytes after it are cut
off in pieces, to the end of the source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windrow.formats.framing import GAP, LOST, OPEN, OVERSIZE, Framed, Spans
from windrow.formats.prefixed import PrefixFraming
from windrow.formats.records import ByteArray, Ints


@dataclass(frozen=True, slots=True)
class FixedFraming:
    """Records of `width` bytes each."""

    width: int
    max_record_bytes: int

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> Framed:  # noqa: ARG002
        """Frame bytes; see `Framing`. A rest at the end of a source that is too short becomes a bad record."""
        if state == LOST:
            return _lost(buffer, self.max_record_bytes, last)
        spans = Spans()
        whole = len(buffer) // self.width * self.width
        spans.add(np.arange(self.width, whole + 1, self.width), 0)
        if last and whole < len(buffer):
            spans.known = len(buffer) + 1
            spans.add(np.array([len(buffer)]), whole)
            whole = len(buffer)
        return spans.framed(whole, 0)

    def content(self, buffer: ByteArray, begin: Ints, end: Ints) -> tuple[Ints, Ints]:  # noqa: ARG002
        """Return each record in full."""
        return begin, end


@dataclass(frozen=True, slots=True)
class LengthFraming:
    """Records that follow their length.

    A record that claims to be longer than allowed is cut off, as many bytes as it claims. The state counts the bytes
    that are still to come.
    """

    prefix: PrefixFraming

    @property
    def max_record_bytes(self) -> int:
        """Return the largest number of bytes in a record."""
        return self.prefix.most_bytes

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> Framed:  # noqa: ARG002
        """Frame bytes; see `Framing`."""
        if state == LOST:
            return _lost(buffer, self.max_record_bytes, last)
        spans = Spans()
        begin, left = self._pass_over(spans, buffer, 0, state, last)
        while not left and begin < len(buffer):
            cut = self.prefix.cut(buffer[begin:])
            refused = int(cut.refused[0]) if cut.refused.size else cut.unfinished
            whole = cut.records.end[cut.records.end <= refused]
            spans.add(whole + begin, begin)
            begin += refused
            if not cut.refused.size:
                break
            spans.known = max(spans.known, begin + self.prefix.width)
            spans.add(np.array([begin + self.prefix.width]), begin, OVERSIZE)
            begin, left = self._pass_over(spans, buffer, begin + self.prefix.width, max(0, int(cut.lengths[0])), last)
        if last and begin < len(buffer):
            spans.known = len(buffer) + 1
            spans.add(np.array([len(buffer)]), begin, OPEN)
            begin, left = len(buffer), 0
        return spans.framed(begin, left)

    def content(self, buffer: ByteArray, begin: Ints, end: Ints) -> tuple[Ints, Ints]:  # noqa: ARG002
        """Return each record without its length."""
        return begin + self.prefix.width, end

    def _pass_over(self, spans: Spans, buffer: ByteArray, begin: int, left: int, last: bool) -> tuple[int, int]:
        """Cut off `left` bytes in pieces of the largest size; return where to continue and how many are left."""
        while left:
            size = min(left, self.max_record_bytes)
            if len(buffer) - begin < size and not last:
                break
            end = min(begin + size, len(buffer))
            if end > begin:
                spans.known = max(spans.known, end)
                spans.add(np.array([end]), begin, OVERSIZE)
            if end == len(buffer) and last:
                return end, 0
            begin, left = end, left - size
        return begin, left


def _lost(buffer: ByteArray, size: int, last: bool) -> Framed:
    """Cut off all bytes in pieces."""
    spans = Spans()
    whole = len(buffer) // size * size
    spans.add(np.arange(size, whole + 1, size), 0, GAP)
    if last and whole < len(buffer):
        spans.known = len(buffer) + 1
        spans.add(np.array([len(buffer)]), whole, GAP)
        whole = len(buffer)
    return spans.framed(whole, LOST)
