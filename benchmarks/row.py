"""A row of the table: what, against what, ours, theirs, the ratio, the aim, and whether it is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks import turns


@dataclass(frozen=True, slots=True)
class Target:
    """A bound of the ratio or, where there is none or `own` says so, of our own value."""

    bound: float
    side: Literal["least", "most"]
    own: bool = False

    def __str__(self) -> str:
        return f"{'>=' if self.side == 'least' else '<='} {self.bound:g}"

    def holds(self, value: float) -> bool:
        """Tell whether a value is on the right side, the bound included."""
        return value >= self.bound if self.side == "least" else value <= self.bound


def at_least(bound: float) -> Target:
    """Return an aim that more is better of."""
    return Target(bound, "least")


def at_most(bound: float, own: bool = False) -> Target:
    """Return an aim that less is better of."""
    return Target(bound, "most", own)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement. `ratio` is ours by theirs, or of speeds (theirs by ours in time), as `of` says."""

    what: str
    ours: float
    unit: str
    against: str = ""
    theirs: float | None = None
    ratio: float | None = None
    of: Literal["time", "speed", "memory", "count"] = "time"
    aim: Target | None = None

    @property
    def met(self) -> bool | None:
        """Tell whether the aim is met, None without an aim."""
        if self.aim is None:
            return None
        return self.aim.holds(self.ours if self.ratio is None or self.aim.own else self.ratio)


def times(
    what: str, ours: Sequence[float], against: str, theirs: Sequence[float], aim: Target | None = None
) -> Measurement:
    """Return our time by theirs, of seconds measured in turns."""
    return Measurement(what, median(ours), "s", against, median(theirs), turns.ratio(ours, theirs), "time", aim)


def speeds(
    what: str, ours: Sequence[float], against: str, theirs: Sequence[float], aim: Target | None = None
) -> Measurement:
    """Return our speed by theirs, of seconds measured in turns."""
    return Measurement(what, median(ours), "s", against, median(theirs), turns.ratio(theirs, ours), "speed", aim)


def rate(what: str, messages: int, seconds: Sequence[float], aim: Target | None = None) -> Measurement:
    """Return million messages a second."""
    return Measurement(what, messages / median(seconds) / 1e6, "M/s", aim=aim)


def memory(what: str, byte_count: int, aim: Target | None = None) -> Measurement:
    """Return a peak of resident memory."""
    return Measurement(what, byte_count / 2**30, "GiB", aim=aim)
