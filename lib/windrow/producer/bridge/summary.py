"""The figures of a bridge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """The final figures: messages received, invalid among these, committed to the depot, acknowledged to the broker."""

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
    """The figures so far."""

    connections: int = 0
    received: int = 0
    again: int = 0
    committed: int = 0
    invalid: int = 0
    acknowledged: int = 0
    depot_version: int | None = None


@dataclass(frozen=True, slots=True)
class KafkaSummary:
    """The final figures of a worker; `lag` is how many offsets of its partitions the depot does not have."""

    broker: str
    group: str
    depot: str
    partitions: int
    received: int
    committed: int
    invalid: int
    lag: int
    depot_version: int | None
    seconds: float


@dataclass(slots=True)
class KafkaCounts:
    """The figures so far; `partitions` is how many the worker has now."""

    partitions: int = 0
    received: int = 0
    committed: int = 0
    invalid: int = 0
    lag: int = 0
    depot_version: int | None = None
