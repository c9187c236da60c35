"""Maintain a table with Spark SQL, for storage that only Spark can reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from windrow.delta.maintenance import CompactionResult
from windrow.delta.table import is_managed, missing_error, unwritable_error
from windrow.engine.spark.log import NO_TABLE
from windrow.model.tables import is_topology_ledger, reached_query, reached_version
from windrow.rows.session_settings import WHOLE_TIMES, session_with

SIZES = ("spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize")
LATEST = 1_000  # commits; Delta reads each of them from the log


@dataclass(frozen=True, slots=True)
class SparkMaintenance:
    """Maintains the table with the SQL name `reference`, such as ``delta.`path` ``, while it holds `lock`."""

    session: SparkSession
    reference: str
    role: str
    lock: Callable[[], AbstractContextManager[None]]

    def unsupported_reason(self) -> str | None:
        """Return why the table must be left alone, None if it can be maintained."""
        managed = is_managed(self._detail()["tableFeatures"])
        return "its catalog maintains it" if managed else None

    def depot_version_before(self, before: int, depot_id: str) -> int:
        """Return the depot version up to which this ledger had read at time `before` (microseconds), -1 for none."""
        columns = self.session.table(self.reference).columns
        started = f"unix_micros({'h.' if is_topology_ledger(columns) else ''}started_at)"
        return reached_version(self._rows(reached_query(columns, self.reference, started, before)), depot_id)

    def description(self) -> str:
        """Return the table's comment."""
        return str(self._detail()["description"] or "")

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        result: dict[str, str] = self._detail()["properties"]
        return result

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties in a separate commit."""
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._rows(f"ALTER TABLE {self.reference} SET TBLPROPERTIES ({pairs})")

    def compact(self, state: str | None, dry_run: bool, below: int | None = None) -> CompactionResult | None:
        """Merge small files; None for a dry run, which Spark does not support."""
        if dry_run:
            return None
        where = "" if state is None else f" WHERE state = '{state}'"
        sizes = {} if below is None else dict.fromkeys(SIZES, str(below))
        with session_with(self.session, sizes):
            metrics = self._rows(f"OPTIMIZE {self.reference}{where}")[0]["metrics"]
        return CompactionResult(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))

    def compaction_time(self, since: int) -> int | None:
        """Return the time of the last compaction (microseconds), None if before `since` or many commits ago."""
        columns = ("operation", "unix_micros(timestamp) AS committed_at")
        commits = self._rows(f"DESCRIBE HISTORY {self.reference} LIMIT {LATEST:d}", *columns)
        times = [int(commit["committed_at"]) for commit in commits if commit["operation"] == "OPTIMIZE"]
        return max((at for at in times if at >= since), default=None)

    def vacuum(self, dry_run: bool) -> int:
        """Delete files that no version within the table's retention needs, and return how many: at most 1,000."""
        files = self._rows(f"VACUUM {self.reference} DRY RUN")
        if not dry_run:
            self._rows(f"VACUUM {self.reference}")
        return sum("." in row["path"].rpartition("/")[2] for row in files)  # the others are directories

    def log_file_time(self, version: int) -> int | None:
        """Return None: the commit time that Spark reports is already that of the log file."""
        return None

    def trim_log(self) -> None:
        """Do nothing: Spark's Delta writes a checkpoint every ten commits and trims the log with it."""

    def _detail(self) -> dict[str, Any]:
        row: dict[str, Any] = self._rows(f"DESCRIBE DETAIL {self.reference}")[0]
        return row

    def _rows(self, statement: str, *columns: str) -> list[dict[str, Any]]:
        try:
            with self.lock(), session_with(self.session, WHOLE_TIMES):
                return [row.asDict() for row in self.session.sql(statement).selectExpr(*(columns or "*")).collect()]
        except PySparkException as error:
            if error.getCondition() in NO_TABLE:
                raise missing_error(self.reference, self.role) from error
            raise unwritable_error(self.reference, self.role, error) from error
