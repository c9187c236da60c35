"""A long window: what a microbatch costs when each batch it touches holds ten times as many messages.

A hundred devices send a thousand messages a second into windows of ten hours. A microbatch takes ten
thousand messages, a hundred for each batch, and all batches stay open: a hundred thousand messages are in them at
first, or a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.conditions import Conditions
from benchmarks.microbatches import run_continuously, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, times
from benchmarks.suite.delay import written
from benchmarks.turns import Run, time_interleaved

DEVICES, MESSAGES = 100, 10_000
STEP = 1_000  # microseconds between two messages: ten seconds a microbatch, half an hour for two million
FEW = 100_000


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Let microbatches follow each other, with few and with many messages in the open batches, in turns."""
    most = conditions.size(1_000_000, 200_000)
    yield from compared(conditions, None, most, conditions.size(70, 2))
    yield from compared(conditions, conditions.spark(), most, conditions.size(10, 2))


def compared(conditions: Conditions, spark: SparkSession | None, most: int, rounds: int) -> Iterator[Measurement]:
    """Compare microbatches into large batches with those into smaller ones, their time and what they write."""
    engine = "embedded" if spark is None else "Spark"
    here = {open_: conditions.directory / f"{engine}-{open_}" for open_ in (FEW, most)}
    for open_, place in here.items():
        conditions.tell(f"{engine}, {open_:,} open messages")
        place.mkdir()
        publish(place, 0, open_)
    with ExitStack() as until:
        runs = {str(open_): devices(until, place, spark) for open_, place in here.items()}
        for run in runs.values():
            run()  # what is open before

        def arrive(number: int) -> None:
            for open_, place in here.items():
                publish(place, open_ + number * MESSAGES, MESSAGES)

        before = {open_: written(place) for open_, place in here.items()}
        taken = time_interleaved(runs, rounds, 2, arrive, conditions.tell)
    sizes = {open_: (written(place) - before[open_]) / (rounds + 2) / 1e6 for open_, place in here.items()}
    name = f"{most:,} open messages in a hundred windows, {engine}"
    yield times(name, taken[str(most)], f"{FEW:,}", taken[str(FEW)], at_most(2))
    own, other = sizes[most], sizes[FEW]
    yield Measurement(f"{name}, written", own, "MB", f"{FEW:,}", other, own / other, "memory", at_most(1.5))


def devices(until: ExitStack, place: Path, spark: SparkSession | None) -> Run:
    """Return what batches all that is new."""
    rules = {"window": "10h", "max_delay": "5s", "on_repeat": "keep"}
    return run_continuously(until, settings(place / "depot", place / "ledger", spark, rules=rules), spark)


def publish(place: Path, first: int, count: int) -> None:
    """Publish so many messages in one version."""
    random = np.random.default_rng(first)
    number = first + np.arange(count)
    received = inputs.START + number * STEP
    device = inputs.named("device", number % DEVICES, DEVICES)
    payload = pa.array(random.random(count).round(3).astype(str))
    metric = inputs.named("metric", np.zeros(count, np.int64), 1)
    inputs.write(place / "depot", inputs.arrived(device, device, metric, received, received, payload), 1)
