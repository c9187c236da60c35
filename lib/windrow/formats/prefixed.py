"""Prefixed: framing of records that each have their length before them.

Nothing tells where such a record begins but the one before it, so bytes are followed from the begin of a source, hop
by hop. Where a chunk is cut does not matter: what is unfinished is kept and put before the bytes that come next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from windrow.columnar.compiled import compiled
from windrow.errors import SettingsError
from windrow.formats.records import ByteArray, Ints, Records

ByteOrder = Literal["little", "big"]
WIDTHS = (1, 2, 4, 8)
LONGEST = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where bytes were cut.

    `records` are those that are whole. `refused` are positions of lengths that are longer than is allowed, or shorter
    than the length itself, which it should count; `lengths` says how many bytes each claims for the record behind it,
    negative for the latter. From `unfinished` on bytes have to be kept, and `skip` of those to come belong to the
    last one that is refused.
    """

    records: Records
    refused: Ints
    lengths: Ints
    unfinished: int
    skip: int


@dataclass(frozen=True, slots=True)
class PrefixFraming:
    """How long the length is, its order of bytes, whether it counts itself, and how long a record may be."""

    width: int
    order: ByteOrder = "big"
    counts_itself: bool = False
    most_bytes: int = 2**20

    def __post_init__(self) -> None:
        """Refuse a length that nobody writes."""
        if self.width not in WIDTHS:
            raise SettingsError(f"a length has no {self.width} bytes", "Take 1, 2, 4 or 8.")

    def cut(self, buffer: ByteArray, skip: int = 0) -> Cut:
        """Cut bytes that begin where a record does, or `skip` bytes before.

        A record that is refused is passed over by exactly what its length claims: if the length is wrong all behind it
        is too, and nobody can tell. One that claims less than nothing is passed over by its length alone.
        """
        own = self.width if self.counts_itself else 0
        form = (self.width, self.order == "big", own, self.most_bytes)
        room = 16 + len(buffer) // (self.width + 16)
        while True:
            found, refused = np.empty((2, room), np.int64), np.empty((2, room), np.int64)
            whole, wrong, at = _hop(buffer, skip, *form, found, refused)
            if max(whole, wrong) <= room:
                break
            room = max(whole, wrong)
        records = Records(buffer, found[0, :whole], found[1, :whole])
        return Cut(records, refused[0, :wrong], refused[1, :wrong], min(at, len(buffer)), max(at - len(buffer), 0))


@compiled
def _hop(
    buffer: ByteArray, at: int, width: int, big: bool, own: int, most: int, found: Ints, refused: Ints
) -> tuple[int, int, int]:
    """Hop from length to length; return how many records are whole, how many refused, and where the next begins."""
    whole, wrong, room = 0, 0, found.shape[1]
    while at + width <= len(buffer):
        length = 0
        for place in range(width):
            byte = buffer[at + place] if big else buffer[at + width - 1 - place]
            length = length * 256 + np.int64(byte) if length < LONGEST // 256 else LONGEST  # type: ignore[assignment]
        length -= own
        behind = at + width + max(length, 0)
        if 0 <= length <= most:
            if behind > len(buffer):
                break
            if whole < room:
                found[0, whole], found[1, whole] = at + width, behind
            whole += 1
        else:
            if wrong < room:
                refused[0, wrong], refused[1, wrong] = at, length
            wrong += 1
        at = behind
    return whole, wrong, at
