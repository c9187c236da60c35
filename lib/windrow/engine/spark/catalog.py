"""Create tables with Spark SQL, in a catalog or on storage that only Spark can reach, and the views over a ledger.

A table is created with its first rows in one commit (`CREATE TABLE ... AS SELECT`), so a ledger always has its progress
row. A second process that wants to create the table finds it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.delta.locations import is_name, parts, quoted, reference
from windrow.delta.store_errors import cause_of
from windrow.delta.table import unwritable
from windrow.engine.spark.frames import frame_of
from windrow.engine.spark.log import detail
from windrow.errors import TableMissing, TableRefused, first_line
from windrow.model import tables

FIRST = "windrow_first_rows"


def create_table(
    session: SparkSession, location: str, rows: pa.Table, properties: Mapping[str, str], comment: str, by: str = ""
) -> None:
    """Create a table with its first rows unless it exists. Raises TableMissing if its schema does not exist."""
    frame_of(session, rows).createOrReplaceTempView(FIRST)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    try:
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {reference(location)} USING DELTA {by and f'PARTITIONED BY ({by})'} "
            f"COMMENT '{comment}' TBLPROPERTIES ({listed}) AS SELECT * FROM {FIRST}"
        )
    except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
        if cause_of(error, location) is not None:
            raise unwritable(location, "table", error) from error
        if isinstance(error, PySparkException) and error.getCondition() == "SCHEMA_NOT_FOUND":
            schema = quoted(*parts(location)[:-1])
            raise TableMissing(f"there is no schema {schema}", f"CREATE SCHEMA {schema}, or name another.") from error
        if detail(session, reference(location)) is None:  # otherwise another process was faster
            raise
    finally:
        session.catalog.dropTempView(FIRST)


Views = Callable[[str], Mapping[str, str]]  # the query of each view by name, over a reference


def create_views(
    session: SparkSession, ledger: str, schema: str = "", views_of: Views | None = None, missing: bool = False
) -> list[str]:
    """Create or update the views over a catalog ledger (or create only the `missing` ones), and return their names.

    They are created in `schema`, by default that of the ledger; `views_of` gives the views of a topology. Raises
    TableRefused if another table or view has one of the names.
    """
    require_free(session, ledger, schema, views_of)
    raw = tables.is_over_raw(session.table(reference(ledger)).columns)
    views = _views(ledger, schema, views_of or partial(tables.views, raw=raw))
    for name, select in views.items():
        exists = _comment(session, name) is not None
        if missing and exists:
            continue
        text = _mark(ledger).replace("\\", "\\\\").replace("'", "\\'")
        try:
            # not every catalog can replace a view
            create = "CREATE OR REPLACE VIEW" if exists else "CREATE VIEW IF NOT EXISTS"
            session.sql(f"{create} {name} COMMENT '{text}' AS {select}")
        except PySparkException as error:
            raise TableRefused(
                f"the view {name} cannot be created: {first_line(error)}", "Fix this, then run `windrow init` again."
            ) from error
    return list(views)


def require_free(session: SparkSession, ledger: str, schema: str = "", views_of: Views | None = None) -> None:
    """Raise TableRefused if another table or view has the name of one of the views. A ledger by path has no views."""
    if not is_name(ledger):
        return
    for name in _views(ledger, schema, views_of or tables.views):
        if _comment(session, name) not in (None, _mark(ledger)):
            raise TableRefused(
                f"{name} exists, but is not a view over the ledger {ledger}",
                "Give this ledger's views a separate schema: views = 'some_schema' in windrow.toml.",
            )


def _views(ledger: str, schema: str, views_of: Views) -> dict[str, str]:
    home = parts(schema) if schema else parts(ledger)[:-1]
    return {quoted(*home, name): select for name, select in views_of(reference(ledger)).items()}


def add_columns(session: SparkSession, location: str, columns: pa.Schema) -> None:
    """Add columns to a table; they are NULL in all existing rows."""
    listed = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in from_arrow_schema(columns))
    session.sql(f"ALTER TABLE {reference(location)} ADD COLUMNS ({listed})")


def _mark(ledger: str) -> str:
    return f"Windrow view over {reference(ledger)}"


def _comment(session: SparkSession, name: str) -> str | None:
    """Return the comment of a table or view, None if it does not exist."""
    try:
        described = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except AnalysisException as error:
        if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
            return None
        raise
    return next((row["data_type"] for row in described if row["col_name"] == "Comment"), "")
