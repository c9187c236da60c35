"""Commit a microbatch to the ledger with Spark, in one transaction of one of two forms.

**MERGE** matches the new rows with live rows, and rewrites the files in which rows change.

**Overwrite** replaces the partitions of live rows with the rows that are live afterwards, and adds the final rows, in
one write without a join. `strategy.py` decides between the two.

The fence is the same in both. While the progress row is written, inside the transaction, the token in the table is
compared with the primed one. If they differ, the query raises an error and nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.columnar.arrow import text
from windrow.delta.locations import reference
from windrow.errors import LedgerMoved
from windrow.ledger.files import without_dictionary
from windrow.ledger.live import Live
from windrow.ledger.open_batches import UNCACHED, SparkOpen
from windrow.ledger.result import CommitCounts, Rows
from windrow.ledger.strategy import FILE_ROWS, OVERWRITE
from windrow.model import tables
from windrow.model.tables import CHANGED
from windrow.rows.frame import frame_of
from windrow.rows.session_settings import (
    FEW_FILES,
    FEW_ROWS,
    INTERPRETED,
    NOTE,
    ONE_TASK,
    SMALL_BYTES,
    SOME_FILES,
    WHOLE_FILES,
    WHOLE_TIMES,
    configured,
)

SOURCE = "windrow_rows"
# If the user's session sets transaction ids, Delta would silently skip our commit.
NO_TRANSACTION_ID = dict.fromkeys(("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"))
BEYOND = {"spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false"}
# Delta's file of checksums of a version takes 25 requests to an object store.
NO_CHECKSUM = {"spark.databricks.delta.writeChecksumFile.enabled": "false"}
MOVED = "raise_error('WINDROW-LEDGER-MOVED: the ledger moved between prime and commit')"
BY_ID = 100  # up to this many rows, a MERGE lists their ids, so that Delta skips files without them


@dataclass(frozen=True, slots=True)
class SparkCommit:
    """One commit: the session, the ledger, its primed live rows and token, the commit's note and form."""

    session: SparkSession
    ledger: str
    live: Live
    token: str
    note: str
    form: str

    def write(self, rows: Rows, control: pa.Table, states: Sequence[str] = ()) -> CommitCounts | None:
        """Commit the rows and the control rows; returns None if Spark does not report how many rows it replaced.

        `states` are those of a topology that change.
        Raises LedgerMoved, and the errors of Spark.
        """
        stays = self._stays(states) if self.form == OVERWRITE and isinstance(rows, pa.Table) else None
        sped_up = self._sped_up(rows, stays) if isinstance(rows, pa.Table) else {}
        # guard: whole-times
        set_for_it = {NOTE: self.note} | WHOLE_TIMES | WHOLE_FILES | NO_CHECKSUM
        if stays is None or states:
            set_for_it |= {"spark.sql.files.maxRecordsPerFile": str(FILE_ROWS)}
        plain = without_dictionary(rows if isinstance(rows, pa.Table) else None)
        set_for_it |= {f"parquet.enable.dictionary#{name}": "false" for name in plain}
        try:
            with (
                # guard: spark-transaction-id
                configured(self.session, NO_TRANSACTION_ID),
                configured(self.session, set_for_it),
                configured(self.session, sped_up),
            ):
                if self.form != OVERWRITE:
                    return self._merge(rows, control)
                self._overwrite(rows, control, stays, bool(sped_up), states)
                return None
        finally:
            self.session.catalog.dropTempView(SOURCE)

    def stage(self, frame: DataFrame) -> None:
        """Register the rows to write under a name for SQL."""
        frame.createOrReplaceTempView(SOURCE)

    def _stays(self, states: Sequence[str]) -> pa.Table:
        """Return the live rows of the partitions to overwrite: control rows, and open batches or `states`."""
        opened = self.live.open
        if not (states and isinstance(opened, SparkOpen)):
            return pa.concat_tables([self.live.rows, opened.wanted(None)])
        held = [
            opened.whole[name].append_column("state", pa.repeat(text(name), opened.whole[name].num_rows))
            for name in states
        ]
        return pa.concat_tables([self.live.rows, *held], promote_options="default")

    def _sped_up(self, rows: pa.Table, stays: pa.Table | None) -> dict[str, str]:
        """Return the settings that make a small commit faster, none for a large one.

        A MERGE also writes all other rows of the files in which rows change.
        """
        if rows.nbytes + (0 if stays is None else stays.nbytes) > SMALL_BYTES:
            return {}
        opened = self.live.open
        files = min(rows.num_rows, opened.read_files) if isinstance(opened, SparkOpen) else 0
        if self.form != OVERWRITE and files > SOME_FILES:
            return {}
        few = rows.num_rows <= FEW_ROWS and files <= FEW_FILES
        return ONE_TASK | (INTERPRETED if self.form == OVERWRITE or few else {})

    def _merge(self, rows: Rows, control: pa.Table) -> CommitCounts:
        """Match live rows with the new ones. The literal states let the MERGE skip files of final rows."""
        names, ids = control.schema.names, None
        if isinstance(rows, pa.Table):
            new = pa.concat_tables([rows.select(names), control])
            frame, ids = frame_of(self.session, new), new["id"].to_pylist()
        else:
            frame = rows.where(CHANGED).select(names).unionByName(frame_of(self.session, control))
        self.stage(frame)
        counts = self.session.sql(_merge_sql(reference(self.ledger), names, self.token, ids)).collect()
        if not counts:
            raise LedgerMoved(
                "Delta skipped the commit", "Another driver committed first; the microbatch will be tried again."
            )
        done = counts[0].asDict()
        return CommitCounts(done["num_updated_rows"], done["num_deleted_rows"], done["num_inserted_rows"])

    def _overwrite(
        self, rows: Rows, control: pa.Table, stays: pa.Table | None, small: bool, states: Sequence[str]
    ) -> None:
        """Replace the live rows with those that are live afterwards; a small commit writes one file per partition.

        Of a topology's states only those that change are replaced.
        """
        if isinstance(rows, pa.Table) and stays is not None:
            frame = self._on_driver(rows, control, stays)
        else:
            frame = self._on_executors(cast("DataFrame", rows), control)
        self.stage(frame.coalesce(1) if small else frame)
        stands = (
            f"(SELECT token FROM {reference(self.ledger)} "
            # guard: overwrite-token-uncached
            f"WHERE state = 'progress' AND id = '{tables.PROGRESS}' AND {UNCACHED})"
        )
        # guard: overwrite-token
        fenced = _fenced(f"NOT ({stands} <=> '{self.token}')")
        columns = ", ".join(fenced + " AS token" if name == "token" else f"s.{name}" for name in control.schema.names)
        write = self.session.sql(f"SELECT {columns} FROM {SOURCE} s").writeTo(reference(self.ledger))
        with configured(self.session, BEYOND):
            write.overwrite(F.expr(tables.live_states(control.schema.names, states)))

    def _on_driver(self, rows: pa.Table, control: pa.Table, stays: pa.Table) -> DataFrame:
        """Return the rows that are live afterwards, and the final rows."""
        new = pa.concat_tables([rows.select(control.schema.names), control])
        left = [_without(stays, new["id"]), new.filter(pc.not_equal(new["state"], tables.GONE))]
        whole = pa.concat_tables(left, promote_options="default").select(control.schema.names)
        # In the order of ids, by which a later MERGE skips files.
        return frame_of(self.session, whole.sort_by("id") if tables.is_of_topology(whole.column_names) else whole)

    def _on_executors(self, rows: DataFrame, control: pa.Table) -> DataFrame:
        """Return the rows that are live afterwards, and the final rows; `rows` include the unchanged open batches."""
        written = pa.chunked_array([*control["id"].chunks, *self._partial(rows).chunks])
        on_driver = pa.concat_tables([_without(self.live.rows, written), control])
        left = rows.where(F.col("state") != tables.GONE).select(control.schema.names)
        return left.unionByName(frame_of(self.session, on_driver))

    def _partial(self, rows: DataFrame) -> pa.ChunkedArray:
        """Return the ids of the partial rows among `rows`; only the ledger of a raw depot has any."""
        if not pc.any(pc.equal(self.live.rows["state"], "partial")).as_py():
            return pa.chunked_array([], pa.string())
        found = rows.where("known AND state NOT IN ('open', 'closed')").select("id").toArrow()["id"]
        return found.cast(pa.string())


def _without(live: pa.Table, ids: pa.ChunkedArray) -> pa.Table:
    """Return the live rows without those of the given ids."""
    # guard: overwrite-keeps-unchanged
    return live.filter(pc.invert(pc.is_in(live["id"], ids.combine_chunks())))


def _fenced(moved: str) -> str:
    """Return SQL for the token to write; for the progress row it raises an error if the ledger moved."""
    return f"CASE WHEN s.id = '{tables.PROGRESS}' AND {moved} THEN {MOVED} ELSE s.token END"


def _merge_sql(ledger: str, columns: list[str], token: str, ids: Sequence[str] | None) -> str:
    # guard: merge-inserts-no-progress
    # guard: merge-token
    fenced, absent = _fenced(f"NOT (t.token <=> '{token}')"), _fenced("true")
    update = ", ".join(f"{name} = {fenced if name == 'token' else f's.{name}'}" for name in columns)
    insert = ", ".join(absent if name == "token" else f"s.{name}" for name in columns)
    few = ids if ids and len(ids) <= BY_ID else ()
    meant = any(sign in one for one in few for sign in ("${", "'", "\\"))  # such an id has a meaning in SQL
    named = " OR ".join(f"t.id = '{one}'" for one in few) if few and not meant else "true"
    return (
        # guard: merge-live-files-only
        f"MERGE INTO {ledger} t USING {SOURCE} s ON t.{tables.live_states(columns)} AND ({named}) AND t.id = s.id "
        f"WHEN MATCHED AND s.state = '{tables.GONE}' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({insert})"
    )
