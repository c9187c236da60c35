"""Count the bytes of a raw depot that a microbatch read, and where they went."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """Numbers of bytes: read = framed + rejected + repeated + kept.

    `framed` bytes are in good records, headers and blank lines. `repeated` bytes are in chunks that came before. `kept`
    is the change of the number of bytes in partial rows, which may be negative.
    """

    read: int
    framed: int
    rejected: int
    repeated: int
    kept: int

    def __add__(self, other: ByteCounts) -> ByteCounts:
        """Return the sum of both."""
        return ByteCounts(*(left + right for left, right in zip(astuple(self), astuple(other), strict=True)))
