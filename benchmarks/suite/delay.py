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
from benchmarks.microbatches import run_continuously, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, Target, at_most, times
from benchmarks.turns import Run, time_interleaved

DEVICES, METRICS, SECONDS = 50, 8, 10
LATE = 0.01
PIECE = 600  # seconds that are published at a time
SHORT = 5  # seconds of delay


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Let microbatches follow each other, with little and with much that is open, in turns."""
    hour, spark = conditions.size(3_600, 30), conditions.spark()
    yield from compared(conditions, None, hour, conditions.size(400, 2), at_most(1.5))
    # It takes a thousand rounds until a large fold has to come: what is written before does not tell.
    [day, _] = compared(conditions, None, conditions.size(24 * 3_600, 60), conditions.size(20, 2), at_most(3))
    yield day
    yield from compared(conditions, spark, hour, conditions.size(40, 2), at_most(1.5))


def compared(
    conditions: Conditions, spark: SparkSession | None, delay: int, rounds: int, aim: Target
) -> Iterator[Measurement]:
    """Compare microbatches of a long delay with those of a short one: their time, and what they write with folds."""
    engine = "embedded" if spark is None else "Spark"
    here = {long: conditions.directory / f"{engine}-{delay}-{long}" for long in (SHORT, delay)}
    for long, place in here.items():
        conditions.tell(f"{engine}, {long:,} s of delay")
        place.mkdir()
        for first in range(0, long, PIECE):
            publish(place, long, first, min(PIECE, long - first), 0)
    with ExitStack() as until:
        runs = {str(long): fleet(until, place, long, spark) for long, place in here.items()}
        for run in runs.values():
            run()  # what is open before

        def arrive(number: int) -> None:
            for long, place in here.items():
                publish(place, long, long + number * SECONDS, SECONDS, LATE)

        before = {long: written(place) for long, place in here.items()}
        taken = time_interleaved(runs, rounds, 2, arrive, conditions.tell)
    sizes = {long: (written(place) - before[long]) / (rounds + 2) / 1e6 for long, place in here.items()}
    name = f"{delay:,} s of delay, {engine}"
    yield times(name, taken[str(delay)], f"{SHORT} s", taken[str(SHORT)], aim)
    own, other = sizes[delay], sizes[SHORT]
    yield Measurement(f"{name}, written", own, "MB", f"{SHORT} s", other, own / other, "memory", at_most(2))


def fleet(until: ExitStack, place: Path, delay: int, spark: SparkSession | None) -> Run:
    """Return what batches all that is new of a fleet."""
    return run_continuously(until, settings(place / "depot", place / "ledger", spark, rules=rules(delay)), spark)


def rules(delay: int) -> dict[str, str]:
    """Return the rules of the fleet, for messages that may be so many seconds late."""
    return {"window": "10s", "max_delay": f"{delay}s", "on_repeat": "keep"}


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
