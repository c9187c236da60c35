"""Spark's tumbling windows: a batch is what one key measured in ten seconds of the calendar."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

MESSAGE = ("type", "event_time", "received_at", "payload")


def batched(messages: DataFrame, window: str, delay: str) -> DataFrame:
    """Return one row a window, once the watermark has passed its end."""
    return (
        messages.withWatermark("event_time", delay)
        .groupBy("source", "key", F.window("event_time", window).alias("span"))
        .agg(F.collect_list(F.struct(*MESSAGE)).alias("messages"))
        .select("source", "key", "span.start", "span.end", F.size("messages").alias("message_count"), "messages")
    )


def run(spark: SparkSession, depot: Path, into: Path, files_at_once: int) -> list[dict]:
    """Batch what is new in the depot and stop; return the progress of each microbatch."""
    messages = spark.readStream.format("delta").option("maxFilesPerTrigger", files_at_once).load(str(depot))
    query = batched(messages, "10 seconds", "5 seconds").writeStream.format("delta").outputMode("append")
    query = query.option("checkpointLocation", str(into / "checkpoint")).trigger(availableNow=True)
    started = query.start(str(into / "batches"))
    started.awaitTermination()
    return [dict(row) for row in started.recentProgress]
