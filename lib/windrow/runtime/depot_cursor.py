"""How far a run has read a depot, and which depot comes next in a topology that reads its depots in step.

*In step*, a microbatch reads the next version that ends at the earliest clock, and from the next versions of other
depots the messages that are no later. It waits as long as a depot without new versions may still send an earlier
message. For a depot that another topology fills, the position of that topology decides; for any other depot, the wall
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windrow.model import clock
from windrow.model.floors import FloorsByVersion
from windrow.runtime.feeder import Feeder
from windrow.runtime.ledger_state import DepotPosition
from windrow.runtime.microbatch import MicrobatchAttempt
from windrow.runtime.opening import DepotReader, require_depot
from windrow.runtime.version_part import first_time, last_time
from windrow.source import Source
from windrow.source.slices import Slice

NEVER = np.iinfo(np.int64).max
Prime = Callable[[], MicrobatchAttempt]


class VersionRange(NamedTuple):
    """The times of the unread rest of a depot version (microseconds): no message is before `first`.

    `last` is the clock after the rest, UNKNOWN if no clock moves.
    """

    first: int
    last: int


@dataclass(slots=True, eq=False)
class DepotCursor:
    """How far a run has read a depot."""

    reader: DepotReader
    reached: DepotPosition  # the last version that the ledger has read
    latest: int = -1  # the last version of the depot when the run last looked
    searched_to: int = -1  # a read up to this version found nothing more
    following: tuple[DepotPosition, VersionRange] | None = (
        None  # the position reached, and the times of the version that follows
    )

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
        """Tell whether the depot at the last look had versions that were neither read nor searched."""
        return self.latest > max(self.reached.depot_version, self.searched_to)

    def search_again(self) -> None:
        """Forget what was searched: the ledger may have gone back."""
        self.searched_to = -1


class Step(NamedTuple):
    """The depots whose next version is read, if any, and up to which time (microseconds; None: all of it).

    They overtake the `overtaken`, which stood still for too long.
    """

    cursors: tuple[DepotCursor, ...] = ()
    until: int | None = None
    overtaken: tuple[str, ...] = ()


def next_in_step(cursors: Sequence[DepotCursor], prime: Prime, max_clock_skew: int) -> Step:
    """Return what to read next in step: nothing if all is read, or a depot has to wait for another.

    At equal clocks the smallest `priority` comes first. `max_clock_skew` is in microseconds.
    """
    unread = sorted((cursor for cursor in cursors if cursor.has_unread), key=lambda cursor: cursor.reader.priority)
    spans = {cursor: span for cursor in unread if (span := _next_span(cursor, prime, max_clock_skew))}
    if not spans:
        return Step()
    first = min(spans, key=lambda cursor: spans[cursor].last)
    until, overtaken = spans[first].last, list[str]()
    for cursor in (cursor for cursor in cursors if cursor not in spans):
        if cursor.reader.feeder is None:
            if until > _least_idle_clock(cursor, prime):
                return Step()
            continue
        may_overtake = _may_overtake(cursor, cursor.reader.feeder, first, until, prime().started_at)
        cursor.look()
        # guard: fed-since-it-was-asked
        if cursor.has_unread:
            return next_in_step(cursors, prime, max_clock_skew)
        if may_overtake is None:
            return Step()
        overtaken += [str(cursor.name)] if may_overtake else []
    if until == clock.UNKNOWN:
        return Step((first,), None, tuple(overtaken))
    # guard: messages-by-time
    read = [cursor for cursor, span in spans.items() if cursor is first or span.first <= until]
    return Step(tuple(read), until, tuple(overtaken))


def _may_overtake(cursor: DepotCursor, feeder: Feeder, first: DepotCursor, time: int, now: int) -> bool | None:
    """Tell whether the `first` depot overtakes another one at `time`; None if it has to wait for the other's feeder."""
    position = feeder.position(now)
    # guard: waits-for-feeder
    if not position.may_reach(time, before=cursor.reader.priority <= first.reader.priority):
        return False
    wait, since = cursor.reader.wait, position.since
    return True if wait is not None and since is not None and now - since >= wait else None


def _next_span(cursor: DepotCursor, prime: Prime, max_clock_skew: int) -> VersionRange | None:
    """Return the times of the unread rest of a depot's next version, None if there are no more rows."""
    known, source = cursor.reached, cursor.source
    if cursor.following is None or cursor.following[0] != known:
        cursor.following, last_version = None, source.depot().version
        with source.arrivals(known.depot_version, last_version) as arrivals:
            following = None if arrivals is None else arrivals.after(known.depot_version, 1)
            if following is None:
                cursor.searched_to = last_version
                return None
            feeder = cursor.reader.feeder
            time = None if feeder is None else feeder.time_of(max(following.expected))
            span = _span(following, cursor, prime(), max_clock_skew) if time is None else VersionRange(time, time)
            cursor.following = cursor.reached, span
    return cursor.following[1]


def _span(following: Slice, cursor: DepotCursor, microbatch: MicrobatchAttempt, max_clock_skew: int) -> VersionRange:
    """Return the times of the unread rest of a slice."""
    state = microbatch.primed.depots[cursor.name]
    summary = following.parse(state.partial).summarise(microbatch.started_at + max_clock_skew)
    last = last_time(summary, FloorsByVersion.plan(summary, state.sources.floors))
    return VersionRange(first_time(summary, state), last)


def _least_idle_clock(cursor: DepotCursor, prime: Prime) -> int:
    """Return the least idle clock of a depot that is read to its end (microseconds), NEVER if it has no sources."""
    microbatch = prime()
    idle = microbatch.primed.depots[cursor.name].sources.idle(microbatch.started_at)
    return int(np.min(idle.floor, initial=NEVER))
