"""Ten million keys of a topology's state on a cluster whose driver has a heap of 1 GiB.

The cluster is Spark's `local-cluster`: two executors of 1 GiB in processes of their own. A function on frames sums and
counts by key. The keys come in two versions of the depot; then come further versions with one row for each of a
thousand keys, and one with a row for one key in a hundred. At the end each key has to have the sum of its rows.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.scale import checks
from benchmarks.scale.generated import publish
from benchmarks.scale.heap import MASTER
from benchmarks.scale.sessions import session
from benchmarks.scale.telling import ScenarioLog, say
from windrow.settings.settings import Settings
from windrow.topology import SparkMicrobatch, Topology, run_topology

VERSIONS = 2
FEW = 1_000  # keys of a version that changes few


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--keys", type=int, default=10_000_000, help="keys of the state (10,000,000)")
    parser.add_argument("--further", type=int, default=5, help="versions that change a thousand keys (5)")


def run(directory: Path, options: Namespace) -> None:
    """Build the state, change little of it and then more, and check."""
    spark = session(MASTER, "1g", {"spark.executor.memory": "1g"})
    depot, topology = directory / "rows", summing(directory)
    telling = ScenarioLog(spark)
    settings = Settings(engine="spark", max_messages=1, max_driver_messages=FEW // 10)
    steps = [(VERSIONS, number) for number in range(VERSIONS)]
    steps += [(max(1, options.keys // FEW), number) for number in range(options.further)] + [(100, 0)]
    for every, start in steps:
        publish(rows_of(spark, options.keys, every, start), depot)
        telling.begin()
        run_topology(topology, settings, spark=spark, report=telling.committed)
    telling.tell_peaks()
    checks.require_way(telling.paths, "executors")
    require_sums(spark, depot, topology)


def summing(directory: Path) -> Topology:
    """Return a topology that sums and counts the rows of each key on the executors."""
    topology = Topology("sums", depots={"rows": str(directory / "rows")}, states=str(directory / "states"))
    topology.state("sums", key="number BIGINT", value="total BIGINT, times BIGINT")

    @topology.function
    def add(microbatch: SparkMicrobatch) -> None:
        microbatch.state("sums").combine(microbatch.rows("rows"), total=("amount", "sum"), times="count")

    return topology


def rows_of(spark: SparkSession, keys: int, every: int, start: int) -> DataFrame:
    """Return a row for every so manieth key, from `begin` on."""
    return spark.range(start, keys, every).select(F.col("id").alias("number"), amount(F.col("id")).alias("amount"))


def amount(key: Column) -> Column:
    """Return what a row adds to the sum of its key."""
    return key % 97 + 1


def require_sums(spark: SparkSession, depot: Path, topology: Topology) -> None:
    """Require that each key has the sum of its rows and their number."""
    expected = spark.read.format("delta").load(str(depot)).groupBy("number")
    expected = expected.agg(F.sum("amount").alias("total"), F.count("*").alias("times"))
    [view] = topology.views(f"delta.`{topology.location}`").values()
    states = spark.sql(view).select(*expected.columns)
    different = expected.exceptAll(states).count() + states.exceptAll(expected).count()
    say(f"states: {states.count():,} keys, {different:,} different")
    if different:
        raise checks.CheckFailed("keys do not have the sums of their rows")
