"""Framing of records whose length is known: fixed-width records, and records that follow their length.

Where a record begins follows only from the record before. So no record can be found after a gap: all bytes after it are
cut off in pieces, to the end of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from windrow.columnar.compiled import ByteArray, Ints, compile_lazily
from windrow.formats.fields import Field
from windrow.formats.format import Format
from windrow.formats.framing import AFTER_GAP, GAP, OPEN, OVERSIZE, RECORD, FrameResult, SpanCollector
from windrow.formats.settings import FormatSettings

ByteOrder = Literal["little", "big"]
MAX_LENGTH = 2**62  # stands for every greater length
WHOLE = 0  # no impossible length was found


def build(section: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """Return the format `length-prefixed`."""
    framing = LengthFraming(
        section.length_bytes, section.byte_order, section.length_includes_itself, section.max_record_bytes
    )
    from windrow.formats.objects import Json, MessagePack

    return Format(framing, Json(fields) if section.encoding == "json" else MessagePack(fields), text=False)


@dataclass(frozen=True, slots=True)
class FixedFraming:
    """Records of `width` bytes each."""

    width: int
    max_record_bytes: int

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> FrameResult:  # noqa: ARG002
        """Frame bytes; see `Framing`. A rest that is too short at the end of a source becomes a bad record."""
        if state == AFTER_GAP:
            return _pieces(buffer, self.max_record_bytes, last, GAP, AFTER_GAP)
        return _pieces(buffer, self.width, last, RECORD, 0)

    def content(self, buffer: ByteArray, start: Ints, end: Ints) -> tuple[Ints, Ints]:  # noqa: ARG002
        """Return each record in full."""
        return start, end


@dataclass(frozen=True, slots=True)
class LengthFraming:
    """Records that follow their length, a number of `width` bytes, which may count its own bytes.

    A record that claims to be longer than allowed is cut off after exactly as many bytes as it claims: if the length is
    wrong, so is everything after it, and nothing can detect that. If a record claims a negative length, only the length
    is cut off. The state counts the bytes that are still to come.
    """

    width: int
    order: ByteOrder
    counts_itself: bool
    max_record_bytes: int

    def frame(self, buffer: ByteArray, seen: int, state: int, last: bool) -> FrameResult:  # noqa: ARG002
        """Frame bytes; see `Framing`."""
        if state == AFTER_GAP:
            return _pieces(buffer, self.max_record_bytes, last, GAP, AFTER_GAP)
        spans = SpanCollector()
        form = (self.width, self.order == "big", self.width * self.counts_itself, self.max_record_bytes)
        room = np.empty(16 + len(buffer) // (self.width + 16), np.int64)
        start, left = self._pass_over(spans, buffer, 0, state, last)
        while not left:
            count, end, refused = _hop(buffer, start, *form, room)
            spans.add(room[:count].copy(), start)
            start = int(end)
            if refused == WHOLE:
                if count < len(room):
                    break
                continue
            spans.decided_after = max(spans.decided_after, start + self.width)
            spans.add(np.array([start + self.width]), start, OVERSIZE)
            start, left = self._pass_over(spans, buffer, start + self.width, max(0, int(refused)), last)
        if last and start < len(buffer):
            spans.decided_after = len(buffer) + 1
            spans.add(np.array([len(buffer)]), start, OPEN)
            start, left = len(buffer), 0
        return spans.result(start, left)

    def content(self, buffer: ByteArray, start: Ints, end: Ints) -> tuple[Ints, Ints]:  # noqa: ARG002
        """Return each record without its length."""
        return start + self.width, end

    def _pass_over(self, spans: SpanCollector, buffer: ByteArray, start: int, left: int, last: bool) -> tuple[int, int]:
        """Cut off `left` bytes in pieces of the largest size; return where to continue and how many are left."""
        while left:
            size = min(left, self.max_record_bytes)
            if len(buffer) - start < size and not last:
                break
            end = min(start + size, len(buffer))
            if end > start:
                spans.decided_after = max(spans.decided_after, end)
                spans.add(np.array([end]), start, OVERSIZE)
            if end == len(buffer) and last:
                return end, 0
            start, left = end, left - size
        return start, left


def _pieces(buffer: ByteArray, size: int, last: bool, kind: int, state: int) -> FrameResult:
    """Cut all bytes into pieces of a size; only the last piece of a source may be shorter."""
    spans = SpanCollector()
    whole = len(buffer) // size * size
    spans.add(np.arange(size, whole + 1, size), 0, kind)
    if last and whole < len(buffer):
        spans.decided_after = len(buffer) + 1
        spans.add(np.array([len(buffer)]), whole, kind)
        whole = len(buffer)
    return spans.result(whole, state)


@compile_lazily
def _hop(buffer: ByteArray, at: int, width: int, big: bool, own: int, most: int, ends: Ints) -> tuple[int, int, int]:
    """Follow the lengths up to a record that is unfinished or too long, or until `ends` is full.

    Return how many records are whole, where the next one begins, and the length that it claims if that is impossible.
    """
    count = 0
    while at + width <= len(buffer) and count < len(ends):
        length = 0
        for place in range(width):
            byte = buffer[at + place] if big else buffer[at + width - 1 - place]
            length = length * 256 + np.int64(byte) if length < MAX_LENGTH // 256 else MAX_LENGTH  # type: ignore[assignment]
        length -= own
        if not 0 <= length <= most:
            return count, at, length
        if at + width + length > len(buffer):
            break
        at += width + length
        ends[count] = at
        count += 1
    return count, at, WHOLE
