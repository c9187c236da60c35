"""Warm microbatches: a few messages are published, then each contestant takes them, and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import windrow
from benchmarks.peers import inputs
from benchmarks.turns import Run, time_interleaved, timed
from windrow.runtime.loop import Runner
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock


def settings(depot: Path, ledger: Path, spark: SparkSession | None = None, **more: Any) -> windrow.Settings:
    """Return Windrow's defaults for two tables, on Spark where a session is given."""
    return windrow.Settings(depot=str(depot), ledger=str(ledger), engine="spark" if spark else "embedded", **more)


def ours(chosen: windrow.Settings, spark: SparkSession | None = None) -> Run:
    """Return what batches all that is new."""
    return partial(timed, partial(windrow.run, chosen, spark=spark))


def run_continuously(until: ExitStack, chosen: windrow.Settings, spark: SparkSession | None = None) -> Run:
    """Return what batches all that is new in a run that goes on `until` the end, as `run --interval` does in a
    round.
    """

    @cache
    def runner() -> Runner:
        return until.enter_context(open_runner(*tables_of(chosen, spark), WallClock()))

    return partial(timed, lambda: runner().once())


def one_by_one(
    depot: Path, messages: pa.Table, size: int, runs: Mapping[str, Run], tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Publish `size` messages at a time until all are, and return the seconds of each microbatch.

    The first third is dropped: it warms up.
    """
    count = messages.num_rows // size

    def publish(number: int) -> None:
        inputs.write(depot, messages.slice(number * size, size), 1)

    return time_interleaved(runs, count - count // 3, count // 3, publish, tell)
