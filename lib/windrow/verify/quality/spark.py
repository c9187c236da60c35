"""The rows of a ledger on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.delta.locations import reference
from windrow.errors import IncompatibleTableError, TableMissingError
from windrow.model.payload import of_column
from windrow.model.tables import spark_rows_that_count
from windrow.reading.tables import LEDGER_COLUMNS, SCHEMA_VERSIONS, require_known_schema
from windrow.verify.invariants import views
from windrow.verify.quality.great_expectations import SITE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windrow.verify.quality.embedded import EmbeddedRows

OVER = views("{batch}")  # where Great Expectations puts the ledger


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows of a ledger as a Spark DataFrame."""

    frame: DataFrame

    @property
    def views(self) -> Mapping[str, str]:
        """Return the views as subqueries over the ledger."""
        from pyspark.sql.pandas.types import to_arrow_type

        payload = to_arrow_type(self.frame.schema["payload"].dataType)
        return views("{batch}", of_column(pa.schema([("payload", payload)])))

    def ask(self, statement: str) -> pa.Table:
        """Return the answer to a statement, in which `{batch}` is the ledger."""
        return self.frame.sparkSession.sql(statement, batch=self.frame).toArrow()

    def batch(self, context: Any, name: str) -> tuple[Any, DataFrame]:
        """Return a batch definition for Spark, and the frame."""
        source = context.data_sources.add_or_update_spark(f"{SITE}_spark", persist=False)
        return source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("ledger"), self.frame


@contextmanager
def spark_rows(spark: SparkSession, ledger: str) -> Iterator[tuple[int, SparkRows, EmbeddedRows | None]]:
    """Yield the latest version of a ledger and the rows of that version.

    They are on the executors' disks for all queries. If Spark cannot keep them there, as on serverless compute, each
    query reads them again; so they are also yielded without their messages, in DuckDB.
    """
    from windrow.rows.frame import PersistedFrame
    from windrow.verify.quality.collected import collected_rows

    version, frame = _pinned(spark, ledger)
    persisted = PersistedFrame()
    try:
        rows = SparkRows(persisted.keep(frame))
        with nullcontext() if persisted.is_kept else collected_rows(frame) as collected:
            yield version, rows, collected
    finally:
        persisted.release()


def _pinned(spark: SparkSession, ledger: str) -> tuple[int, DataFrame]:
    from pyspark.errors import AnalysisException

    table = reference(ledger)
    try:
        version = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").select("version").collect()[0][0]
        at = f"{table} VERSION AS OF {version:d}"
        columns = spark.sql(f"SELECT * FROM {at}").columns
    except AnalysisException as error:
        raise TableMissingError(
            f"there is no ledger at {ledger}", "Give its path, or its name in a catalog."
        ) from error
    if not set(columns) >= LEDGER_COLUMNS:
        raise IncompatibleTableError(f"{ledger} is a Delta table, but not a ledger", "Give the path of a ledger.")
    require_known_schema(spark.sql(SCHEMA_VERSIONS.format(ledger=at)).toArrow())
    return int(version), spark.sql(spark_rows_that_count(at, columns))
