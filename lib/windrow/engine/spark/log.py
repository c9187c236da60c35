"""Read Delta's log of a table with Spark, for storage that only Spark can reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from windrow.columnar.arrow import plain
from windrow.delta.log import Table, commits, payload_type
from windrow.engine.spark.appended import files_in_log
from windrow.errors import TableRefused
from windrow.model import chunks
from windrow.model.commits import FEED, Commit


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The log of a table that Spark knows by `reference`, such as ``delta.`path` ``."""

    session: SparkSession
    reference: str

    def table(self) -> Table | None:
        """Return the table's identity and latest version, None when there is no table."""
        found = detail(self.session, self.reference)
        if found is None:
            return None
        version = self._history("version", limit=1)[0]["version"]
        schema = plain(self.session.sql(f"SELECT * FROM {self.reference} LIMIT 0").toArrow()).schema
        feed = found["properties"].get(FEED) == "true"
        return Table(found["id"], version, schema, payload_type(schema), feed, chunks.is_raw(schema))

    def latest(self) -> tuple[int, str | None] | None:
        """Return the table's latest version and the note (user metadata) of its commit, None when there is no table."""
        try:
            [found] = self._history("version", "userMetadata", limit=1)
            return int(found["version"]), found["userMetadata"]
        except AnalysisException as error:
            if error.getCondition() in NO_TABLE:
                return None
            raise

    def bytes_added(self, after: int, upto: int) -> dict[int, int]:
        """Return for versions of a raw depot how many bytes the files have that each added."""
        latest = self._history("version", limit=1)[0]["version"]
        new = self._history("version", "operationMetrics", limit=max(latest - after, 1))
        sizes = {commit["version"]: (commit["operationMetrics"] or {}).get("numOutputBytes") for commit in new}
        return {version: int(size) for version, size in sizes.items() if size and after < version <= upto}

    def commits(self, since: int | None = None, upto: int | None = None) -> list[Commit]:
        """Return what the log says of its commits in order, from version `since` on, up to `upto` or later."""
        columns = ("version", "unix_micros(timestamp) AS timestamp", "operation", "operationMetrics")
        limit = None if since is None else max(self._history("version", limit=1)[0]["version"] - since + 1, 1)
        # The fingerprint leaves out the time: Spark reports that of the log's file, which differs in a copied table.
        return commits(self._history(*columns, limit=limit), int, ("operation", "operationMetrics"), "spark")

    def files_added(self, first: int, last: int) -> dict[str, int]:
        """Return the names of the files whose rows versions added, each with its version."""
        found = detail(self.session, self.reference)
        return {} if found is None else files_in_log(self.session, found["location"], first, last)

    def _history(self, *columns: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the latest commits, newest first. Without a limit Delta reads the whole log."""
        statement = f"DESCRIBE HISTORY {self.reference}" + (f" LIMIT {limit:d}" if limit else "")
        return [commit.asDict() for commit in self.session.sql(statement).selectExpr(*columns).collect()]


def detail(session: SparkSession, reference: str) -> dict[str, Any] | None:
    """Return `id`, `location` and `properties` of a table, None if it does not exist.

    Raises TableRefused for a table that is not Delta.
    """
    try:
        described = session.sql(f"DESCRIBE DETAIL {reference}").select("id", "location", "format", "properties")
        found: dict[str, Any] = described.collect()[0].asDict()
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return None
        raise
    if found["format"].lower() != "delta":
        raise TableRefused(f"{reference} is a table of format {found['format']}", "Use a Delta table.")
    return found


NO_TABLE = (
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
)
