"""The points of a microbatch at which a test can interfere, and wrappers of its parts that call a probe there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import pyarrow as pa

from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.runtime.algorithm import MicrobatchPlan
from windrow.source.arrivals import Arrivals


class Point(Enum):
    """A point at which a microbatch can be interrupted."""

    AFTER_PRIME = "after_prime"
    AFTER_PLAN = "after_plan"
    AFTER_PROCESS = "after_process"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


Probe = Callable[[Point], None]


class EngineProxy:
    """Delegates to the real object; `at` is called at its points."""

    def __init__(self, inner: Any, at: Probe) -> None:
        self.inner, self.at = inner, at

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.inner, name)


class ProbedLedger(EngineProxy):
    """A real ledger; `at` is called at every point of a microbatch and may raise, commit elsewhere, or kill.

    The first microbatch of a run is primed before the depots are read. Its point is called when something has arrived:
    the ledger is also read to open it, or to compare rules.
    """

    reading = primed = False

    def live(self) -> Live:
        """Read the live rows."""
        live, self.primed = self.inner.live(), not self.reading
        if self.reading:
            self.at(Point.AFTER_PRIME)
        return live

    def commit(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int | None:
        """Commit between two points."""
        self.primed = False
        self.at(Point.BEFORE_COMMIT)
        written: int | None = self.inner.commit(processed, control, live, token, note)
        self.at(Point.AFTER_COMMIT)
        return written


class ProbedSource(EngineProxy):
    """A real source; the first arrivals call the point of a microbatch that was primed before."""

    def __init__(self, inner: Any, ledger: ProbedLedger) -> None:
        super().__init__(inner, ledger.at)
        self.ledger = ledger

    @contextmanager
    def arrivals(self, after: int, last_version: int) -> Iterator[Arrivals | None]:
        """Read the depot."""
        with self._reading(), self.inner.arrivals(after, last_version) as arrivals:
            yield None if arrivals is None else self._arrivals(arrivals)

    def stream(self, after: int, last_version: int, handle: Callable[[Arrivals], None]) -> bool:
        """Read the depot by a stream."""
        with self._reading():
            elsewhere: bool = self.inner.stream(after, last_version, lambda arrivals: handle(self._arrivals(arrivals)))
        return elsewhere

    @contextmanager
    def _reading(self) -> Iterator[None]:
        before, self.ledger.reading = self.ledger.reading, True
        try:
            yield
        finally:
            self.ledger.reading = before

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        if self.ledger.primed:
            self.ledger.primed = False
            self.at(Point.AFTER_PRIME)
        return arrivals


class ProbedAlgorithm(EngineProxy):
    """A real algorithm; `at` is called before and after it processes messages."""

    def process(self, plan: MicrobatchPlan) -> MicrobatchResult:
        """Process between two points."""
        if plan.kind == "data":
            self.at(Point.AFTER_PLAN)
        processed = self.inner.process(plan)
        if plan.kind == "data":
            self.at(Point.AFTER_PROCESS)
        return processed
