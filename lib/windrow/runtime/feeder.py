"""What a topology that reads its depots in step knows of the one that fills a depot: up to which time it has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FeederPosition:
    """How far a feeder has come: all that it appends from now on is later than `clock` (microseconds).

    While it is behind it may also append at `clock` itself. `feeder` names the topology that holds it there, itself or
    one that feeds it; `since` is when that stopped (wall time in microseconds), None if it waits for nothing.
    """

    clock: int
    feeder: str = ""
    since: int | None = None

    def may_reach(self, time: int, before: bool) -> bool:
        """Tell whether it may still append something earlier than a time, or at that time if this comes `before`."""
        return self.clock < time or (before and self.since is not None and self.clock == time)


class Feeder(Protocol):
    """The topology that fills a depot."""

    def position(self, now: int) -> FeederPosition:
        """Return how far it has come at wall time `now` (microseconds), as its table of states says."""

    def time_of(self, version: int) -> int | None:
        """Return the time that it had reached with a version of a depot that is a state of it, else None."""
