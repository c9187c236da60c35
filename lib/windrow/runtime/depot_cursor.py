"""How far a run has read a depot, and which depot comes next in a topology that reads its depots in step.

*In step*, a microbatch reads one version of one depot: that of which the next version ends at the earliest clock. It
waits as long as another depot, which has nothing new, may still send something earlier. Of a depot that another
topology fills, the position of that topology says so; of any other one, the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windrow.model import clock
from windrow.model.floors import FloorsByVersion
from windrow.runtime.feeder import Feeder
from windrow.runtime.ledger_state import Reached
from windrow.runtime.microbatch import Microbatch
from windrow.runtime.opening import DepotReader, require_depot
from windrow.source import Source
from windrow.source.slices import Slice

NEVER = np.iinfo(np.int64).max
Prime = Callable[[], Microbatch]


@dataclass(slots=True, eq=False)
class DepotCursor:
    """How far a run has read a depot."""

    reader: DepotReader
    reached: Reached  # the last version that the ledger has read
    latest: int = -1  # the last version of the depot when the run last looked
    searched_to: int = -1  # a read up to this version found nothing more
    next_clock: tuple[int, int] | None = None  # the version reached, and the clock after the version that follows it

    @property
    def source(self) -> Source:
        """Return the source that reads the depot."""
        return self.reader.source

    @property
    def name(self) -> str | None:
        """Return the name of the depot, None in a ledger of one depot."""
        return self.reader.name

    def look(self) -> None:
        """Read the depot's last version from its log. Raises the errors of `require_depot`."""
        # guard: same-depot-each-round
        depot = require_depot(self.source, self.reached)
        self.latest = depot.version

    @property
    def has_unread(self) -> bool:
        """Tell whether the depot had versions at the last look that were neither read nor searched."""
        return self.latest > max(self.reached.depot_version, self.searched_to)

    def search_again(self) -> None:
        """Forget what was searched: the ledger may have gone back."""
        self.searched_to = -1


class Step(NamedTuple):
    """The depot to read next in step, if any, and the depots that it overtakes, which stood still for too long."""

    cursor: DepotCursor | None
    overtaken: tuple[str, ...] = ()


def next_in_step(cursors: Sequence[DepotCursor], prime: Prime, max_clock_skew: int) -> Step:
    """Return what to read next in step: nothing if all is read, or one depot has to wait for another.

    At equal clocks the smallest `priority` comes first. `max_clock_skew` is in microseconds.
    """
    unread = sorted((one for one in cursors if one.has_unread), key=lambda one: one.reader.priority)
    clocks = {one: _clock_after_next_version(one, prime, max_clock_skew) for one in unread}
    unread = [one for one in unread if one.has_unread]  # without those whose new versions turned out to have no rows
    if not unread:
        return Step(None)
    first = min(unread, key=lambda one: clocks[one])
    overtaken = list[str]()
    for cursor in (one for one in cursors if one not in unread):
        if cursor.reader.feeder is None:
            if clocks[first] > _least_idle_clock(cursor, prime):
                return Step(None)
            continue
        may_overtake = _may_overtake(cursor, cursor.reader.feeder, first, clocks[first], prime().started_at)
        cursor.look()
        # guard: fed-since-it-was-asked
        if cursor.has_unread:
            return next_in_step(cursors, prime, max_clock_skew)
        if may_overtake is None:
            return Step(None)
        overtaken += [str(cursor.name)] if may_overtake else []
    return Step(first, tuple(overtaken))


def _may_overtake(cursor: DepotCursor, feeder: Feeder, first: DepotCursor, time: int, now: int) -> bool | None:
    """Tell whether the `first` depot, at some time, overtakes another one; None if it has to wait for its feeder."""
    position = feeder.position(now)
    # guard: waits-for-feeder
    if not position.may_reach(time, before=cursor.reader.priority <= first.reader.priority):
        return False
    wait, since = cursor.reader.wait, position.since
    return True if wait is not None and since is not None and now - since >= wait else None


def _clock_after_next_version(cursor: DepotCursor, prime: Prime, max_clock_skew: int) -> int:
    """Return the greatest clock after a depot's next version (microseconds), UNKNOWN if it moves no clock."""
    known, source = cursor.reached.depot_version, cursor.source
    if cursor.next_clock is None or cursor.next_clock[0] != known:
        cursor.next_clock, upto = None, source.depot().version
        with source.arrived(known, upto) as arrivals:
            following = None if arrivals is None else arrivals.after(known, 1)
            if following is None:
                cursor.searched_to = upto
            else:
                feeder = cursor.reader.feeder
                time = None if feeder is None else feeder.time_of(max(following.expected))
                time = _clock_after(following, cursor, prime(), max_clock_skew) if time is None else time
                cursor.next_clock = known, time
    return cursor.next_clock[1] if cursor.next_clock else clock.UNKNOWN


def _clock_after(following: Slice, cursor: DepotCursor, microbatch: Microbatch, max_clock_skew: int) -> int:
    """Return the greatest clock of the sources in a slice after it (microseconds)."""
    state = microbatch.primed.depots[cursor.name]
    summary = following.parse(state.partial).summarise(microbatch.started_at + max_clock_skew)
    after = FloorsByVersion.plan(summary, state.sources.floors).after
    moved = summary["source"].drop_null().combine_chunks().unique()
    return int(np.max(after.of(moved), initial=clock.UNKNOWN))


def _least_idle_clock(cursor: DepotCursor, prime: Prime) -> int:
    """Return the least idle clock of a depot that is read to its end (microseconds), NEVER if it has no sources."""
    microbatch = prime()
    idle = microbatch.primed.depots[cursor.name].sources.idle(microbatch.started_at)
    return int(np.min(idle.floor, initial=NEVER))
