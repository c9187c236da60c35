"""Set settings of a Spark session for one statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

# Spark's default, INT96 nanoseconds, would misread a time outside 1677 to 2262 (in a rejection).
WHOLE_TIMES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}

# Expressions give the same values whatever the session's settings; times without a zone are UTC.
ALIKE = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}

# The rows of a small commit fit into one task, which then writes one file per partition.
ONE_TASK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
}
SMALL_BYTES = 4_000_000
# Generating code in every task takes longer than interpreting a small query.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
FEW_ROWS = 2_000
MAX_ROWS, MAX_BYTES = (f"spark.sql.execution.arrow.max{of}PerBatch" for of in ("Records", "Bytes"))
FEW_AT_ONCE = {MAX_ROWS: "4"}
FEW_BYTES = {MAX_ROWS: "1000000", MAX_BYTES: "16777216"}  # many small rows at a time, if Spark has the setting
NOTE = "spark.databricks.delta.commitInfo.userMetadata"  # user metadata of a commit, shown in the table's history


@contextmanager
def session_with(session: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set session settings for one statement (None unsets one), and restore the previous ones.

    Serverless Spark accepts few settings. The statement runs without those that are refused.
    """
    before: dict[str, str | None] = {}
    for name, value in settings.items():
        # guard: refused-setting-alone
        with suppress(PySparkException):
            known = session.conf.get(name, None)
            if known != value:
                _restore(session, {name: value})
                before[name] = known
    try:
        yield
    finally:
        _restore(session, before)


def has_setting(session: SparkSession, name: str) -> bool:
    """Tell whether this version of Spark has a setting."""
    try:
        session.conf.get(name)
    except PySparkException:
        return False
    return True


def small_batches(session: SparkSession) -> dict[str, str | None]:
    """Return the settings for large rows, such as chunks of up to 256 MiB: 16 MiB at a time, or else a few rows."""
    return {**FEW_BYTES} if has_setting(session, MAX_BYTES) else {**FEW_AT_ONCE}


def _restore(session: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)
