"""The points of a microbatch at which a test can interfere, and wrappers of engine and algorithm that call a probe."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import pyarrow as pa

from windrow.engine.arrivals import Arrivals, Arrived, Listed, Slice
from windrow.engine.protocol import Engine, Live, Merged
from windrow.engine.result import MicrobatchResult
from windrow.runtime.algorithm import Algorithm, Plan


class Point(Enum):
    """A point at which a microbatch can be interrupted."""

    AFTER_PRIME = "after_prime"
    AFTER_PLAN = "after_plan"
    AFTER_PROCESS = "after_process"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


At = Callable[[Point], None]


class Probed:
    """A real engine; `at` is called at every point of a microbatch and may raise, commit elsewhere, or kill.

    Reading the ledger to open it or to compare rules is not a point: only a prime that follows new messages is.
    """

    def __init__(self, engine: Engine, at: At) -> None:
        self._engine, self.at, self._reading = engine, at, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def live(self) -> Live:
        """Read the live rows."""
        live = self._engine.live()
        if self._reading:
            self.at(Point.AFTER_PRIME)
        return live

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Read the depot; the arrivals have points."""
        self._reading = True
        try:
            self._engine.read(after, upto, lambda arrivals: handle(self._arrivals(arrivals)))
        finally:
            self._reading = False

    def merge(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Commit between two points."""
        self.at(Point.BEFORE_COMMIT)
        merged = self._engine.merge(processed, control, live, token, note)
        self.at(Point.AFTER_COMMIT)
        return merged

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        return cast("Arrivals", ProbedArrivals(arrivals, self.at))


class ProbedArrivals:
    """Arrivals whose slices have a point."""

    def __init__(self, arrivals: Arrivals, at: At) -> None:
        self._arrivals, self._at = arrivals, at

    @property
    def listed(self) -> Listed:
        """Return the versions of the read."""
        return self._arrivals.listed

    @property
    def last(self) -> int | None:
        """Return the last version of the read."""
        return self._arrivals.last

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Arrived | None:
        """Return the next slice, with a point."""
        arrived = self._arrivals.after(version, max_messages, upto)
        return arrived and cast("Slice", ProbedSlice(cast("Slice", arrived), self._at))


class ProbedSlice:
    """A slice with a point after its summary."""

    def __init__(self, arrived: Slice, at: At) -> None:
        self._arrived, self._at = arrived, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arrived, name)

    def parse(self, partial: pa.Table) -> Slice:
        """Parse the slice, and keep the point."""
        return cast("Slice", ProbedSlice(self._arrived.parse(partial), self._at))

    def summarise(self, latest: int) -> pa.Table:
        """Summarise, then call the probe."""
        summary = self._arrived.summarise(latest)
        self._at(Point.AFTER_PLAN)
        return summary


class ProbedAlgorithm:
    """A real algorithm; `at` is called after it has processed messages."""

    def __init__(self, algorithm: Algorithm, at: At) -> None:
        self._algorithm, self._at = algorithm, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    def process(self, plan: Plan) -> MicrobatchResult:
        """Process, then call the probe."""
        processed = self._algorithm.process(plan)
        if plan.kind == "data":
            self._at(Point.AFTER_PROCESS)
        return processed
