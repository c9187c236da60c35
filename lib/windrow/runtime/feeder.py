"""How far the topology that fills a depot has come, for a topology that reads its depots in step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FeederPosition:
    """How far a feeder has come: everything that it appends from now on is later than `clock` (microseconds).

    While it is behind, it may also append at `clock`. `feeder` names the topology that holds it up, itself or one that
    feeds it; `since` is when that one stopped (wall time in microseconds), None if it waits for nothing.
    """

    clock: int
    feeder: str = ""
    since: int | None = None

    def may_reach(self, time: int, before: bool) -> bool:
        """Tell whether it may still append anything earlier than `time`, or at `time` if its depot comes `before`."""
        return self.clock < time or (before and self.since is not None and self.clock == time)


class Feeder(Protocol):
    """The topology that fills a depot."""

    def position(self, now: int) -> FeederPosition:
        """Return how far it has come at wall time `now` (microseconds), according to its table of states."""

    def time_of(self, version: int) -> int | None:
        """Return the time that it had reached at a version of the depot, if that is one of its states, else None."""
