"""The least that a stream on Spark can do with what is new in a depot: append the rows to another Delta table."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

MESSAGE = ("source", "key", "type", "event_time", "received_at", "payload")


def run(spark: SparkSession, depot: Path, into: Path) -> None:
    """Append what is new in the depot and stop; Spark's checkpoint says what is."""

    def append(rows: DataFrame, number: int) -> None:
        rows.select(*MESSAGE).write.format("delta").mode("append").save(str(into / "rows"))

    feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    query = feed.load(str(depot)).writeStream.foreachBatch(append)
    query = query.option("checkpointLocation", str(into / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
