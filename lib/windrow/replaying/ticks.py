"""Recorded ticks that were not played yet, and which of them matter to the next messages.

A tick raised the floor of a source after everything up to a depot version was read. It matters if one of the source's
next messages has an earlier stamp: the processing time of that message is the floor. If all of them are stamped at the
floor or later, every processing time is the same without the tick, and the batches it closed close at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.floors import Floors, Ints
from windrow.model.messages import microseconds

BEYOND = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Raised floors in the order of recording: depot version read by then, source, microseconds."""

    version: Ints
    source: pa.Array
    floor: Ints

    @classmethod
    def of(cls, raised: Sequence[tuple[int, str, int]]) -> Ticks:
        """Create ticks from tuples of version, source and floor."""
        version, source, floor = zip(*raised, strict=True) if raised else ((), (), ())
        return cls(np.array(version, np.int64), pa.array(source, pa.string()), np.array(floor, np.int64))

    def and_then(self, later: Ticks) -> Ticks:
        """Append later ticks."""
        return Ticks(
            np.concatenate([self.version, later.version]),
            pa.concat_arrays([self.source, later.source]),
            np.concatenate([self.floor, later.floor]),
        )

    def above(self, floors: Floors) -> Ticks:
        """Return the ticks that raise one of the floors."""
        return self._kept(self.floor > floors.of(self.source))

    def split(self, upto: int | None) -> tuple[Floors, Ticks]:
        """Return the floors of the ticks up to a depot version (None: all), and the other ticks."""
        played = self.version <= (BEYOND if upto is None else upto)
        before = self._kept(played)
        return Floors.empty().raised(before.source, before.floor), self._kept(~played)

    def first_that_matters(self, summary: pa.Table) -> int:
        """Return the depot version of the first tick that matters to messages (`messages.summarise`), or `BEYOND`."""
        moving = summary.filter(pc.is_valid(summary["stamp"]))
        sources = moving["source"].combine_chunks().unique()
        code = _code(moving["source"].combine_chunks(), sources)
        version, earliest = moving["version"].to_numpy(), microseconds(moving["earliest"])
        order = np.lexsort((version, code))
        known = np.flatnonzero(pc.is_in(self.source, sources).to_numpy(zero_copy_only=False))
        if not known.size:
            return BEYOND
        wanted = _code(self.source.take(pa.array(known)), sources)
        span = int(max(version.max(), self.version.max())) + 2
        at = np.searchsorted(code[order] * span + version[order], wanted * span + self.version[known], side="right")
        following = order[np.minimum(at, order.size - 1)]
        follows = (at < order.size) & (code[following] == wanted)
        matters = known[follows & (earliest[following] < self.floor[known])]
        return int(self.version[matters].min()) if matters.size else BEYOND

    def _kept(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ticks:
        return Ticks(self.version[mask], self.source.filter(pa.array(mask)), self.floor[mask])


def _code(source: pa.Array, sources: pa.Array) -> Ints:
    return pc.index_in(source, sources).cast(pa.int64()).to_numpy(zero_copy_only=False)
