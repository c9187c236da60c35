"""One hot stream, a million streams, half a million open batches: seconds, and the most memory that was held.

The hot stream sends 10,000 messages a second of twenty types for 100 s. Each of the million streams sends five types,
each in a depot version of its own, so every microbatch touches every open batch. Last, a microbatch of one message on a
ledger with half a million open batches, next to the same on one with 500. Seconds of the first two are those of
the command `windrow run --once`, its start included; memory is that of a command as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession

from benchmarks import processes, streams
from benchmarks.conditions import Conditions
from benchmarks.microbatches import ours, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, memory, times
from benchmarks.turns import time_interleaved

GRACE = "1h"  # no tick may close what is to stay open while others have their turn


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Measure the three, the last one on both engines."""
    yield from hot(conditions)
    yield from wide(conditions)
    yield from touched(conditions)


def hot(conditions: Conditions) -> Iterator[Measurement]:
    """Measure one stream with all the messages."""
    seconds = conditions.size(100, 1)
    depot = conditions.directory / "hot"
    inputs.write(depot, streams.one_stream(10_000 * seconds, 10_000, 20), 1)
    yield from command(conditions, "one stream, 10,000 a second", "hot")


def wide(conditions: Conditions) -> Iterator[Measurement]:
    """Measure many streams with five messages each."""
    keys = conditions.size(1_000_000, 1_000)
    for kind in range(5):
        inputs.write(conditions.directory / "wide", streams.many_streams(keys, kind, kind * streams.SECOND), 1)
    yield from command(conditions, f"{keys:,} streams of five", "wide")


def command(conditions: Conditions, name: str, depot: str) -> Iterator[Measurement]:
    """Measure a run of the command on the embedded engine."""
    conditions.tell(name)
    finished = once(conditions, depot, f"{depot}-embedded", "embedded")
    yield Measurement(f"{name}, embedded", finished.seconds, "s")
    yield memory(f"{name}, embedded: memory", finished.peak_bytes)


def once(conditions: Conditions, depot: str, ledger: str, engine: str) -> processes.Finished:
    """Run the command that batches what is new."""
    places = ("--depot", conditions.directory / depot, "--ledger", conditions.directory / ledger)
    run_command = processes.windrow("run", "--once", "--engine", engine, *places)
    return processes.run(run_command, {"WINDROW_IDLE_TIMEOUT": GRACE})


def touched(conditions: Conditions) -> Iterator[Measurement]:
    """Measure a message for one of many open batches, and for one of few."""
    many, few = conditions.size(500_000, 2_000), conditions.size(500, 5)
    spark = conditions.spark()
    engines: dict[str, SparkSession | None] = {"embedded": None, "Spark": spark}
    here = conditions.directory
    for count in (many, few):
        inputs.write(here / str(count), streams.many_streams(count, 0), 1)
    runs = {}
    for engine, session in engines.items():
        for count in (many, few):
            chosen = settings(here / str(count), here / f"{engine}-{count}", session, idle_timeout=GRACE)
            runs[f"{engine} {count}"] = ours(chosen, session)

    def touch(number: int) -> None:
        if number:
            for count in (many, few):
                inputs.write(here / str(count), streams.many_streams(1, number, number * 1_000), 1)

    # The first round opens the batches.
    taken = time_interleaved(runs, conditions.rounds, 3, touch, conditions.tell)
    for engine in engines:
        own, other = (taken[f"{engine} {count}"] for count in (many, few))
        aim = at_most(1.5) if engine == "Spark" else None
        yield times(f"one of {many:,} open batches, {engine}", own, f"one of {few:,} open batches", other, aim)
    touch(conditions.rounds + 3)
    for engine in engines:
        conditions.tell(f"one of {many:,} open batches, {engine}: memory")
        finished = once(conditions, str(many), f"{engine}-{many}", engine.lower())
        yield memory(f"one of {many:,} open batches, {engine}: memory", finished.peak_bytes)
