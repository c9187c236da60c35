"""Change a ledger without reading its depots: pause and resume, tick, flush, and other recorded changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np

from windrow.errors import UsageError
from windrow.ledger.result import MicrobatchResult
from windrow.model.floors import Floors
from windrow.model.results import Kind
from windrow.runtime.driver import Driver, RunSummary
from windrow.runtime.ledger_state import DepotPosition, LedgerState

Change: TypeAlias = tuple[MicrobatchResult, Mapping[str, DepotPosition]]  # rows to commit, and the positions that move


class Control:
    """Controls the ledger of a driver. Each call returns the summary of what the driver has done so far."""

    def __init__(self, driver: Driver) -> None:
        """Control the ledger of `driver`."""
        self.driver = driver

    @property
    def summary(self) -> RunSummary:
        """Return what the driver has done so far."""
        return self.driver.summary

    def tick(self, to: int | None = None) -> RunSummary:
        """Close the batches that are overdue now (an idle tick), or raise all floors to `to` (microseconds)."""
        return self.driver.do(self._tick_idle if to is None else partial(self._tick_to, to))

    def flush(self) -> RunSummary:
        """Close all open batches, each source at the later of its floor and its idle clock."""
        return self.driver.do(self._flush)

    def pause(self) -> RunSummary:
        """Pause the ledger until `resume`; a microbatch in progress in another process is fenced."""
        return self.driver.do(partial(self._set_paused, True))

    def resume(self) -> RunSummary:
        """End a pause: microbatches may run again."""
        return self.driver.do(partial(self._set_paused, False))

    def commit_change(self, kind: Kind, work: Callable[[LedgerState], Change]) -> RunSummary:
        """Commit the result of `work` as a microbatch without messages, whether the ledger is paused or not.

        `work` also returns the new positions in depots.
        """
        return self.driver.do(partial(self._commit_change, kind, work))

    def _commit_change(self, kind: Kind, work: Callable[[LedgerState], Change]) -> None:
        microbatch = self.driver.prime(limit=False)
        processed, reached = work(microbatch.primed)
        self.driver.record(microbatch.run_without_messages(kind, processed, reached))
        self.driver.prime(limit=False)
        self.driver.search_again()

    def _set_paused(self, paused: bool) -> None:
        microbatch = self.driver.prime(limit=False)
        if microbatch.primed.paused != paused:
            self.driver.record(microbatch.run_without_messages("pause" if paused else "resume"))
        self.summary.paused = paused

    def _tick_idle(self) -> None:
        driver = self.driver
        microbatch = driver.unpaused_attempt("tick")
        due = driver.algorithm.due(microbatch.primed, microbatch.started_at)
        if due is None and driver.saved_plan() is None:
            return
        planned = driver.begin_attempt(microbatch, {})
        # Otherwise an earlier attempt read messages, and so will the next round.
        if planned is None or not planned.last_versions:
            driver.record(microbatch.run_tick(due or Floors.empty(), planned=planned))
            driver.forget_plan()

    def _tick_to(self, to: int) -> None:
        microbatch = self.driver.unpaused_attempt("tick")
        if None not in microbatch.primed.depots:
            raise UsageError("a topology has no clocks to raise", "`windrow tick` without --to fires what is due.")
        floors = microbatch.primed.sources.floors
        if np.any(floors.floor < to):
            self.driver.record(microbatch.run_tick(floors.at_least(to)))

    def _flush(self) -> None:
        microbatch = self.driver.unpaused_attempt("flush")
        primed = microbatch.primed
        idle = primed.sources.idle(microbatch.started_at)
        now = primed.sources.floors.raised(idle.source, idle.floor)
        if primed.open.total[0]:
            self.driver.record(microbatch.run_tick(now, "flush"))
