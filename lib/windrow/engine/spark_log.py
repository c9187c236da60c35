"""Delta's log of a table, asked of Spark: for tables whose storage only Spark can reach."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from windrow.engine.arrow import plain
from windrow.engine.log import added, payload_type
from windrow.engine.protocol import Table


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The log of a table that Spark knows by `reference`, such as ``delta.`path` ``."""

    session: SparkSession
    reference: str

    def table(self) -> Table | None:
        """Return the table's identity and latest version, None when there is no table."""
        try:
            identifier = self.session.sql(f"DESCRIBE DETAIL {self.reference}").select("id").collect()[0][0]
        except AnalysisException as error:
            if error.getCondition() in NO_TABLE:
                return None
            raise
        version = self.session.sql(f"DESCRIBE HISTORY {self.reference} LIMIT 1").select("version").collect()[0][0]
        rows = self.session.sql(f"SELECT * FROM {self.reference} LIMIT 0").toArrow()
        return Table(identifier, version, payload_type(plain(rows).schema))

    def rows_added(self, after: int, upto: int) -> dict[int, int | None]:
        """Return for the versions after `after` up to `upto` how many rows each added; None where it does not say."""
        history = self.session.sql(f"DESCRIBE HISTORY {self.reference}").where(f"version > {after}")
        commits = history.select("version", "operation", "operationMetrics").collect()
        return added([commit.asDict() for commit in commits], after, upto)


NO_TABLE = (
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "TABLE_OR_VIEW_NOT_FOUND",
)
