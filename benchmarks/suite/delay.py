"""A fleet whose messages may be late by seconds, or by hours: what a microbatch costs with much that is open.

Fifty devices send eight metrics a second each, and a microbatch takes ten seconds of them: 4,000 messages into windows
of ten seconds. One message in a hundred is late, by up to nine tenths of `max_delay`. So with an hour of delay 1.4
million messages are open, of which a microbatch can change a few thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.conditions import Conditions
from benchmarks.microbatches import settings, staying
from benchmarks.peers import inputs
from benchmarks.row import Row, at_most, times
from benchmarks.turns import Run, in_turns

DEVICES, METRICS, SECONDS = 50, 8, 10
LATE = 0.01
PIECE = 600  # seconds that are published at a time
SHORT = 5  # seconds of delay


def measure(conditions: Conditions) -> Iterator[Row]:
    """Let microbatches follow each other, with little and with much that is open, in turns."""
    spark, rounds = conditions.spark(), conditions.size(20, 2)
    yield from compared(conditions, None, (conditions.size(3_600, 30), conditions.size(6 * 3_600, 60)), rounds)
    yield from compared(conditions, spark, (conditions.size(3_600, 30),), conditions.size(8, 2))


def compared(conditions: Conditions, spark: SparkSession | None, delays: tuple[int, ...], rounds: int) -> Iterator[Row]:
    """Compare microbatches of long delays with those of a short one, their time and what they write."""
    engine = "embedded" if spark is None else "Spark"
    here = {delay: conditions.directory / f"{engine}-{delay}" for delay in (SHORT, *delays)}
    for delay, place in here.items():
        conditions.tell(f"{engine}, {delay:,} s of delay")
        place.mkdir()
        for first in range(0, delay, PIECE):
            publish(place, delay, first, min(PIECE, delay - first), 0)
    with ExitStack() as until:
        runs = {str(delay): fleet(until, place, delay, spark) for delay, place in here.items()}
        for run in runs.values():
            run()  # what is open before

        def arrive(number: int) -> None:
            for delay, place in here.items():
                publish(place, delay, delay + number * SECONDS, SECONDS, LATE)

        before = {delay: written(place) for delay, place in here.items()}
        taken = in_turns(runs, rounds, 2, arrive, conditions.tell)
    sizes = {delay: (written(place) - before[delay]) / (rounds + 2) / 1e6 for delay, place in here.items()}
    for delay in delays:
        name = f"{delay:,} s of delay, {engine}"
        yield times(name, taken[str(delay)], f"{SHORT} s", taken[str(SHORT)], at_most(1.5 if delay == delays[0] else 3))
        own, other = sizes[delay], sizes[SHORT]
        yield Row(f"{name}, written", own, "MB", f"{SHORT} s", other, own / other, "memory", at_most(2))


def fleet(until: ExitStack, place: Path, delay: int, spark: SparkSession | None) -> Run:
    """Return what batches all that is new of a fleet."""
    rules = {"window": "10s", "max_delay": f"{delay}s", "repeats": "keep"}
    return staying(until, settings(place / "depot", place / "ledger", spark, rules=rules), spark)


def publish(place: Path, delay: int, first: int, seconds: int, late: float) -> None:
    """Publish so many seconds of the fleet in one version; some messages are late."""
    random = np.random.default_rng(first)
    number = np.arange(seconds * DEVICES * METRICS)
    received = inputs.START + (first + number // (DEVICES * METRICS)) * 1_000_000 + number % (DEVICES * METRICS)
    lateness = np.where(random.random(number.size) < late, random.random(number.size) * 0.9 * delay * 1_000_000, 0)
    device = inputs.named("device", number // METRICS % DEVICES, DEVICES)
    payload = pa.array(random.random(number.size).round(3).astype(str))
    metric = inputs.named("metric", number % METRICS, METRICS)
    rows = inputs.arrived(device, device, metric, received - lateness.astype(np.int64), received, payload)
    inputs.write(place / "depot", rows, 1)


def written(place: Path) -> int:
    """Return how many bytes the files of a ledger have, those of folds too."""
    return sum(file.stat().st_size for file in (place / "ledger").rglob("*.parquet"))
