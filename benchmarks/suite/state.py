"""Ten thousand and a million open batches of five messages: the driver's memory, and what one message costs.

The state is batched on Spark's executors, in one microbatch. Memory is that of a fresh driver's Python, without the
JVM, in a run of the command `windrow run --once` that brings three thousand messages to three thousand of the batches,
on the executors' way: it should not know how many are open. Then each of the ledgers gets one message in turns, with
the default settings; with the embedded engine on copies of the ledgers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks import ledgers, processes
from benchmarks.conditions import Conditions
from benchmarks.microbatches import run_continuously, settings
from benchmarks.row import Measurement, at_most, times
from benchmarks.turns import time_interleaved

MESSAGES = 3_000
MOST = 1_000  # messages that the driver may process in the run whose memory is measured
WARM_UP = 3


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Build both ledgers, measure the memory, then the time."""
    few, many = conditions.size(10_000, 200), conditions.size(1_000_000, 2_000)
    here, spark = conditions.directory, conditions.spark()
    for count in (few, many):
        conditions.tell(f"{count:,} open batches")
        ledgers.build(spark, here / f"depot-{count}", here / f"Spark-{count}", count)
    yield memory(conditions, few, many)
    yield from time(conditions, few, many)


def memory(conditions: Conditions, few: int, many: int) -> Measurement:
    """Measure the memory of a driver that brings messages to some of the open batches."""
    messages, most = conditions.size(MESSAGES, 100), conditions.size(MOST, 10)
    environment = {
        "WINDROW_MAX_DRIVER_MESSAGES": str(most),
        "WINDROW_IDLE_TIMEOUT": "never",
        "WINDROW_RULES": json.dumps(ledgers.RULES),
    }
    peaks = {}
    for count in (few, many):
        conditions.tell(f"memory with {count:,} open batches")
        depot, ledger = (conditions.directory / f"{kind}-{count}" for kind in ("depot", "Spark"))
        ledgers.touch(depot, 0, messages)
        command = processes.windrow("run", "--once", "--engine", "spark", "--depot", depot, "--ledger", ledger)
        peaks[count] = processes.run(command, environment).own_peak_bytes / 2**30
    return Measurement(
        f"{many:,} open batches: memory of the driver",
        peaks[many],
        "GiB",
        f"{few:,} open batches",
        peaks[few],
        peaks[many] / peaks[few],
        "memory",
        at_most(1.2),
    )


def time(conditions: Conditions, few: int, many: int) -> Iterator[Measurement]:
    """Measure one message to one of the open batches."""
    here, spark = conditions.directory, conditions.spark()
    for count in (few, many):
        shutil.copytree(here / f"Spark-{count}", here / f"embedded-{count}")

    def publish(number: int) -> None:
        for count in (few, many):
            ledgers.touch(here / f"depot-{count}", number + 1)

    with ExitStack() as until:
        runs = {}
        for engine, session in (("Spark", spark), ("embedded", None)):
            for count in (few, many):
                chosen = settings(here / f"depot-{count}", here / f"{engine}-{count}", session, **ledgers.OPEN)
                runs[f"{engine} {count}"] = run_continuously(until, chosen, session)
        taken = time_interleaved(runs, conditions.rounds, WARM_UP, publish, conditions.tell)
    for engine, aim in (("Spark", at_most(1.5)), ("embedded", None)):
        own, other = (taken[f"{engine} {count}"] for count in (many, few))
        yield times(f"one of {many:,} open batches of five, {engine}", own, f"one of {few:,}", other, aim)
