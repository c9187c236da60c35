"""A backlog in one microbatch, next to an append of the rows and to windows and state of Spark.

A million messages in four depot versions, each time into new tables. The append is the least that a stream can do, so
it says what of the time is Spark's and Delta's; windows and state batch, as docs/comparison.md tells. Windrow on Spark
runs four times: as it comes, where the driver processes a million messages, and with every message on the executors,
each with `commit = "merge"` and with `commit = "files"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import append
from benchmarks.conditions import Conditions
from benchmarks.microbatches import ours, settings
from benchmarks.peers import inputs, stateful, tumbling_windows, windrow_itself
from benchmarks.row import Measurement, at_least, speeds
from benchmarks.turns import run_in_fresh_directory, time_interleaved

ALL = 1_000_000


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Measure both engines against three streams of Spark."""
    spark, depot, out = conditions.spark(), conditions.directory / "depot", conditions.directory / "out"
    inputs.write(depot, inputs.generated(conditions.size(ALL, 2_000)), 4)
    files = partial(settings, spark=spark, commit="files")
    executors = partial(settings, spark=spark, max_driver_messages=0)
    runs = {
        "Spark": lambda into: windrow_itself.run(spark, depot, into, ALL),
        "Spark's executors": lambda into: ours(executors(depot, into / "ledger"), spark)(),
        "Spark, by files": lambda into: ours(files(depot, into / "ledger"), spark)(),
        "Spark's executors, by files": lambda into: ours(executors(depot, into / "ledger", commit="files"), spark)(),
        "embedded": lambda into: windrow_itself.run(None, depot, into, ALL),
        "plain append": lambda into: append.run(spark, depot, into),
        "transformWithStateInPandas": lambda into: stateful.run(spark, depot, into, ALL),
        "window, collect_list": lambda into: tumbling_windows.run(spark, depot, into, ALL),
    }
    taken = time_interleaved(
        {name: partial(run_in_fresh_directory, run, out) for name, run in runs.items()},
        conditions.rounds,
        conditions.size(4, 1),
        tell=conditions.tell,
    )
    for own, other, aim in (
        ("Spark", "plain append", at_least(0.6)),
        ("Spark's executors", "plain append", at_least(0.5)),
        ("Spark, by files", "plain append", at_least(0.8)),
        ("Spark's executors, by files", "plain append", at_least(0.8)),
        ("embedded", "plain append", at_least(1)),
        ("Spark", "transformWithStateInPandas", at_least(3.5)),
        ("Spark", "window, collect_list", at_least(1.2)),
        ("Spark's executors", "window, collect_list", at_least(0.75)),
        ("Spark's executors, by files", "window, collect_list", at_least(1.8)),
    ):
        yield speeds(f"backlog, {own}", taken[own], other, taken[other], aim)
