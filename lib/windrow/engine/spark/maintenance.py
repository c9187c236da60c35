"""Looking after a table with Spark SQL: for tables whose storage only Spark can reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from windrow.delta.maintenance import Compacted
from windrow.delta.table import unwritable
from windrow.engine.spark.session_settings import WHOLE_TIMES, configured
from windrow.model.tables import is_of_topology, reached, reached_of

SIZES = ("spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize")
LATEST = 1_000  # commits; Delta reads each of them from the log


@dataclass(frozen=True, slots=True)
class SparkMaintenance:
    """Looks after a table that Spark knows by `reference`, such as ``delta.`path` ``; `lock` is held meanwhile."""

    session: SparkSession
    reference: str
    role: str
    lock: Callable[[], AbstractContextManager[None]]

    def obstacle(self) -> None:
        """Say nothing: what Spark writes it can look after."""

    def reached(self, before: int, depot_id: str) -> int:
        """Return up to which version of a depot a ledger had read it at a time (microseconds), -1 for not at all."""
        columns = self.session.table(self.reference).columns
        started = f"unix_micros({'h.' if is_of_topology(columns) else ''}started_at)"
        return reached_of(self._rows(reached(columns, self.reference, started, before)), depot_id)

    def description(self) -> str:
        """Return the table's comment."""
        return str(self._detail()["description"] or "")

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        found: dict[str, str] = self._detail()["properties"]
        return found

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties in a commit of its own."""
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._rows(f"ALTER TABLE {self.reference} SET TBLPROPERTIES ({pairs})")

    def compact(self, state: str | None, dry_run: bool, below: int | None = None) -> Compacted | None:
        """Make large files of small ones; what a dry run would do, Spark does not say."""
        if dry_run:
            return None
        where = "" if state is None else f" WHERE state = '{state}'"
        sizes = {} if below is None else dict.fromkeys(SIZES, str(below))
        with configured(self.session, sizes):
            metrics = self._rows(f"OPTIMIZE {self.reference}{where}")[0]["metrics"]
        return Compacted(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))

    def compacted_at(self, since: int) -> int | None:
        """Return when files were last put together, None when not since then (microseconds), or long ago."""
        told = ("operation", "unix_micros(timestamp) AS committed_at")
        commits = self._rows(f"DESCRIBE HISTORY {self.reference} LIMIT {LATEST:d}", *told)
        found = [int(commit["committed_at"]) for commit in commits if commit["operation"] == "OPTIMIZE"]
        return max((at for at in found if at >= since), default=None)

    def vacuum(self, dry_run: bool) -> int:
        """Delete files that no version within the table's retention needs, and return how many: at most 1,000."""
        found = self._rows(f"VACUUM {self.reference} DRY RUN")
        if not dry_run:
            self._rows(f"VACUUM {self.reference}")
        return sum("." in row["path"].rpartition("/")[2] for row in found)  # the others are directories

    def logged_at(self, version: int) -> None:
        """Say nothing: the time of a commit that Spark reports is that of its file."""

    def trim_log(self) -> None:
        """Do nothing: Spark's Delta writes a checkpoint every ten commits and trims the log with it."""

    def _detail(self) -> dict[str, Any]:
        found: dict[str, Any] = self._rows(f"DESCRIBE DETAIL {self.reference}")[0]
        return found

    def _rows(self, statement: str, *columns: str) -> list[dict[str, Any]]:
        try:
            with self.lock(), configured(self.session, WHOLE_TIMES):
                return [row.asDict() for row in self.session.sql(statement).selectExpr(*(columns or "*")).collect()]
        except PySparkException as error:
            raise unwritable(self.reference, self.role, error) from error
