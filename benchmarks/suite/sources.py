"""The same small microbatch where few sources are known, and where many are.

A microbatch has one message each of a hundred sources, into an open batch that each source has. How many other sources
the ledger knows, each with a clock and an open batch, should matter little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.conditions import Conditions
from benchmarks.microbatches import run_continuously, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, times
from benchmarks.suite.delay import written
from benchmarks.turns import time_interleaved

MOVED = 100
FEW = 200
SECOND = 1_000_000
RULES = {"window": "1d", "max_delay": "10s", "on_repeat": "keep"}


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Let microbatches follow each other, with few and with many sources, in turns."""
    many = conditions.size(20_000, 400)
    yield from compared(conditions, None, {many: 1.5, 10 * many: 3}, conditions.size(20, 2))
    yield from compared(conditions, conditions.spark(), {many: 1.5, 10 * many: 3}, conditions.size(8, 2))


def compared(
    conditions: Conditions, spark: SparkSession | None, aims: dict[int, float], rounds: int
) -> Iterator[Measurement]:
    """Compare microbatches with many sources with those with few, their time and what they write."""
    engine = "embedded" if spark is None else "Spark"
    here = {count: conditions.directory / f"{engine}-{count}" for count in (FEW, *aims)}
    with ExitStack() as until:
        runs = {}
        for count, place in here.items():
            conditions.tell(f"{engine}, {count:,} sources")
            place.mkdir()
            inputs.write(place / "depot", messages(np.arange(count), 0), 1)
            run = run_continuously(until, settings(place / "depot", place / "ledger", spark, rules=RULES), spark)
            run()
            runs[str(count)] = run

        def arrive(number: int) -> None:
            for count, place in here.items():
                moved = np.random.default_rng(number).choice(count, MOVED, replace=False)
                inputs.write(place / "depot", messages(moved, 1 + number), 1)

        before = {count: written(place) for count, place in here.items()}
        taken = time_interleaved(runs, rounds, 2, arrive, conditions.tell)
    sizes = {count: (written(place) - before[count]) / (rounds + 2) / 1e6 for count, place in here.items()}
    for count, aim in aims.items():
        name = f"{count:,} sources, {engine}"
        yield times(name, taken[str(count)], f"{FEW}", taken[str(FEW)], at_most(aim))
        own, few = sizes[count], sizes[FEW]
        yield Measurement(f"{name}, written", own, "MB", f"{FEW}", few, own / few, "memory", at_most(2))


def messages(number: inputs.Ints, second: int) -> pa.Table:
    """Return a message of each of some sources."""
    source = pa.array([f"source-{index}" for index in number.tolist()])
    at = np.full(number.size, inputs.START + second * SECOND)
    metric = inputs.named("metric", np.zeros(number.size, np.int64), 1)
    payload = inputs.named("value", number, int(number.max()) + 1)
    return inputs.arrived(source, source, metric, at, at, payload)
