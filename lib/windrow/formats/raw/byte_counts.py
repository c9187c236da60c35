"""How many bytes of a raw depot a microbatch read, and where they are."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes: read = framed + rejected + repeated + kept.

    `framed` are in records with values, in headers and in blank lines; `repeated` came before; `kept` are how many more
    than before are in partial rows.
    """

    read: int
    framed: int
    rejected: int
    repeated: int
    kept: int

    def __add__(self, other: Volume) -> Volume:
        """Return both together."""
        return Volume(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))
