"""The rows of a ledger on Spark.

Where Spark cannot cache rows, such as on serverless compute, three queries load them into DuckDB without their
messages. The first query reads each row once, and computes figures about its messages. The others load the messages
that may be repeated. So all rows pass through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.columnar.arrow import to_plain_types
from windrow.delta.database import database
from windrow.delta.locations import reference
from windrow.delta.query import identifier
from windrow.errors import IncompatibleTableError, TableMissingError
from windrow.model import tables
from windrow.model.payload import of_column
from windrow.reading.tables import LEDGER_COLUMNS, SCHEMA_VERSIONS, require_known_schema
from windrow.verify.invariants import views
from windrow.verify.invariants.relations import INSIDE, MESSAGES, TYPES, figures
from windrow.verify.quality.embedded import LONG, STATES, EmbeddedRows, create_views, table_columns
from windrow.verify.quality.great_expectations import SITE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OVER = views("{batch}")  # Great Expectations puts the ledger here
EACH = MESSAGES.format(ledger="{batch}")
# Messages that are in batches several times, or in a batch and among the duplicates.
AGAIN = f"""
SELECT source, key, type, event_time, count(batch) AS times, min(batch) AS first_batch, max(batch) AS last_batch
FROM (
    SELECT batch, source, key, type, event_time FROM ({EACH})
    UNION ALL
    SELECT NULL, source, key, type, event_time FROM {{batch}} WHERE state = 'rejected' AND reason = 'duplicate'
) GROUP BY source, key, type, event_time HAVING count(*) > 1 AND count(batch) > 0
"""
OF_AGAIN = """
CREATE TABLE messages AS SELECT CASE WHEN place = 0 THEN first_batch ELSE last_batch END AS batch,
    source, key, type, event_time
FROM (SELECT *, unnest(range(times)) AS place FROM again)
"""


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows of a ledger as a Spark DataFrame."""

    frame: DataFrame

    @property
    def views(self) -> Mapping[str, str]:
        """Return the views as subqueries over the ledger."""
        from windrow.rows.frame import schema_of

        return views("{batch}", of_column(schema_of(self.frame)))

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

    The rows stay on the executors' disks for all queries. If Spark cannot keep them there, as on serverless compute,
    each query would read them again, so they are also yielded in DuckDB, without their messages.
    """
    from windrow.rows.frame import PersistedFrame

    version, frame = _pin_version(spark, ledger)
    persisted = PersistedFrame()
    try:
        rows = SparkRows(persisted.keep(frame))
        with nullcontext() if persisted.is_kept else _collected_rows(frame) as collected:
            yield version, rows, collected
    finally:
        persisted.release()


def _pin_version(spark: SparkSession, ledger: str) -> tuple[int, DataFrame]:
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
    return int(version), spark.sql(tables.spark_rows_that_count(at, columns))


@contextmanager
def _collected_rows(frame: DataFrame) -> Iterator[EmbeddedRows]:
    """Yield the rows of a ledger that a frame reads, without their messages, in DuckDB."""
    from windrow.rows.frame import schema_of

    columns = [name for name in frame.columns if name not in LONG]
    queries = {
        "collected": frame.selectExpr(*(f"`{name}`" for name in columns), *figures(of_column(schema_of(frame)))),
        "again": frame.sparkSession.sql(AGAIN, batch=frame),
        "types": frame.sparkSession.sql(f"{TYPES.format(messages=f'({EACH})')} HAVING count(*) > 1", batch=frame),
    }
    with database() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, query in queries.items():
            connection.register("answer", to_plain_types(query.toArrow()))
            connection.execute(f"CREATE TABLE {name} AS FROM answer")
            connection.unregister("answer")
        for name, states in STATES.items():
            chosen = ", ".join(map(identifier, table_columns(columns, name, tables.reads_raw_depot(columns))))
            listed = ", ".join(f"'{state}'" for state in states)
            connection.execute(f"CREATE VIEW {name} AS SELECT {chosen} FROM collected WHERE state IN ({listed})")
        rows = "(FROM collected WHERE state IN ('open', 'closed'))"
        connection.execute(f"CREATE TABLE inside AS {INSIDE.format(rows=rows)}")
        connection.execute(OF_AGAIN)
        create_views(connection)
        yield EmbeddedRows(connection)
