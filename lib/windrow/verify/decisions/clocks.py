"""Derive the clock of each source from the stamps in the log and from the recorded ticks, flushes and rules.

The floor of a source is the greatest of the stamps it sent in earlier depot versions and of the floors that ticks and
flushes recorded. A larger `max_delay` raises it by the difference. Floors are kept here without these raises (as
heights), so that each step takes the greater of two values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windrow.verify.columns import NONE, Bools, Ints, numbers, pairwise
from windrow.verify.decisions.microbatch_history import MicrobatchHistory


@dataclass(frozen=True, slots=True)
class Clocks:
    """Each event that moved a clock, by source (a number), microbatch and depot version, and the clock after it.

    `height` is the floor without the raises of the rules, `clock` the greatest processing time of the source's data.
    """

    history: MicrobatchHistory
    source: Ints
    microbatch: Ints
    height: Ints
    is_data: Bools
    clock: Ints

    def floor_after(self, source: Ints, microbatch: Ints) -> Ints:
        """Return the floors of sources after microbatches; NONE for a source that was not known yet."""
        at = self._latest(source, microbatch)
        return np.where(at < 0, NONE, self.height[at] + self.history.raised[microbatch])

    def clock_after(self, source: Ints, microbatch: Ints) -> Ints:
        """Return the clocks of sources after microbatches; NONE for a source that was not known yet."""
        at = self._latest(source, microbatch)
        return np.where(at < 0, NONE, self.clock[at])

    def of(self, source: int) -> tuple[Ints, Ints]:
        """Return the microbatches in which something moved a source, and its height afterwards."""
        begin, end = np.searchsorted(self.source, [source, source + 1])
        return self.microbatch[begin:end], self.height[begin:end]

    def _latest(self, source: Ints, microbatch: Ints) -> Ints:
        """Return the last event that moved a source up to a microbatch; -1 where nothing has."""
        if not self.source.size:
            return np.full(source.size, -1)
        places = self.history.last + 2
        at = np.searchsorted(self.source * places + self.microbatch, source * places + microbatch, side="right") - 1
        return np.where((at >= 0) & (self.source[at] == source), at, -1)


def follow(history: MicrobatchHistory, source: Ints, version: Ints, stamp: Ints, recorded: Ints) -> tuple[Clocks, Ints]:
    """Return the derived clocks, and the floor before each depot version in which a source sent (NONE: none yet).

    `stamp` is the greatest of a source in a depot version, among messages that are valid and not ahead. `recorded`
    numbers the sources of `history.clocks`. Where versions can no longer be read, the clocks continue from what was
    recorded after them.
    """
    sent = source.size
    data = [source, history.read_in[np.searchsorted(history.version, version)], version, stamp]
    moved_in, moved, moved_to = ticks(history, recorded, "tick", "flush")
    ticked, known = (moved, moved_in, np.full(moved.size, NONE), moved_to), _known(history, recorded)
    parts = [np.concatenate(three) for three in zip(data, ticked, known[:4], strict=True)]
    clock = np.concatenate([np.full(parts[0].size - known[4].size, NONE), known[4]])
    order = np.lexsort((parts[2], parts[1], parts[0]))
    source, microbatch, _, floor = (part[order] for part in parts)
    is_data, raised = order < sent, history.raised[microbatch]
    height = _highest(source, floor - raised)
    own = np.where(is_data, height + raised, clock[order])
    found = np.full(order.size, NONE)
    later = np.flatnonzero(pairwise(source, np.equal, first=False))
    found[order[later]] = height[later - 1] + raised[later]
    return Clocks(history, source, microbatch, height, is_data, _carried(source, own)), found[:sent]


def ticks(history: MicrobatchHistory, source: Ints, *kinds: str) -> tuple[Ints, Ints, Ints]:
    """Return microbatch, source and floor as microbatches of some kinds recorded them."""
    microbatch = numbers(history.clocks["microbatch"])
    rows = np.flatnonzero(np.isin(np.array(history.kinds)[microbatch], kinds) & (microbatch > history.gone))
    return microbatch[rows], source[rows], numbers(history.clocks["floor"])[rows]


def _known(history: MicrobatchHistory, source: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return source, microbatch, version (before all), floor and clock as recorded for versions that are gone.

    A floor that was recorded before a change of the rules is raised by that change.
    """
    microbatch = numbers(history.clocks["microbatch"])
    rows = np.flatnonzero(microbatch <= history.gone)
    rows = rows[np.lexsort((microbatch[rows], source[rows]))]
    rows = rows[pairwise(source[rows][::-1], np.not_equal, first=True)[::-1]]
    raises = history.raised[history.gone] - history.raised[microbatch[rows]]
    floor, clock = (numbers(history.clocks[name])[rows] for name in ("floor", "clock"))
    return source[rows], np.full(rows.size, history.gone), np.full(rows.size, NONE), floor + raises, clock


def _highest(group: Ints, value: Ints) -> Ints:
    """Return the running maximum in each group; rows of a group are adjacent."""
    different, rank = np.unique(value, return_inverse=True)
    if not different.size:
        return value
    first = pairwise(group, np.not_equal, first=True)
    offset = (np.cumsum(first) - 1) * different.size
    return different[np.maximum.accumulate(rank + offset) - offset]


def _carried(group: Ints, value: Ints) -> Ints:
    """Fill each NONE with the last other value before it in its group; it stays NONE where there is no such value."""
    if not value.size:
        return value
    at = np.maximum.accumulate(np.where(value == NONE, 0, np.arange(value.size)))
    return np.where((value[at] != NONE) & (group[at] == group), value[at], NONE)
