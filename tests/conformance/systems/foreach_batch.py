"""A MERGE in `foreachBatch`: each microbatch adds its messages to the windows, and closes those whose time is over."""

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.systems import spark

MESSAGE = "array<struct<sequence: bigint, type: string, event_time: timestamp, payload: string>>"
COLUMNS = f"source string, key string, start timestamp, end timestamp, closed boolean, messages {MESSAGE}"


def main() -> None:
    """Write one row for each window; `closed` once the greatest event time of all is 5 s past its end."""
    depot, output, checkpoint = spark.directories()
    session = spark.local_session()
    table = DeltaTable.createIfNotExists(session).location(f"{output}/batches").addColumns(_schema(session)).execute()
    stream = spark.read_messages(session, depot).writeStream
    spark.run_to_end(stream.foreachBatch(lambda rows, _: write(table, rows)), checkpoint)


def write(table: DeltaTable, rows: DataFrame) -> None:
    """Merge one microbatch. Done again it changes nothing, because equal messages are added once."""
    windows = (
        rows.groupBy("source", "key", F.window("event_time", spark.WINDOW).alias("span"))
        .agg(spark.message_set())
        .select("source", "key", "span.start", "span.end", F.lit(False).alias("closed"), "messages")
    )
    (
        table.alias("t")
        .merge(windows.alias("s"), "t.source = s.source AND t.key = s.key AND t.start = s.start")
        .whenMatchedUpdate(set={"messages": "array_union(t.messages, s.messages)"})
        .whenNotMatchedInsertAll()
        .execute()
    )
    latest = table.toDF().agg(F.max(F.array_max("messages.event_time"))).first()[0]
    over = F.col("end") <= F.lit(latest) - F.expr(f"INTERVAL {spark.MAX_DELAY}")
    table.update(~F.col("closed") & over, {"closed": F.lit(True)})


def _schema(session: SparkSession) -> object:
    return session.createDataFrame([], COLUMNS).schema


if __name__ == "__main__":
    main()
