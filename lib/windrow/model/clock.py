"""Clocks: one per source, computed from the log. No decision about a message reads the wall clock.

The *processing time* `T` of a message is `max(floor, received_at)`, where the floor of its source is the greatest `T`
in earlier depot versions and every floor that a tick or flush recorded. So `T` never decreases within a source, and
it follows from the log alone. The *idle clock* of a silent source advances with the wall clock from where the source
stopped. It decides when batches close, never what is in them.

All times are int64 microseconds, UTC. Source of the idea: the consistent-time model of Triceps.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from windrow.columnar.compiled import compile_lazily

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]

UNKNOWN = np.iinfo(np.int64).min


class Clock(Protocol):
    """The wall clock, passed as an argument: programs pass the real one, tests pass one that they move."""

    def now(self) -> int:
        """Return the time in microseconds since the epoch, UTC."""

    def elapsed(self) -> float:
        """Return monotonic seconds since some moment, to measure how long a phase took."""

    def wait(self, microseconds: int) -> bool:
        """Wait; return True if a stop was requested before the time was over."""


def raise_floors(source: Numbers, version: Ints, stamp: Ints, floor: Ints) -> Ints:
    """Return each row's floor, and raise `floor` (by source, in place) to the clock after the last row.

    The rows are in the order of their depot versions; rows of one version do not see each other. `source` numbers
    the sources from 0; UNKNOWN is less than any time, so that a row with this stamp moves no clock.
    """
    before = np.empty(source.size, np.int64)
    if source.size:  # ticks, and depots without messages, do not load the compiler: 110 MB and half a second
        _rise(source, version, stamp, floor, before)
    return before


@compile_lazily
def _rise(source, version, stamp, floor, before):  # type: ignore[no-untyped-def]
    reached = floor.copy()
    current = np.full(floor.size, np.iinfo(np.int64).min, np.int64)
    for row in range(source.size):
        s = source[row]
        if version[row] != current[s]:
            current[s] = version[row]
            floor[s] = reached[s]
        before[row] = floor[s]
        reached[s] = max(reached[s], stamp[row])
    for s in range(floor.size):
        floor[s] = reached[s]


def idle_clocks(clock: Ints, seen_at: Ints, now: int) -> Ints:
    """Return the idle clocks of sources: their clocks plus the wall time since their last messages were committed."""
    return clock + np.maximum(0, now - seen_at)
