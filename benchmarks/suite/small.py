"""Warm microbatches of a thousand messages, next to an append of the rows: how long until they are batched.

Windrow's are runs that go on from one microbatch to the next, as that of a job which is up all day; on Spark each of
their microbatches is a stream that starts and ends, as each append is: it reads the depot as a stream as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks import append
from benchmarks.conditions import Conditions
from benchmarks.microbatches import one_by_one, run_continuously, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, times
from benchmarks.turns import timed


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Publish a thousand messages and let both engines and the append take them, again and again."""
    spark, here = conditions.spark(), conditions.directory
    size = conditions.size(1_000, 100)
    messages = inputs.generated(size * conditions.size(60, 3))
    with ExitStack() as until:
        run = partial(run_continuously, until)
        runs = {
            "Spark": run(settings(here / "depot", here / "spark", spark), spark),
            "Spark, by files": run(settings(here / "depot", here / "files", spark, commit="files"), spark),
            "embedded": run(settings(here / "depot", here / "embedded")),
            "plain append": partial(timed, partial(append.run, spark, here / "depot", here / "append")),
        }
        taken = one_by_one(here / "depot", messages, size, runs, conditions.tell)
    aims = {"Spark": at_most(1.8), "Spark, by files": at_most(1), "embedded": at_most(0.15)}
    for engine, aim in aims.items():
        name = f"microbatch of {size:,}, {engine}"
        yield times(name, taken[engine], "plain append", taken["plain append"], aim)
