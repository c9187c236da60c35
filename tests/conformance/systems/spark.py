"""What the writers on Spark share: a session, the stream of messages, and an append to a Delta table."""

from __future__ import annotations

import os
import sys

from delta import configure_spark_with_delta_pip
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

WINDOW, MAX_DELAY = "10 seconds", "5 seconds"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than these queries
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def directories() -> tuple[str, str, str]:
    """Return depot, output and checkpoint as the command line gives them."""
    depot, output, checkpoint = sys.argv[1:]
    return depot, output, checkpoint


def local_session() -> SparkSession:
    """Start a local session with Delta."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return configure_spark_with_delta_pip(builder).getOrCreate()


def read_messages(spark: SparkSession, depot: str) -> DataFrame:
    """Return the messages as a stream, one version of the depot in each microbatch."""
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(depot)


def message_set() -> Column:
    """Return the messages of a group; equal ones, which were sent twice, once."""
    return F.collect_set(F.struct("sequence", "type", "event_time", "payload")).alias("messages")


def run_to_end(stream: DataStreamWriter, checkpoint: str) -> None:
    """Run a query until the input is consumed."""
    stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
