"""The microbatch that a function of a topology gets: its messages, and the states before it."""

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
    """One microbatch; only `attempt` and `clock` differ between attempts.

    `id` is its number. Use it when a function writes to another system: a retry writes again under the same id. `depot`
    is the name of the depot it reads, None if only events caused it. `messages` are the rows the depot added, as an
    Arrow table or a DataFrame, as the function wants: the columns of `windrow.model.messages` or the depot's own, and
    `version`. `events` are the names of the events that fire. `clock` is the wall time (UTC) at the attempt's start.
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
        """Return a state as it was before the microbatch: an `ArrowState` or a `FrameState`."""
        if name not in self.states:
            raise TopologyRefused(f"there is no state {name!r}", f"The states are {', '.join(self.states)}.")
        return self.wrap(self.states[name], self.read(name))
