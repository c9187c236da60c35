"""What a bridge did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a bridge: what was received, of these invalid, in the depot, acknowledged to the broker."""

    broker: str
    client_id: str
    depot: str
    connections: int
    received: int
    again: int
    committed: int
    invalid: int
    acknowledged: int
    depot_version: int | None
    seconds: float


@dataclass(slots=True)
class Counts:
    """The same while it goes on."""

    connections: int = 0
    received: int = 0
    again: int = 0
    committed: int = 0
    invalid: int = 0
    acknowledged: int = 0
    depot_version: int | None = None
