"""What a producer may do: its states, and what takes it from one to the other."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a producer is in its life."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FENCED = "fenced"


class Event(Enum):
    """What happens to a producer."""

    CLOSE = "close"
    DRAINED = "drained"
    FENCED = "fenced"


# Only an open producer takes messages. Nothing leads out of closed and fenced.
TRANSITIONS = {
    (State.OPEN, Event.CLOSE): State.CLOSING,
    (State.OPEN, Event.FENCED): State.FENCED,
    (State.CLOSING, Event.DRAINED): State.CLOSED,
    (State.CLOSING, Event.FENCED): State.FENCED,
}


def after(state: State, event: Event) -> State:
    """Return the state that follows; what means nothing in a state leaves it."""
    return TRANSITIONS.get((state, event), state)
