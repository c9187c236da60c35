"""What Python programs call: `windrow.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from windrow.clock import Clock
from windrow.engine import open_engine
from windrow.microbatch import Committed
from windrow.runner import Runner, Summary
from windrow.settings import Settings
from windrow.wall import WallClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    settings: Settings | None = None,
    once: bool = True,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
    report: Callable[[Committed], None] = lambda committed: None,
) -> Summary:
    """Batch what is new in the depot, then stop, or with `once=False` go on every `settings.run.every`.

    `spark` is the session to use; without one the settings choose the engine. `report` is called after each commit.
    Returns what was done. Raises the errors of `windrow.errors`; what was committed before stays.
    """
    chosen = settings or Settings.load()
    runner = Runner(open_engine(chosen, spark), chosen, clock or WallClock(), report)
    return runner.once() if once else runner.every(chosen.run.every)
