"""Find the ends of records with a function of another package, whose results are checked.

So an error in the function can neither lose bytes nor make a run hang.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from windrow.errors import FormatFailed
from windrow.formats.automaton import Followed
from windrow.formats.failure import HINT, failed
from windrow.formats.records import ByteArray

End = Callable[[bytes, int], int | None]
WINDOW = 2**20  # bytes that are given to the function at once, if a record may not be longer


@dataclass(frozen=True, slots=True)
class Ends:
    """`end(data, begin)` returns where the record that begins at `begin` ends, None if its last byte is not there.

    The last byte of a record ends it, whatever follows. What is left at the end of a source is a record too.
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
