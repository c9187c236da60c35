"""Closed batches as a Spark stream, from the ledger's change feed.

A plain stream of the ledger fails, because its live rows change, and `skipChangeCommits` would skip the commits in
which batches close. In the change feed a closed batch arrives once: as an insert, or as an update to `closed`. Any
other change of a closed row takes back a batch that was delivered, and stops the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.delta.locations import is_name
from windrow.errors import LedgerRestored, TableMissing, TableRefused
from windrow.model import tables
from windrow.model.commits import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TAKEN_BACK = (
    f"{LedgerRestored.code}: closed batches were taken back: the ledger was restored, or closed rows were deleted or "
    "changed by hand. Start the stream again with a new checkpoint and an empty target."
)
EVERY_FILE = 2_147_483_647  # a limit could split a RESTORE, and deliver rows it puts back before those it takes away
NO_TABLE = ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_SCHEMA_NOT_SET", "TABLE_OR_VIEW_NOT_FOUND")


def stream_closed(spark: SparkSession, ledger: str, since: int | None = None) -> DataFrame:
    """Return a streaming frame of closed batches, with the columns of the view `closed_batches`, each exactly once.

    `ledger` is a path, or a name in a catalog if it looks like `a.b` or `a.b.c` (write `./a.b` for such a path). At its
    first start the stream delivers all closed batches, or only those that closed after microbatch `since`; from then
    on each batch as it closes. Spark keeps the position in the checkpoint of the query. A RESTORE that takes closed
    batches back stops the stream with WINDROW-LEDGER-RESTORED. Raises TableMissing, TableRefused.
    """
    from pyspark.sql import functions as F

    changes = _changes(spark, ledger)
    is_closed = F.col("state") == "closed"
    arrives = F.col(CHANGE).isin("insert", "update_postimage")
    taken_back = F.raise_error(F.lit(TAKEN_BACK)).cast("boolean")
    # The state is in both conditions: the first prunes files, the second must not raise for an open row.
    kept = F.when(~is_closed, F.lit(False)).when(arrives, F.lit(True)).otherwise(taken_back)
    closed = changes.where(is_closed).where(kept).select(*tables.BATCH)
    return closed if since is None else closed.where(F.col("closed_in") > since)


def _changes(spark: SparkSession, ledger: str) -> DataFrame:
    """Return the ledger's change feed as a stream: the rows present at the first start, then every change."""
    from pyspark.errors import AnalysisException

    reader = spark.readStream.format("delta").option("readChangeFeed", "true").option("maxFilesPerTrigger", EVERY_FILE)
    try:
        changes = reader.table(ledger) if is_name(ledger) else reader.load(ledger)
        found = set(changes.columns)
    except AnalysisException as error:
        if error.getCondition() not in NO_TABLE:
            raise
        raise TableMissing(f"there is no ledger at {ledger}", "Give its path, or its name in a catalog.") from error
    if not found.issuperset(tables.BATCH):
        raise TableRefused(f"{ledger} is a Delta table, but not a ledger", "Give the path of a ledger.")
    return changes
