"""Depots that Spark makes itself from numbers, so that nothing of them is held in memory.

`sequence` is another one in each message of a depot, so that each can be found in the ledger (`accounts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.inputs import START

SECOND = 1_000_000
TYPES = 10
KEYS_OF_A_SOURCE = 10
GATEWAYS = 1_000
IN_TIME = 50_000  # microseconds from measuring to arrival
AGAIN = 150_000  # to the arrival of a second copy
LATEST = 9 * SECOND
HASHED = 10_000
WITHOUT_KEY, LATE, RESENT = range(7, 8), range(100, 300), range(5_000, 5_100)  # of what is hashed to


@dataclass(frozen=True, slots=True)
class Fleet:
    """Devices that measure something each second, one type after the other, ten of them behind each gateway.

    Two messages in a hundred arrive one to nine seconds late, one in a hundred arrives twice, one in ten thousand has
    no key. `messages` counts what is measured, not copies.
    """

    messages: int
    versions: int

    @property
    def keys(self) -> int:
        """Return how many devices there are."""
        return max(100, min(100_000, self.messages // 1_000))

    @property
    def sources(self) -> list[str]:
        """Return the names of the gateways."""
        return [f"gateway-{number}" for number in range(-(-self.keys // KEYS_OF_A_SOURCE))]

    def version(self, spark: SparkSession, version: int) -> DataFrame:
        """Return what arrives in one version of the depot."""
        start, end = (self.messages * number // self.versions for number in (version, version + 1))
        earlier = self.keys * (1 + LATEST // SECOND)  # so many before may arrive now
        rows = self._arriving(spark.range(max(0, start - earlier), end))
        if version:
            rows = rows.where(F.col("arrival") >= self._measured(start))
        if version + 1 < self.versions:
            rows = rows.where(F.col("arrival") < self._measured(end))
        return rows.drop("arrival")

    def _measured(self, number: int) -> int:
        return START + number * SECOND // self.keys

    def _arriving(self, numbers: DataFrame) -> DataFrame:
        """Return messages, those that arrive twice as two."""
        number, chance = F.col("id"), F.pmod(F.xxhash64("id"), F.lit(HASHED))
        more = F.pmod(F.xxhash64("id", F.lit(1)), F.lit(8 * SECOND))
        device = F.pmod(number, F.lit(self.keys))
        measured = F.lit(START) + F.expr(f"id * {SECOND} div {self.keys}")
        arrival = measured + F.when(_within(chance, LATE), SECOND + more).otherwise(IN_TIME)
        copies = F.sequence(F.lit(0), F.when(_within(chance, RESENT), 1).otherwise(0))
        measurements = numbers.select(
            _named("gateway", F.floor(device / KEYS_OF_A_SOURCE)).alias("source"),
            F.when(~_within(chance, WITHOUT_KEY), _named("device", device)).alias("key"),
            _named("measurement", F.pmod(F.expr(f"id div {self.keys}"), F.lit(TYPES))).alias("type"),
            F.timestamp_micros(measured).alias("event_time"),
            arrival.alias("arrival"),
            (2 * number).alias("sequence"),
            F.when(F.pmod(chance, F.lit(3)) > 0, _named("value", chance)).alias("payload"),
            F.explode(copies).alias("copy"),
        )
        arrived = measurements.withColumn("arrival", F.col("arrival") + AGAIN * F.col("copy"))
        arrived = arrived.withColumn("sequence", F.col("sequence") + F.col("copy").cast("long"))
        return arrived.withColumn("received_at", F.timestamp_micros("arrival")).drop("copy")


def wide(spark: SparkSession, keys: int, kind: int, share: int = 1) -> DataFrame:
    """Return one message of each key, or of one key in `share`, of one type, within the second of that number."""
    rows = spark.range(keys)
    if share > 1:
        rows = rows.where(F.pmod(F.xxhash64("id", F.lit(kind)), F.lit(share)) == 0)
    time = F.timestamp_micros(F.lit(START + kind * SECOND) + F.expr(f"id * {SECOND} div {keys}"))
    return rows.select(
        _named("gateway", F.pmod(F.col("id"), F.lit(GATEWAYS))).alias("source"),
        _named("device", F.col("id")).alias("key"),
        F.lit(f"measurement-{kind}").alias("type"),
        time.alias("event_time"),
        time.alias("received_at"),
        (F.lit(kind * keys) + F.col("id")).alias("sequence"),
        _named("value", F.pmod(F.xxhash64("id", F.lit(kind)), F.lit(100_000))).alias("payload"),
    )


def publish(rows: DataFrame, depot: Path) -> None:
    """Append a version to a depot, which is made with the first one."""
    writer = rows.write.format("delta").mode("append").option("delta.enableChangeDataFeed", "true")
    writer.save(str(depot))


def _named(kind: str, number: Column) -> Column:
    return F.concat(F.lit(f"{kind}-"), number.cast("string"))


def _within(chance: Column, part: range) -> Column:
    return (chance >= part.start) & (chance < part.stop)
