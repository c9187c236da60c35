"""Thousands of microbatches with `windrow maintain` beside them: is the last tenth as fast as the first?

The first tenth of all warms up and is dropped, so the last is compared with the second. In the middle of each tenth
maintenance of ledger and depot starts in a thread beside the microbatches. The depot is maintained once before them,
which sets its retention: Delta refuses an append during which the properties of the table change.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.conditions import Conditions
from benchmarks.microbatches import ours, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most
from benchmarks.turns import time_interleaved
from windrow.runtime.maintenance import maintain
from windrow.runtime.opening import tables_of
from windrow.runtime.wall_clock import WallClock


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Soak the embedded engine, then Spark."""
    for engine, session, count, aim in (
        ("embedded", None, conditions.size(2_000, 20), at_most(1.3)),
        ("Spark", conditions.spark(), conditions.size(200, 10), at_most(1.1)),
    ):
        seconds = soaked(conditions, engine, session, count)
        tenth = count // 10
        last, first = median(seconds[-tenth:]), median(seconds[tenth : 2 * tenth])
        name = f"last tenth of {count:,} microbatches, {engine}"
        yield Measurement(name, last, "s", "the second tenth", first, last / first, aim=aim)


def soaked(conditions: Conditions, engine: str, session: SparkSession | None, count: int) -> list[float]:
    """Return the seconds of each microbatch."""
    here, size = conditions.directory / engine, conditions.size(1_000, 100)
    chosen = settings(here / "depot", here / "ledger", session, maintain={"depot": "always"})
    tenth = count // 10
    maintained: list[Future[Any]] = []

    with ThreadPoolExecutor(1) as beside:

        def publish(number: int) -> None:
            inputs.write(here / "depot", inputs.generated(size, first=number * size), 1)
            if not number:
                source, ledger = tables_of(chosen, session)
                maintain([source], ledger, WallClock().now(), only="depot")
            elif number % tenth == tenth // 2:
                source, ledger = tables_of(chosen, session)
                maintained.append(beside.submit(maintain, [source], ledger, WallClock().now()))

        name = f"soak, {engine}"
        taken = time_interleaved({name: ours(chosen, session)}, count, 0, publish, conditions.tell)[name]
    for future in maintained:
        future.result()
    return taken
