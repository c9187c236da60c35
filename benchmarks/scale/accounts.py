"""The books of a depot and its ledger by Spark SQL alone: each message is in one batch, or in one rejection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

MESSAGE = ("source", "key", "type", "event_time", "received_at", "payload")
ROWS_OF_A_PARTITION = 2_000_000
PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class Accounts:
    """How many messages the depot has, and of how many the ledger tells something else.

    `lost` stand nowhere, `twice` more than once, `unexpected` are not in the depot, `different` are not as it has them.
    """

    messages: int
    lost: int
    twice: int
    unexpected: int
    different: int

    @property
    def balanced(self) -> bool:
        """Tell whether all stand where they should."""
        return self.messages > 0 and not (self.lost or self.twice or self.unexpected or self.different)


def accounts(spark: SparkSession, depot: Path, ledger: Path) -> Accounts:
    """Compare all messages, which their `sequence` tells apart."""
    sent = _told(spark.read.format("delta").load(str(depot)), in_depot=1)
    both = sent.unionByName(_told(held(spark, ledger), in_depot=0))
    with shuffled(spark, max(2, spark.read.format("delta").load(str(depot)).count() // ROWS_OF_A_PARTITION)):
        each = both.groupBy("sequence").agg(
            F.sum("in_depot").alias("depot"),
            F.sum(1 - F.col("in_depot")).alias("ledger"),
            F.bit_xor("content").alias("content"),  # 0 where both say the same
        )
        once = (F.col("depot") == 1) & (F.col("ledger") == 1)
        totals = each.agg(
            F.sum("depot").alias("messages"),
            F.count_if(F.col("ledger") < F.col("depot")).alias("lost"),
            F.count_if((F.col("ledger") > F.col("depot")) & (F.col("depot") > 0)).alias("twice"),
            F.count_if(F.col("depot") == 0).alias("unexpected"),
            F.count_if(once & (F.col("content") != 0)).alias("different"),
        )
        return Accounts(**totals.collect()[0].asDict())


def held(spark: SparkSession, ledger: Path) -> DataFrame:
    """Return each message that the ledger holds in a batch or a rejection, as often as it does."""
    rows = spark.read.format("delta").load(str(ledger))
    batches = rows.where("state IN ('open', 'closed')").select("source", "key", F.explode("messages").alias("message"))
    rejected = rows.where("state = 'rejected'").select(*MESSAGE, "sequence")
    return batches.select("source", "key", "message.*").select(*MESSAGE, "sequence").unionByName(rejected)


@contextmanager
def shuffled(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Let shuffles have so many partitions."""
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, str(partitions))
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, str(before))


def _told(rows: DataFrame, in_depot: int) -> DataFrame:
    return rows.select("sequence", F.xxhash64(*MESSAGE).alias("content"), F.lit(in_depot).alias("in_depot"))
