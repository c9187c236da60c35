"""Locate, create and maintain the two tables of the Spark engine and the views over them, and read their logs.

A table is created with its first rows in one commit (`CREATE TABLE ... AS SELECT`), so a ledger always has its progress
row. A second process that wants to create the table finds it there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.delta import creation
from windrow.delta.locations import for_spark, is_catalog_name, local_path, parts, quoted, reference
from windrow.delta.lock import commit_lock
from windrow.delta.log import DeltaRsLog, Log
from windrow.delta.maintenance import DeltaRsMaintenance, TableMaintenance
from windrow.delta.store_errors import cause_of
from windrow.delta.table import is_managed, missing, unwritable
from windrow.engine.protocol import Engine, SideFiles, Views
from windrow.engine.side_files import DIRECTORY, LocalSideFiles, StoredSideFiles
from windrow.engine.spark.journal import SparkJournal
from windrow.engine.spark.log import SparkLog, detail
from windrow.engine.spark.maintenance import SparkMaintenance
from windrow.engine.spark.session import bare_is_local, find_session
from windrow.engine.spark.stores import require_exclusion
from windrow.errors import TableMissing, TableRefused, first_line
from windrow.ledger.live import Live
from windrow.model import tables
from windrow.rows.frame import frame_of
from windrow.rows.session_settings import NOTE, configured
from windrow.settings.settings import Settings
from windrow.source.depot_rows import StateChanges

FIRST = "windrow_first_rows"
ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"  # there a path without a scheme is not on the local disk


class SparkTables(Engine):
    """Depot and ledger, by paths or catalog names."""

    def __init__(
        self,
        settings: Settings,
        session: SparkSession | None = None,
        rows: bool | StateChanges = False,
        views: Views | None = None,
    ) -> None:
        """Use `session`, or the one of the platform, or start a local one.

        With `rows`, a depot without messages is read as its rows, or as what changed in a state; `views` gives the
        views of a topology.
        """
        if session is None:
            session = find_session(settings.depot, settings.ledger)
        self._root = self._session = session
        self.remote = type(session).__module__.startswith("pyspark.sql.connect")
        super().__init__(settings, rows)
        self._views = views
        self._depot, self._ledger = for_spark(settings.depot), for_spark(settings.ledger)
        self._paths: dict[str, Path | None] = {}
        self._places: dict[str, str] = {}  # of catalog tables
        self._logs: dict[str, SparkLog] = {}
        self._known: tuple[tuple[int, str | None], Live] | None = None  # live rows, and the commit that left them
        self._by_files = False  # how the depot is streamed

    def __getstate__(self) -> dict[str, Any]:
        """Drop the sessions: in another process the batch brings its session."""
        return self.__dict__ | {"_root": None, "_session": None, "_known": None, "_logs": {}}

    @property
    def session(self) -> SparkSession:
        """Return the session on which streams start."""
        return self._root

    @property
    def session_at_work(self) -> SparkSession:
        """Return the session of the current batch, or the one on which streams start."""
        return self._session

    def create_depot(self, payload: pa.DataType | None, keep: str) -> None:
        """Create an empty depot unless it exists."""
        columns, comment = creation.depot_columns(self._created_type(payload))
        self._create(self._depot, columns.empty_table(), keep, comment)
        if (table := self._log(self._depot).table()) is not None:
            creation.require_kind(table.schema, self._settings.depot, raw=payload is None)

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, and the views over it, unless it exists."""
        self._require_free()
        self._create(self._ledger, first, keep, tables.LEDGER_COMMENT, by=", ".join(tables.PARTITIONS))
        self.create_views()

    def create_views(self, missing: bool = False) -> list[str]:
        """Create or update the views over a catalog ledger, or create only the `missing` ones; return the names.

        They are created in the schema of the setting `views`, by default that of the ledger; a path has none. Raises
        TableRefused if another table or view has one of the names.
        """
        if not is_catalog_name(self._ledger):
            return []
        self._require_free()
        raw = tables.is_over_raw(self._session.table(reference(self._ledger)).columns)
        views = self._views_of(self._views or partial(tables.views, raw=raw))
        mark = self._mark.replace("\\", "\\\\").replace("'", "\\'")
        for name, select in views.items():
            exists = self._comment(name) is not None
            if missing and exists:
                continue
            try:
                # not every catalog can replace a view
                create = "CREATE OR REPLACE VIEW" if exists else "CREATE VIEW IF NOT EXISTS"
                self._session.sql(f"{create} {name} COMMENT '{mark}' AS {select}")
            except PySparkException as error:
                raise TableRefused(
                    f"the view {name} cannot be created: {first_line(error)}",
                    "Fix this, then run `windrow init` again.",
                ) from error
        return list(views)

    def _require_free(self) -> None:
        """Raise TableRefused if another table or view has the name of one of the views over a catalog ledger."""
        for name in self._views_of(self._views or tables.views) if is_catalog_name(self._ledger) else ():
            if self._comment(name) not in (None, self._mark):
                raise TableRefused(
                    f"{name} exists, but is not a view over the ledger {self._ledger}",
                    "Give this ledger's views a separate schema: views = 'some_schema' in windrow.toml.",
                )

    def _views_of(self, views_of: Views) -> dict[str, str]:
        home = parts(self._settings.views) if self._settings.views else parts(self._ledger)[:-1]
        return {quoted(*home, name): select for name, select in views_of(reference(self._ledger)).items()}

    @property
    def _mark(self) -> str:
        return f"Windrow view over {reference(self._ledger)}"

    def _comment(self, name: str) -> str | None:
        """Return the comment of a table or view, None if it does not exist."""
        try:
            described = self._session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        except AnalysisException as error:
            if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                return None
            raise
        return next((row["data_type"] for row in described if row["col_name"] == "Comment"), "")

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger, and to the views over it; they are NULL in all existing rows."""
        listed = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in from_arrow_schema(columns))
        with self._lock(self._ledger):
            self._session.sql(f"ALTER TABLE {reference(self._ledger)} ADD COLUMNS ({listed})")
        self.create_views()

    def path_of(self, table: str) -> str | None:
        """Return the path of `depot` or `ledger` for commands without Spark, None if the table does not exist."""
        location = self._depot if table == "depot" else self._ledger
        if is_catalog_name(location):
            found = detail(self._session, reference(location))
            location = found["location"] if found else ""
        return str(local_path(location) or location) if location else None

    @property
    def side_files(self) -> SideFiles:
        """Return the small texts beside the ledger. Raises TableMissing."""
        path = self._path(self._ledger)
        if path is not None:
            return LocalSideFiles(path, self._settings.durable)
        place = self.path_of("ledger")
        if place is None:
            raise missing(self._ledger, "ledger")
        return StoredSideFiles(SparkJournal(self._session, f"{place}/{DIRECTORY}/plans"))

    def table_maintenance(self, table: str, location: str | None = None) -> TableMaintenance:
        """Return the maintenance of a table: with delta-rs on a local disk if it can, else with Spark."""
        location = location or (self._depot if table == "depot" else self._ledger)
        path = self._path(location)
        if path is not None and DeltaRsMaintenance(str(path), table).obstacle() is None:
            return DeltaRsMaintenance(str(path), table)
        return SparkMaintenance(self._session, reference(location), table, lambda: self._lock(location))

    def _create(self, location: str, rows: pa.Table, keep: str, comment: str, by: str = "") -> None:
        """Create a table with its first rows unless it exists. Raises TableRefused if the directory has other files."""
        own = tables.LEDGER_PROPERTIES if by else tables.PROPERTIES
        properties = own | tables.retention(keep) | self._settings.table_properties
        path = self._path(location)
        noted = {NOTE: json.dumps({"token": rows["token"][0].as_py()})} if by else {}
        with self._lock(location), configured(self._session, noted):
            if path is not None and not is_catalog_name(location) and self._log(location).latest() is None:
                creation.require_empty(str(path), "ledger" if by else "depot")
            self._create_table(location, rows, properties, comment, by)

    def _create_table(
        self, location: str, rows: pa.Table, properties: Mapping[str, str], comment: str, by: str
    ) -> None:
        """Create a table with its first rows unless it exists. Raises TableMissing if its schema does not exist."""
        frame_of(self._session, rows).createOrReplaceTempView(FIRST)
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        try:
            self._session.sql(
                f"CREATE TABLE IF NOT EXISTS {reference(location)} USING DELTA {by and f'PARTITIONED BY ({by})'} "
                f"COMMENT '{comment}' TBLPROPERTIES ({listed}) AS SELECT * FROM {FIRST}"
            )
        except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
            if cause_of(error, location) is not None:
                raise unwritable(location, "table", error) from error
            if isinstance(error, PySparkException) and error.getCondition() == "SCHEMA_NOT_FOUND":
                schema = quoted(*parts(location)[:-1])
                hint = f"CREATE SCHEMA {schema}, or name another."
                raise TableMissing(f"there is no schema {schema}", hint) from error
            if detail(self._session, reference(location)) is None:  # otherwise another process was faster
                raise
        finally:
            self._session.catalog.dropTempView(FIRST)

    def _log(self, location: str) -> Log:
        path = self._path(location)
        if path is not None:
            return DeltaRsLog(str(path))
        log = self._logs.setdefault(location, SparkLog(self._session, reference(location)))
        log.session = self._session
        return log

    def _path(self, location: str) -> Path | None:
        """Return the local path of a table if delta-rs can read its files from here, else None."""
        if self.remote or ON_DATABRICKS in os.environ:
            return None
        if not is_catalog_name(location):
            # guard: spark-file-system
            return local_path(location) if location.startswith("file:") or bare_is_local(self._root) else None
        if location not in self._paths:
            found = detail(self._session, reference(location))
            if found is None:
                return None
            self._places[location] = found["location"]
            # delta-rs reads the log, and a catalog may have commits that are not in it
            self._paths[location] = None if is_managed(found["tableFeatures"]) else local_path(found["location"])
        return self._paths[location]

    def _lock(self, location: str, sync: bool = True) -> AbstractContextManager[None]:
        """Hold the lock of a table on a local disk, however Spark writes to it; other tables have no lock.

        Raises EngineUnavailable for a table on S3 if commits there could replace each other.
        """
        path = self._path(location) or (local_path(location) if self.remote else None)
        if not self._settings.single_writer:
            require_exclusion(self._session, self._places.get(location, location))
        return commit_lock(str(path), sync) if path is not None and path.parent.is_dir() else nullcontext()
