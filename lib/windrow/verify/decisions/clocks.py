"""The clock of each source, from the stamps of the log and what the history says of ticks, flushes and rules.

The floor of a source is the greatest of the stamps it has sent in earlier depot versions and of the floors that ticks
and flushes recorded; a larger `max_delay` raises it by as much. Floors are held without these raises, so that they
only ever take the greater of two values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windrow.verify.columns import NONE, Bools, Ints, numbers, pairwise
from windrow.verify.decisions.microbatch_history import Course


@dataclass(frozen=True, slots=True)
class Sent:
    """The greatest stamp that each source sent in each depot version, of messages that are valid and not ahead."""

    source: Ints
    version: Ints
    stamp: Ints


@dataclass(frozen=True, slots=True)
class Clocks:
    """What moved clocks, in the order of source (a number), microbatch and depot version, and where it left them.

    `height` is the floor without the raises of the rules, `clock` the greatest processing time of the source's data.
    """

    course: Course
    source: Ints
    microbatch: Ints
    height: Ints
    is_data: Bools
    clock: Ints

    def floor_after(self, source: Ints, microbatch: Ints) -> Ints:
        """Return the floors of sources after microbatches; NONE for a source that was not known yet."""
        at = self._latest(source, microbatch)
        return np.where(at < 0, NONE, self.height[at] + self.course.raised[microbatch])

    def clock_after(self, source: Ints, microbatch: Ints) -> Ints:
        """Return the clocks of sources after microbatches; NONE for a source that was not known yet."""
        at = self._latest(source, microbatch)
        return np.where(at < 0, NONE, self.clock[at])

    def of(self, source: int) -> tuple[Ints, Ints]:
        """Return the microbatches in which something moved a source, and its height afterwards."""
        begin, end = np.searchsorted(self.source, [source, source + 1])
        return self.microbatch[begin:end], self.height[begin:end]

    def _latest(self, source: Ints, microbatch: Ints) -> Ints:
        """Return what moved a source last, up to a microbatch; -1 where nothing has."""
        if not self.source.size:
            return np.full(source.size, -1)
        places = self.course.last + 2
        at = np.searchsorted(self.source * places + self.microbatch, source * places + microbatch, side="right") - 1
        return np.where((at >= 0) & (self.source[at] == source), at, -1)


def follow(course: Course, sent: Sent, recorded: Ints) -> tuple[Clocks, Ints]:
    """Return the clocks that follow, and the floor that each depot version of `sent` finds (NONE: none yet).

    `recorded` numbers the sources of `course.clocks`. Where versions are gone the clocks go on from what was recorded
    after them.
    """
    read_in = course.read_in[np.searchsorted(course.version, sent.version)]
    data = [sent.source, read_in, sent.version, sent.stamp]
    ticked, known = _ticked(course, recorded), _known(course, recorded)
    parts = [np.concatenate(three) for three in zip(data, ticked, known[:4], strict=True)]
    clock = np.concatenate([np.full(parts[0].size - known[4].size, NONE), known[4]])
    order = np.lexsort((parts[2], parts[1], parts[0]))
    source, microbatch, _, floor = (part[order] for part in parts)
    is_data, raised = order < sent.source.size, course.raised[microbatch]
    height = _highest(source, floor - raised)
    own = np.where(is_data, height + raised, clock[order])
    found = np.full(order.size, NONE)
    later = np.flatnonzero(pairwise(source, np.equal, first=False))
    found[order[later]] = height[later - 1] + raised[later]
    return Clocks(course, source, microbatch, height, is_data, _carried(source, own)), found[: sent.source.size]


def _ticked(course: Course, source: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return source, microbatch, version (before all) and floor of what ticks and flushes recorded."""
    microbatch = numbers(course.clocks["microbatch"])
    kinds = np.array(course.kinds)[microbatch]
    rows = np.flatnonzero(np.isin(kinds, ["tick", "flush"]) & (microbatch > course.gone))
    return source[rows], microbatch[rows], np.full(rows.size, NONE), numbers(course.clocks["floor"])[rows]


def _known(course: Course, source: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return source, microbatch, version (before all), floor and clock as they were recorded for what is gone.

    A floor that was recorded before a change of the rules is raised by it.
    """
    microbatch = numbers(course.clocks["microbatch"])
    rows = np.flatnonzero(microbatch <= course.gone)
    rows = rows[np.lexsort((microbatch[rows], source[rows]))]
    rows = rows[pairwise(source[rows][::-1], np.not_equal, first=True)[::-1]]
    raises = course.raised[course.gone] - course.raised[microbatch[rows]]
    floor, clock = (numbers(course.clocks[name])[rows] for name in ("floor", "clock"))
    return source[rows], np.full(rows.size, course.gone), np.full(rows.size, NONE), floor + raises, clock


def _highest(group: Ints, value: Ints) -> Ints:
    """Return the greatest value so far in each group; the rows stand group by group."""
    different, rank = np.unique(value, return_inverse=True)
    if not different.size:
        return value
    first = pairwise(group, np.not_equal, first=True)
    offset = (np.cumsum(first) - 1) * different.size
    return different[np.maximum.accumulate(rank + offset) - offset]


def _carried(group: Ints, value: Ints) -> Ints:
    """Return for each row the last value that is not NONE, up to it and in its group; NONE where there is none."""
    if not value.size:
        return value
    at = np.maximum.accumulate(np.where(value == NONE, 0, np.arange(value.size)))
    return np.where((value[at] != NONE) & (group[at] == group), value[at], NONE)
