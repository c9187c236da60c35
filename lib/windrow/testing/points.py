"""The points of a microbatch at which a test can interfere, and wrappers of engine and algorithm that call a probe."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pyarrow as pa

from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.runtime.algorithm import Plan
from windrow.source.arrivals import Arrivals


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

    The first microbatch of a run is primed before the depot is read. Its point comes when something has arrived: the
    ledger is also read to open it, or to compare rules.
    """

    _reading = _primed = False

    def live(self) -> Live:
        """Read the live rows."""
        live, self._primed = self.inner.live(), not self._reading
        if self._reading:
            self.at(Point.AFTER_PRIME)
        return live

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Read the depot; what arrives first comes to the point of a microbatch that was primed before."""
        self._reading = True
        try:
            self.inner.read(after, upto, lambda arrivals: handle(self._arrivals(arrivals)))
        finally:
            self._reading = False

    def commit_result(
        self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str
    ) -> int | None:
        """Commit between two points."""
        self._primed = False
        self.at(Point.BEFORE_COMMIT)
        written: int | None = self.inner.commit_result(processed, control, live, token, note)
        self.at(Point.AFTER_COMMIT)
        return written

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        if self._primed:
            self._primed = False
            self.at(Point.AFTER_PRIME)
        return arrivals


class ProbedAlgorithm(Wrapper):
    """A real algorithm; `at` is called before and after it processes messages."""

    def process(self, plan: Plan) -> MicrobatchResult:
        """Process between two points."""
        if plan.kind == "data":
            self.at(Point.AFTER_PLAN)
        processed = self.inner.process(plan)
        if plan.kind == "data":
            self.at(Point.AFTER_PROCESS)
        return processed
