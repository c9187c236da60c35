"""The producer: tables against plain appends of them, single messages against a commit for each, and many commits.

A peer appends with `write_deltalake` to a depot made like ours, through a handle that stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.conditions import Conditions
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_least, at_most, speeds
from benchmarks.turns import time_interleaved, timed
from windrow import Producer
from windrow.delta.creation import create_depot
from windrow.model.messages import conform

THREADS = 32


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Send tables, then single messages, then commit again and again."""
    yield tables(conditions)
    yield from messages(conditions)
    yield commits(conditions)


def tables(conditions: Conditions) -> Measurement:
    """Send tables of a hundred thousand messages."""
    rows = conform(inputs.generated(conditions.size(100_000, 100)))
    depot, append = conditions.directory / "tables", appender(conditions.directory / "tables-append")
    with Producer(str(depot), "bench") as producer:
        runs = {
            "send_many": partial(timed, lambda: producer.send_many(rows).result()),
            "write_deltalake": partial(timed, partial(append, rows)),
        }
        taken = time_interleaved(runs, conditions.size(20, 2), 3, tell=conditions.tell)
    name = f"send_many, {rows.num_rows:,} messages"
    return speeds(name, taken["send_many"], "write_deltalake", taken["write_deltalake"], at_least(0.9))


def messages(conditions: Conditions) -> Iterator[Measurement]:
    """Send single messages from one thread and from many, without waiting for each and waiting."""
    each = conditions.size(20_000, 64)
    append = appender(conditions.directory / "messages-append")
    single = conform(inputs.generated(1))
    with (
        Producer(str(conditions.directory / "messages"), "bench") as producer,
        ThreadPoolExecutor(THREADS) as threads,
    ):

        def send(count: int) -> None:
            for _ in range(count):
                producer.send(key="k", type="t", payload="21.5")

        def wait(count: int) -> None:
            for _ in range(count):
                producer.send(key="k", type="t", payload="21.5").result()

        def from_many(work: Callable[[int], None], count: int) -> None:
            list(threads.map(work, [count // THREADS] * THREADS))
            producer.flush()

        waiting = conditions.size(1_600, 64)
        runs = {
            "a commit each": (20, lambda: [append(single) for _ in range(20)]),
            "send, 1 thread": (each, lambda: (send(each), producer.flush())),
            f"send, {THREADS} threads": (each, partial(from_many, send, each)),
            f"send and wait, {THREADS} threads": (waiting, partial(from_many, wait, waiting)),
        }
        taken = time_interleaved(
            {name: partial(timed, run) for name, (_, run) in runs.items()}, conditions.rounds, tell=conditions.tell
        )
    per_thousand = {name: [1_000 * seconds / runs[name][0] for seconds in values] for name, values in taken.items()}
    other = per_thousand.pop("a commit each")
    for name, seconds in per_thousand.items():
        aim = None if "wait" in name else at_least(20)
        yield speeds(f"{name}, a thousand messages", seconds, "a commit each", other, aim)


def commits(conditions: Conditions) -> Measurement:
    """Commit a message at a time: does it stay as fast?"""
    count = conditions.size(2_000, 40)
    with Producer(str(conditions.directory / "commits"), "bench") as producer:
        run = partial(timed, lambda: producer.send(key="k", type="t", payload="21.5").result())
        seconds = time_interleaved({"commit": run}, count, 0, tell=conditions.tell)["commit"]
    first, last = median(seconds[: count // 4]), median(seconds[-count // 4 :])
    return Measurement(
        f"last quarter of {count:,} commits of a message", last, "s", "the first", first, last / first, aim=at_most(1.5)
    )


def appender(depot: Path) -> Callable[[pa.Table], None]:
    """Return what appends to a depot as anybody would."""
    create_depot(str(depot), pa.string())
    table = DeltaTable(str(depot))
    return lambda rows: write_deltalake(table, rows, mode="append")
