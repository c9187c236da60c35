"""Set settings of a Spark session for one statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

# Spark's default is INT96 nanoseconds, in which a time outside 1677 to 2262 (in a rejection) would be read wrong.
WHOLE_TIMES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


# The rows of a small commit fit into one task, which then writes one file per partition.
ONE_TASK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
}
SMALL_BYTES = 4_000_000
SOME_FILES = 20  # that one task writes again
# Generating code in every task takes longer than interpreting a small query; but a MERGE takes 0.1 ms or more for a row
# then, so it must have few rows, and write few others of their files again.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
FEW_ROWS = 2_000
FEW_FILES = 2
# Where deletion vectors are on, a MERGE would write them: more jobs for it, and more files for each later reader.
WHOLE_FILES = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
NOTE = "spark.databricks.delta.commitInfo.userMetadata"  # user metadata of a commit, shown in the table's history


@contextmanager
def configured(session: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set session settings for one statement (None unsets one), and restore the previous ones.

    Serverless takes no settings, so there the statement runs without them.
    """
    before: dict[str, str | None] = {}
    try:
        for name, value in settings.items():
            before[name] = session.conf.get(name, None)
            _restore(session, {name: value})
    except PySparkException:
        _restore(session, dict(list(before.items())[:-1]))
        before = {}
    try:
        yield
    finally:
        _restore(session, before)


def knows(session: SparkSession, name: str) -> bool:
    """Tell whether this version of Spark has a setting."""
    try:
        session.conf.get(name)
    except PySparkException:
        return False
    return True


def takes(session: SparkSession, settings: dict[str, str]) -> bool:
    """Tell whether a session accepts these settings."""
    with configured(session, settings):
        return all(session.conf.get(name, None) == value for name, value in settings.items())


def _restore(session: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)
