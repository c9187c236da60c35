"""A topology: a million rows combined into ten thousand keys, and one key of a million changed.

The alternative to `combine` is a `foreachBatch` of one's own, which groups the rows and merges the sums into a table
of the same keys. It has no guarantees: a batch that is repeated counts twice. Each round appends the rows in one
version, and both take them. For one key of many, a state of a million keys and one of a thousand get one row in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.conditions import Conditions
from benchmarks.row import Measurement, at_least, at_most, speeds, times
from benchmarks.turns import Run, time_interleaved, timed
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, SparkMicrobatch, Topology, open_topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 2
FEED = {"delta.enableChangeDataFeed": "true"}
MERGED = """
MERGE INTO delta.`{target}` AS t USING sums AS s ON t.number = s.number
WHEN MATCHED THEN UPDATE SET total = t.total + s.total, times = t.times + s.times
WHEN NOT MATCHED THEN INSERT *"""


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Combine many rows into some keys, then one row into many keys."""
    yield from combined(conditions)
    yield from one_of_many(conditions)


def combined(conditions: Conditions) -> Iterator[Measurement]:
    """Measure many rows that are combined into some keys."""
    spark, depot = conditions.spark(), conditions.directory / "rows"
    rows, keys = conditions.size(1_000_000, 2_000), conditions.size(10_000, 50)

    def publish(number: int) -> None:
        append(depot, np.random.default_rng(number).integers(keys, size=rows))

    publish(WARM_UP + conditions.rounds)  # so that there is a table
    with ExitStack() as until:
        runs = {
            "frames": running(until, summing(conditions.directory, "rows", "frames", frames=True), spark),
            "arrow": running(until, summing(conditions.directory, "rows", "arrow"), spark),
            "embedded": running(until, summing(conditions.directory, "rows", "embedded")),
            "by hand": partial(timed, partial(by_hand, spark, depot, conditions.directory)),
        }
        taken = time_interleaved(runs, conditions.rounds, WARM_UP, publish, conditions.tell)
    what, other = f"{rows:,} rows into {keys:,} keys", "foreachBatch, groupBy + MERGE"
    for name, aim in (("frames", at_least(0.5)), ("arrow", at_least(0.5)), ("embedded", None)):
        yield speeds(f"{what}, {name}", taken[name], other, taken["by hand"], aim)


def one_of_many(conditions: Conditions) -> Iterator[Measurement]:
    """Measure one row that changes one of many keys."""
    here, few, many = conditions.directory, conditions.size(1_000, 50), conditions.size(1_000_000, 500)
    depots = {count: here / f"keys-{count}" for count in (few, many)}
    for count, depot in depots.items():
        append(depot, np.arange(count))

    def publish(number: int) -> None:
        for count, depot in depots.items():
            append(depot, np.array([number * 7_919 % count]))

    with ExitStack() as until:
        runs: dict[str, Run] = {}
        for engine, session in (("Spark", conditions.spark()), ("embedded", None)):
            for count, depot in depots.items():
                topology = summing(here, depot.name, f"{engine}-{count}")
                runs[f"{engine} {count}"] = running(until, topology, session)
        taken = time_interleaved(runs, conditions.rounds, WARM_UP, publish, conditions.tell)
    for engine, aim in (("embedded", at_most(1.5)), ("Spark", at_most(1.5))):
        own, other = (taken[f"{engine} {count}"] for count in (many, few))
        yield times(f"one of {many:,} keys, {engine}", own, f"one of {few:,}", other, aim)


def append(depot: Path, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Append a row for each of these keys in one version."""
    rows = pa.table({"number": pa.array(keys, pa.int64()), "amount": pa.array(keys % 97, pa.int64())})
    write_deltalake(depot, rows, mode="append", configuration=FEED)


def summing(here: Path, depot: str, name: str, frames: bool = False) -> Topology:
    """Return a topology that sums and counts by key."""
    topology = Topology(name, depots={"rows": str(here / depot)}, states=str(here / f"states-{name}"))
    topology.state("sums", key="number BIGINT", value="total BIGINT, times BIGINT")

    def sum_frames(microbatch: SparkMicrobatch) -> None:
        microbatch.state("sums").combine(microbatch.rows("rows"), total=("amount", "sum"), times="count")

    def sum_tables(microbatch: Microbatch) -> None:
        microbatch.state("sums").combine(microbatch.rows("rows"), total=("amount", "sum"), times="count")

    topology.function(sum_frames if frames else sum_tables)
    return topology


def running(until: ExitStack, topology: Topology, session: SparkSession | None = None) -> Callable[[], float]:
    """Return a run of a topology that goes on from one microbatch to the next, as that of a job which is up all day."""
    settings = Settings(engine="embedded" if session is None else "spark", max_messages=10_000_000)
    runner = until.enter_context(open_topology(topology, settings, WallClock(), session))
    return partial(timed, runner.once)


def by_hand(spark: SparkSession, depot: Path, here: Path) -> None:
    """Stream the new rows, group them, and merge the sums."""
    target = here / "by-hand"

    def merge(batch: DataFrame, _: int) -> None:
        from pyspark.sql import functions as F

        sums = batch.groupBy("number").agg(F.sum("amount").alias("total"), F.count("*").alias("times"))
        sums.createOrReplaceTempView("sums")
        batch.sparkSession.sql(MERGED.format(target=target))

    if not target.exists():
        spark.sql(f"CREATE TABLE delta.`{target}` (number BIGINT, total BIGINT, times BIGINT) USING delta")
    stream = spark.readStream.format("delta").load(str(depot))
    writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(here / "by-hand-checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
