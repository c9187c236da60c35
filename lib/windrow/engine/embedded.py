"""The embedded engine: reads and commits with delta-rs, without a JVM. Tables are paths."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from windrow.columnar.arrow import copy_nested
from windrow.delta.locations import is_catalog_name, local_path
from windrow.delta.lock import commit_lock
from windrow.delta.log import DeltaRsLog, number_after
from windrow.delta.maintenance import DeltaRsMaintenance
from windrow.delta.table import UNTRIMMED, latest_table, open_table, overtaken_error, translate_write_errors
from windrow.engine.engine import Engine, SideFiles
from windrow.engine.side_files import DeltaRsJournal, LocalSideFiles, StoredSideFiles
from windrow.errors import EngineUnavailableError, InternalError
from windrow.model import tables
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EmbeddedEngine(Engine):
    """Reaches tables with delta-rs."""

    name = "embedded"

    def __init__(self, settings: Settings) -> None:
        """Open nothing yet."""
        self.settings = settings

    def place(self, location: str) -> str:
        """Return the path of a table. Raises EngineUnavailableError for the name of a catalog table."""
        if is_catalog_name(location):
            raise EngineUnavailableError(
                f"{location} is the name of a catalog table, which the embedded engine cannot look up",
                f"Give the table's path (DESCRIBE DETAIL {location} shows it), ./{location} for a path of this name, "
                "or run on Spark.",
            )
        return location

    def log(self, place: str) -> DeltaRsLog:
        """Return the log of a table."""
        return DeltaRsLog(place)

    def path(self, place: str) -> str:
        """Return the path of a table."""
        return place

    def lock(self, place: str, sync: bool = True) -> AbstractContextManager[None]:
        """Hold the lock of a table."""
        return commit_lock(place, sync)

    def maintenance(self, place: str, role: str) -> DeltaRsMaintenance:
        """Return the maintenance of a table."""
        return DeltaRsMaintenance(place, role)

    def side_files(self, place: str) -> SideFiles:
        """Return the small texts beside a table."""
        path = local_path(place)
        if path is not None:
            return LocalSideFiles(path, self.settings.fsync)
        return StoredSideFiles(DeltaRsJournal.beside(place))

    def transaction(self, place: str, application: str, last_version: int) -> int | None:
        """Return the version that the log of a table recorded for a transaction id."""
        return latest_table(place, "depot").transaction_version(application)

    def free_number(self, place: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the log of a table has not recorded for a transaction id."""
        return number_after(place, application, least)

    def append(self, place: str, rows: Sequence[pa.Table | DataFrame], transaction: tuple[str, int], note: str) -> None:
        """Append rows to a table in one commit, unless its log has this transaction; create it if it is missing."""
        if not all(isinstance(row, pa.Table) for row in rows):
            raise InternalError("without Spark, a function has Arrow tables")
        (application, version), together = transaction, copy_nested(pa.concat_tables(rows, promote_options="default"))
        noted = CommitProperties(
            custom_metadata={"userMetadata": note}, app_transactions=[Transaction(application, version)]
        )
        with self.lock(place, self.settings.fsync), translate_write_errors(place, "depot"):
            if not DeltaTable.is_deltatable(place):
                properties = tables.PROPERTIES | tables.retention_properties(self.settings.retention)
                DeltaTable.create(place, together.schema, mode="ignore", configuration=properties)
            table = open_table(place, "depot")
            recorded = table.transaction_version(application)
            # guard: output-once
            if recorded is None or recorded < version:
                write_deltalake(
                    table, together, mode="append", commit_properties=noted, post_commithook_properties=UNTRIMMED
                )
            # guard: later-plan-told
            elif recorded > version:
                raise overtaken_error(place)
