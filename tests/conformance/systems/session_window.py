"""Spark's session windows with a watermark, appended to a Delta table."""

from pyspark.sql import functions as F

from tests.conformance.systems import spark


def main() -> None:
    """Write one row for each session, once the watermark has passed its end; a pause of 10 s ends a session."""
    depot, output, checkpoint = spark.directories()
    sessions = (
        spark.read_messages(spark.local_session(), depot)
        .withWatermark("event_time", spark.MAX_DELAY)
        .groupBy("source", "key", F.session_window("event_time", spark.WINDOW).alias("span"))
        .agg(spark.message_set())
        .select("source", "key", "span.start", "span.end", "messages")
    )
    spark.run_to_end(sessions.writeStream.format("delta").option("path", f"{output}/batches"), checkpoint)


if __name__ == "__main__":
    main()
