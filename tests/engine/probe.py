"""An engine that stops at named points of a microbatch, so that a test can interfere there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

import pyarrow as pa

from windrow.engine import Engine
from windrow.engine.protocol import Arrivals, Live, Merged, Processed, Slice
from windrow.raw.volume import Volume
from windrow.step import Task


class Point(Enum):
    """Where a microbatch can be interrupted."""

    AFTER_PRIME = "after_prime"
    AFTER_PLAN = "after_plan"
    AFTER_PROCESS = "after_process"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


At = Callable[[Point], None]


class Probed:
    """A real engine; `at` is called at every point of a microbatch and may raise, commit elsewhere, or kill.

    Reading the ledger to open it, or to compare rules, is no point: only a prime that follows new messages is.
    """

    def __init__(self, engine: Engine, at: At) -> None:
        self._engine, self._at, self._reading = engine, at, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def live(self) -> Live:
        """Read the live rows."""
        live = self._engine.live()
        if self._reading:
            self._at(Point.AFTER_PRIME)
        return live

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Read the depot; what arrives has points."""
        self._reading = True
        try:
            self._engine.read(after, upto, lambda arrivals: handle(self._arrivals(arrivals)))
        finally:
            self._reading = False

    def merge(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Commit, between two points."""
        self._at(Point.BEFORE_COMMIT)
        merged = self._engine.merge(rows, control, live, token, note)
        self._at(Point.AFTER_COMMIT)
        return merged

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        return ProbedArrivals(arrivals, self._at)


class Mute(Probed):
    """An engine that commits and does not say so."""

    def merge(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> None:
        """Commit, and return nothing."""
        self._engine.merge(rows, control, live, token, note)


class Deaf(Probed):
    """An engine that loses its third commit, and does not say so."""

    commits = 0

    def merge(self, *given: Any) -> Merged | None:
        """Commit, or only say nothing."""
        self.commits += 1
        return None if self.commits == 3 else self._engine.merge(*given)


class Lossy(Probed):
    """An engine whose slices lost their first row."""

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        return LossyArrivals(arrivals, self._at)


class ProbedArrivals:
    """Arrivals whose slices have points."""

    def __init__(self, arrivals: Arrivals, at: At) -> None:
        self._arrivals, self._at = arrivals, at

    @property
    def begin(self) -> int:
        """Return the first version of the read."""
        return self._arrivals.begin

    def after(self, version: int, max_messages: int) -> Slice | None:
        """Return the next slice, with points."""
        arrived = self._arrivals.after(version, max_messages)
        return arrived and ProbedSlice(arrived, self._at)


class LossyArrivals(ProbedArrivals):
    """Arrivals whose slices lost their first row."""

    def after(self, version: int, max_messages: int) -> Slice | None:
        """Return the next slice without its first row."""
        arrived = self._arrivals.after(version, max_messages)
        return arrived and replace(arrived, messages=arrived.messages.slice(1))


class ProbedSlice:
    """A slice with points after its summary and after its processing."""

    def __init__(self, arrived: Slice, at: At) -> None:
        self._arrived, self._at = arrived, at

    @property
    def path(self) -> str:
        """Return where it is processed."""
        return self._arrived.path

    @property
    def expected(self) -> Mapping[int, int | None]:
        """Return what the log says of its versions."""
        return self._arrived.expected

    @property
    def volume(self) -> Volume | None:
        """Return how many octets it has."""
        return self._arrived.volume

    def formatted(self, partial: pa.Table) -> Slice:
        """Make messages of it, with the same points."""
        return ProbedSlice(self._arrived.formatted(partial), self._at)

    def summarise(self, latest: int) -> pa.Table:
        """Summarise, then come to a point."""
        summary = self._arrived.summarise(latest)
        self._at(Point.AFTER_PLAN)
        return summary

    def streams(self) -> pa.Table | None:
        """Return its streams."""
        return self._arrived.streams()

    def process(self, task: Task, live: pa.Table) -> Processed:
        """Process, then come to a point."""
        processed = self._arrived.process(task, live)
        self._at(Point.AFTER_PROCESS)
        return processed


def nowhere(point: Point) -> None:
    """Do nothing at any point."""


def once(point: Point, act: Callable[[], object]) -> At:
    """Return a probe that acts the first time a microbatch comes to `point`."""
    left = [act]

    def at(here: Point) -> None:
        if here is point and left:
            left.pop()()

    return at


def failing(point: Point, times: int, error: type[Exception] = OSError) -> At:
    """Return a probe that raises at `point`, so many times."""
    left = [error(f"the disk failed {point.value}")] * times

    def at(here: Point) -> None:
        if here is point and left:
            raise left.pop()

    return at
