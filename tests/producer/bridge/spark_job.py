"""Run the Python of a page with a Spark session that has Kafka's source: `python -m ... FILE`."""

import sys
from pathlib import Path

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from windrow.engine.spark.session import SETTINGS

PACKAGES = [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"]


def main(file: str) -> None:
    """Run a file."""
    builder = SparkSession.builder.master("local[2]").appName("windrow-kafka")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = configure_spark_with_delta_pip(builder, PACKAGES).getOrCreate()
    try:
        exec(Path(file).read_text(encoding="utf-8"), {"spark": spark})  # noqa: S102 - our own page
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
