"""Commit to the ledger with Spark: one MERGE that only inserts.

Its source reads the token of the ledger, and is empty if that is not the primed token. Its target is the progress row
of the revision that it writes, or of a later one: if there is such a row, another commit has taken the number, and
nothing is inserted. Delta refuses the MERGE if anything was added meanwhile to what it has read. So it inserts all
rows or none.

A fold is an overwrite of the partitions of live rows. It reads them in its own transaction, so it drops nothing that it
has not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.delta.locations import is_catalog_name, reference
from windrow.errors import ConcurrentCommitError
from windrow.ledger.encoding import without_dictionary
from windrow.ledger.live import Live
from windrow.ledger.open_batches import UNCACHED
from windrow.ledger.result import Rows
from windrow.ledger.versions import RECORDED, TOMBSTONE, Fold, newest_frame, rows_to_write
from windrow.model import tables
from windrow.model.open_batches import MESSAGES
from windrow.model.tables import CHANGED, DELETED, WHOLE
from windrow.rows.frame import frame_of
from windrow.rows.session_settings import INTERPRETED, NOTE, ONE_TASK, SMALL_BYTES, WHOLE_TIMES, session_with

# If the user's session sets transaction ids, Delta would silently skip our commit.
NO_TRANSACTION_ID = dict.fromkeys(("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"))
# Delta's checksum file for a version takes 25 requests to an object store.
NO_CHECKSUM = {"spark.databricks.delta.writeChecksumFile.enabled": "false"}


@dataclass(frozen=True, slots=True)
class SparkCommit:
    """One commit: the session, the ledger, its primed live rows and token, and the commit's note."""

    session: SparkSession
    ledger: str
    live: Live
    token: str
    note: str

    def write(self, rows: Rows, control: pa.Table) -> int:
        """Insert the rows of a result and the control rows, and return how many rows were inserted.

        Raises ConcurrentCommitError, and the errors of Spark.
        """
        revision, names = self.live.revision + 1, control.schema.names
        here = rows_to_write(control, revision)
        few = isinstance(rows, pa.Table) and rows.nbytes <= SMALL_BYTES
        if isinstance(rows, pa.Table):
            here = pa.concat_tables([here, rows_to_write(rows.select([*names, "known"]), revision)])
        frame = frame_of(self.session, here)
        if not isinstance(rows, pa.Table):
            frame = _add_tombstones(rows, names, revision).unionByName(frame)
        plain = without_dictionary(rows if isinstance(rows, pa.Table) else None)
        with self._configure(ONE_TASK | INTERPRETED if few else {}, plain), self.stage(frame) as source:
            statement = _merge_sql(reference(self.ledger), source, names, self.token, revision)
            counts = self.session.sql(statement).collect()
        if not (inserted := counts[0]["num_inserted_rows"] if counts else 0):
            raise ConcurrentCommitError(
                "the ledger moved between prime and commit",
                "Another driver, tick or flush committed first. Nothing was written.",
            )
        return int(inserted)

    @contextmanager
    def stage(self, frame: DataFrame) -> Iterator[str]:
        """Register the rows to write under a name for SQL, and yield the name, which no other commit has.

        A view belongs to the session of its frame. If that were not the session at work, a shared name could refer
        there to the rows of another commit.
        """
        # guard: rows-of-this-commit
        name = f"windrow_rows_{uuid4().hex}"
        frame.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self.session.catalog.dropTempView(name)

    def fold(self, fold: Fold) -> None:
        """Replace live rows with those that count: all of them, or what was written since the last large fold."""
        ledger, whole = reference(self.ledger), fold == "large"
        # guard: fold-uncached
        frame = self.session.sql(f"SELECT * FROM {ledger} WHERE {tables.ARE_LIVE} AND {UNCACHED}")
        frame = frame if whole else frame.where("NOT folded")
        rows = _fold_versions(frame, fold, self.live.totals.total[1])
        scope = tables.ARE_LIVE if whole else f"{tables.ARE_LIVE} AND folded = false"
        ordered = rows.repartitionByRange("state", "id").sortWithinPartitions("state", "id")
        with self._configure({}, without_dictionary(None)), self.stage(ordered) as source:
            writer = self.session.table(source).write.format("delta").mode("overwrite")
            writer = writer.option("replaceWhere", scope).option("dataChange", "false")
            writer.saveAsTable(ledger) if is_catalog_name(self.ledger) else writer.save(self.ledger)

    @contextmanager
    def _configure(self, sped_up: Mapping[str, str], without_dictionary: Sequence[str]) -> Iterator[None]:
        """Set what a commit needs, and what makes it faster."""
        # guard: whole-times
        needed = {NOTE: self.note} | WHOLE_TIMES | NO_CHECKSUM
        needed |= {f"parquet.enable.dictionary#{name}": "false" for name in without_dictionary}
        with (
            # guard: spark-transaction-id
            session_with(self.session, NO_TRANSACTION_ID),
            session_with(self.session, needed),
            session_with(self.session, sped_up),
        ):
            yield


def _add_tombstones(rows: DataFrame, names: Sequence[str], revision: int) -> DataFrame:
    """Return the rows of a result as they are written, with a tombstone for each open batch that closed."""
    changed, kinds = rows.where(CHANGED), dict(rows.dtypes)
    stamped: dict[str, Column] = {"revision": F.lit(revision).cast("long"), "folded": F.lit(False)}
    new = changed.withColumns(stamped).select(*[F.col(f"`{name}`") for name in names])
    if MESSAGES not in names:
        return new
    gone = stamped | {"state": F.lit(tables.OPEN), DELETED: F.lit(True), WHOLE: F.lit(None)}
    columns = [
        F.col(name) if name in TOMBSTONE else F.lit(gone.get(name)).cast(kinds[name]).alias(name) for name in names
    ]
    # guard: closed-is-not-open-on-executors
    return new.unionByName(changed.where("state = 'closed' AND known").select(*columns))


def _fold_versions(versions: DataFrame, fold: Fold, open_messages: int) -> DataFrame:
    """Return the latest version of each id as a fold writes it; the progress row records what is left."""
    columns, others = [f"`{name}`" for name in versions.columns], versions
    if MESSAGES in versions.columns:
        others = versions.where(F.col("state") != tables.OPEN)
    latest = others.groupBy("id").agg(F.max("revision").alias("revision"))
    rows = others.join(latest, ["id", "revision"], "left_semi")
    if others is not versions:
        rows = rows.select(*columns).unionByName(newest_frame(versions.where(F.col("state") == tables.OPEN)))
    is_progress = F.col("id") == tables.PROGRESS
    # No column of a Delta table has a space in its name.
    sums = versions.where(is_progress).selectExpr(*[f"sum({name}) AS `all {name}`" for name in RECORDED])
    rows = rows.crossJoin(F.broadcast(sums))
    left = {name: F.col(f"`all {name}`") for name in RECORDED}
    # guard: small-fold-keeps-tombstones-on-spark
    if fold == "large":
        rows = rows.where(f"{DELETED} IS NOT TRUE")
        live = F.expr("`all versions_written` - `all versions_obsolete`")
        left = dict(zip(RECORDED, (live, F.lit(0), F.lit(open_messages)), strict=True))
    recorded = {name: F.when(is_progress, value).cast("long") for name, value in left.items()}
    return rows.withColumns(recorded | {"folded": F.lit(fold == "large")}).select(*columns)


def _merge_sql(ledger: str, source: str, columns: Sequence[str], token: str, revision: int) -> str:
    named = ", ".join(f"`{name}`" for name in columns)
    values = ", ".join(f"s.`{name}`" for name in columns)
    progress = f"state = '{tables.PROGRESS}' AND id = '{tables.PROGRESS}'"
    latest = f"{progress} AND revision >= {revision - 1:d} AND {UNCACHED}"  # statistics let Spark skip earlier files
    # guard: merge-token
    same = f"(SELECT max_by(token, revision) FROM {ledger} WHERE {latest}) = '{token}'"
    # In Delta 4.4, because the source reads the token, Delta also refuses this commit beside another one.
    taken = f"t.state = '{tables.PROGRESS}' AND t.id = '{tables.PROGRESS}' AND t.revision >= {revision:d}"
    return (
        f"MERGE INTO {ledger} t USING (SELECT * FROM {source} WHERE {same}) s ON {taken} AND t.revision = s.revision "
        f"WHEN NOT MATCHED THEN INSERT ({named}) VALUES ({values})"
    )
