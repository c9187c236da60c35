"""Faults of folds: kills and lost replies, a full disk, other drivers and maintenance beside them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from deltalake import DeltaTable

from tests.engine.probe import FoldPoint
from tests.engine.processes import Driver, drivers
from tests.faults.mishaps import blocked, full_disk, log_file
from tests.faults.trials.processes import Child, children, driver, look_after, values_of
from tests.faults.trials.trial import Trial
from tests.probes import no_op, with_probe
from windrow.errors import ConcurrentCommitError
from windrow.ledger.live import Live
from windrow.ledger.versions import Fold
from windrow.model.commits import note_of
from windrow.testing.points import ProbedLedger

POINTS = list(FoldPoint)
SOON: dict[str, Any] = {"fold_commits": 2}  # a driver folds before its first microbatch


def folds(trial: Trial) -> int:
    """Return how many folds are in the ledger's log."""
    return sum("fold" in note_of(commit) for commit in DeltaTable(trial.world.ledger).history())


def killed(trial: Trial) -> None:
    """Kill drivers during folds, one after another: at a point, on Spark at any moment from the beginning on."""
    unfolded(trial)
    if trial.factory.name == "spark":
        with _started(trial, "spark") as (other,):
            other.go_on()
            other.hear("folding")
            trial.struck = _killed(trial, other)
        return
    for _ in range(3):
        with children(driver(trial, (trial.random.choice(POINTS).value, 1), **SOON)) as (child,):
            child.go()
            trial.struck |= child.status() == -signal.SIGKILL


def raced(trial: Trial) -> None:
    """Let three drivers race beside `windrow maintain`; two of them are killed during folds."""
    unfolded(trial)
    beside = Child(look_after, values_of(trial), False)
    if trial.factory.name == "spark":
        with children(beside), _started(trial, "spark", "embedded", "embedded") as others:
            others[0].go_on()
            others[0].hear("folding")
            beside.go()
            for other in others[1:]:
                other.go_on()
            killed = trial.random.random() < 0.5 and _killed(trial, others[0])
            statuses = [other.status() for other in others]
            _still_runs(beside)
        trial.struck = True
        expected = [-signal.SIGKILL if killed else 0, 0, 0]
    else:
        ends = [(trial.random.choice(POINTS).value, number) for number in (1, 2)]
        with children(beside, *(driver(trial, end, **SOON) for end in (*ends, None))) as started:
            for child in started:
                child.go()
            statuses = [child.status() for child in started[1:]]
            _still_runs(beside)
        trial.struck = -signal.SIGKILL in statuses
        expected = [*(status and -signal.SIGKILL for status in statuses[:2]), 0]
    if statuses != expected:
        raise RuntimeError(f"drivers ended with {statuses}")


def unfolded(trial: Trial) -> None:
    """Publish some versions and read them without folds; then publish the others."""
    trial.publish(trial.random.randint(1, len(trial._left) - 1))
    trial.run(fold_commits=100, fold_rows=10_000)
    trial.publish()


def _started(trial: Trial, *engines: str) -> AbstractContextManager[list[Driver]]:
    """Start drivers that fold at once."""
    return drivers(trial.world, *engines, **trial.settings | SOON)


def _killed(trial: Trial, other: Driver) -> bool:
    """Kill a driver on Spark, its JVM too, some time after its fold began; return whether that is what ended it."""
    time.sleep(trial.random.random() * 4)
    other.kill()
    return other.status() == -signal.SIGKILL


def _still_runs(beside: Child) -> None:
    if beside.process.exitcode is not None:
        raise RuntimeError(f"the maintenance ended with {beside.process.exitcode}")


class Struck(ProbedLedger):
    """A ledger whose first fold is given to `act`, in place of being simply done."""

    def __init__(self, ledger: Any, act: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(ledger, no_op)
        self._acts = [act]

    def fold(self, live: Live, fold: Fold) -> None:
        """Fold."""
        act = self._acts.pop() if self._acts else lambda fold: fold()
        act(lambda: self.inner.fold(live, fold))


def reply_lost(trial: Trial) -> None:
    """Let folds take place with an error after them: of the network, or as if somebody else had committed."""
    unfolded(trial)
    error = trial.random.choice(
        [OSError("it failed"), ConcurrentCommitError("the ledger moved", "Nothing was written.")]
    )
    errors = [error] * trial.random.randint(1, 3)

    def at(here: Any) -> None:
        if here is FoldPoint.AFTER_FOLD and errors:
            trial.struck = True
            raise errors.pop()

    trial.run(at, **SOON)


def disk_full(trial: Trial) -> None:
    """Let the disk be full during a fold, for some bytes or all: the run goes on, and the next fold succeeds."""
    unfolded(trial)
    limit = trial.random.choice([0, trial.random.randint(1, 5_000)])
    wrong = False

    def act(fold: Callable[[], None]) -> None:
        nonlocal wrong
        version, before = trial.world.version(), folds(trial)
        obstacle = log_file(trial.world.ledger, version + 1)
        on_spark = trial.factory.name == "spark"
        if on_spark:
            blocked(obstacle)
        try:
            with nullcontext() if on_spark else full_disk(limit):
                fold()
        except Exception:
            trial.struck = True
            obstacle.rmdir() if on_spark else None
            wrong = (trial.world.version(), folds(trial)) != (version, before)
            raise

    struck = with_probe(no_op, lambda ledger, _: Struck(ledger, act))
    trial.world.runner(trial.factory, struck, max_retries=0, **trial.settings | SOON).once()
    before, ledger = folds(trial), trial.world.tables(trial.factory).ledger
    ledger.fold(ledger.live(), trial.random.choice(["small", "large"]))
    if wrong or folds(trial) != before + 1:
        raise RuntimeError("the ledger changed on a full disk, or not when there was room again")
