"""The states of a producer, and the transitions between them."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The state of a producer."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FENCED = "fenced"


class Event(Enum):
    """What happens to a producer."""

    CLOSE = "close"
    DRAINED = "drained"
    FENCED = "fenced"


# Only an open producer takes messages. Closed and fenced are final.
TRANSITIONS = {
    (State.OPEN, Event.CLOSE): State.CLOSING,
    (State.OPEN, Event.FENCED): State.FENCED,
    (State.CLOSING, Event.DRAINED): State.CLOSED,
    (State.CLOSING, Event.FENCED): State.FENCED,
}


def after(state: State, event: Event) -> State:
    """Return the next state; an event without a transition changes nothing."""
    return TRANSITIONS.get((state, event), state)
