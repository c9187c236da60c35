"""What a function of a topology gets: a microbatch, with its messages and the states as they were before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from windrow.errors import TopologyRefused
from windrow.topology.arrow_state import ArrowState

if TYPE_CHECKING:
    from windrow.topology.state import State


@dataclass(slots=True)
class Microbatch:
    """One microbatch, the same in every attempt but for `attempt`.

    `id` is its number, of use where a function writes to another system: what was written under an id may be written
    again under it. `depot` is the name of the depot that it reads, None where an event alone brought it about.
    `messages` are what that depot added, as an Arrow table, or as a frame in a function of frames: the columns of
    `windrow.model.messages` or of the depot's own rows, and `version`. `events` are the names of those that fire.
    `clock` is the wall time at which the attempt began, UTC.
    """

    id: int
    attempt: int
    depot: str | None
    messages: Any
    events: tuple[str, ...]
    clock: datetime
    states: Mapping[str, State] = field(repr=False)
    read: Callable[[str], Any] = field(repr=False)
    wrap: Callable[[State, Any], Any] = field(default=ArrowState, repr=False)

    def state(self, name: str) -> Any:
        """Return a state as it was before the microbatch: `ArrowState`, or `FrameState` in a function of frames."""
        if name not in self.states:
            raise TopologyRefused(f"there is no state {name!r}", f"There are {', '.join(self.states)}.")
        return self.wrap(self.states[name], self.read(name))
