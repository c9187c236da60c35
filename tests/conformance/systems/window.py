"""Spark's tumbling windows with a watermark, appended to a Delta table."""

from pyspark.sql import functions as F

from tests.conformance.systems import spark


def main() -> None:
    """Write one row for each window, once the watermark has passed its end."""
    depot, output, checkpoint = spark.directories()
    windows = (
        spark.read_messages(spark.local_session(), depot)
        .withWatermark("event_time", spark.MAX_DELAY)
        .groupBy("source", "key", F.window("event_time", spark.WINDOW).alias("span"))
        .agg(spark.message_set())
        .select("source", "key", "span.start", "span.end", "messages")
    )
    spark.run_to_end(windows.writeStream.format("delta").option("path", f"{output}/batches"), checkpoint)


if __name__ == "__main__":
    main()
