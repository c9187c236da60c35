"""Find length-prefixed records: each record follows its length.

Only the record before says where a record begins, so bytes are followed from the start of a source, record by record.
Chunk boundaries do not matter: unfinished bytes are kept and put before the bytes that come next.
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

    `records` are the whole ones. `refused` are the positions of lengths that are too large, or that should count
    themselves and are smaller than that. `lengths` says how many bytes each of these claims for its record, negative
    for the latter. Bytes from `unfinished` on must be kept; the next `skip` bytes belong to the last refused record.
    """

    records: Records
    refused: Ints
    lengths: Ints
    unfinished: int
    skip: int


@dataclass(frozen=True, slots=True)
class PrefixFraming:
    """The width and byte order of the length, whether it counts itself, and the largest record."""

    width: int
    order: ByteOrder = "big"
    counts_itself: bool = False
    most_bytes: int = 2**20

    def __post_init__(self) -> None:
        """Refuse a length of an unusual width."""
        if self.width not in WIDTHS:
            raise SettingsError(f"a length cannot have {self.width} bytes", "Use 1, 2, 4 or 8.")

    def cut(self, buffer: ByteArray, skip: int = 0) -> Cut:
        """Cut bytes that begin where a record begins, or `skip` bytes before that.

        A refused record is skipped by exactly the length it claims: if the length is wrong, so is everything after it,
        and nothing can detect that. If the claimed length is negative, only the length itself is skipped.
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
    """Go from length to length; return how many records are whole, how many are refused, and where the next begins."""
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
