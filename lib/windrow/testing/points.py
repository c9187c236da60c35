"""The points of a microbatch at which a test can interfere, and wrappers of engine and algorithm that call a probe."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import pyarrow as pa

from windrow.engine.arrivals import Arrivals, Arrived, Slice
from windrow.engine.protocol import CommitCounts, Live
from windrow.engine.result import MicrobatchResult
from windrow.runtime.algorithm import Plan


class Point(Enum):
    """A point at which a microbatch can be interrupted."""

    AFTER_PRIME = "after_prime"
    AFTER_PLAN = "after_plan"
    AFTER_PROCESS = "after_process"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


At = Callable[[Point], None]


class Wrapper:
    """Hands on what is asked of something real; `at` is called at its points."""

    def __init__(self, inner: Any, at: At) -> None:
        self.inner, self.at = inner, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Probed(Wrapper):
    """A real engine; `at` is called at every point of a microbatch and may raise, commit elsewhere, or kill.

    The first microbatch of a run is primed before the depot is read. Its point comes when there are new messages: the
    ledger is also read to open it, or to compare rules.
    """

    _reading = _primed = False

    def live(self) -> Live:
        """Read the live rows."""
        live, self._primed = self.inner.live(), not self._reading
        if self._reading:
            self.at(Point.AFTER_PRIME)
        return live

    def take(self) -> None:
        """Take a slice of the depot; the microbatch may have been primed before it was read."""
        if self._primed:
            self._primed = False
            self.at(Point.AFTER_PRIME)

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Read the depot; the arrivals have points."""
        self._reading = True
        try:
            self.inner.read(after, upto, lambda arrivals: handle(self._arrivals(arrivals)))
        finally:
            self._reading = False

    def commit_result(
        self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str
    ) -> CommitCounts | None:
        """Commit between two points."""
        self._primed = False
        self.at(Point.BEFORE_COMMIT)
        merged = self.inner.commit_result(processed, control, live, token, note)
        self.at(Point.AFTER_COMMIT)
        return merged

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        return cast("Arrivals", ProbedArrivals(arrivals, self.at, self.take))


class ProbedArrivals(Wrapper):
    """Arrivals whose slices have a point; `take` is called when a microbatch takes one."""

    def __init__(self, inner: Any, at: At, take: Callable[[], None]) -> None:
        super().__init__(inner, at)
        self._take = take

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Arrived | None:
        """Return the next slice, with a point."""
        arrived = self.inner.after(version, max_messages, upto)
        if arrived is None:
            return None
        self._take()
        return cast("Slice", ProbedSlice(arrived, self.at))


class ProbedSlice(Wrapper):
    """A slice with a point after its summary."""

    def parse(self, partial: pa.Table) -> Slice:
        """Parse the slice, and keep the point."""
        return cast("Slice", ProbedSlice(self.inner.parse(partial), self.at))

    def summarise(self, latest: int) -> pa.Table:
        """Summarise, then call the probe."""
        summary = self.inner.summarise(latest)
        self.at(Point.AFTER_PLAN)
        return summary


class ProbedAlgorithm(Wrapper):
    """A real algorithm; `at` is called after it has processed messages."""

    def process(self, plan: Plan) -> MicrobatchResult:
        """Process, then call the probe."""
        processed = self.inner.process(plan)
        if plan.kind == "data":
            self.at(Point.AFTER_PROCESS)
        return processed
