"""A commit of Spark: the rows of a microbatch into the ledger, in one transaction, in one of two forms.

**Overwriting.** The partitions of live rows are replaced by what is live afterwards, and final rows are added, in one
write: no join, and every row is written once. It takes a fraction of a MERGE's time, as long as there is not much open
that does not change.

**MERGE.** Where more is open than `OVERWRITTEN_BYTES`, or the session takes no settings (an overwrite needs one, as it
also adds rows outside the partitions that it replaces), live rows are matched with the new ones.

The fence is the same in both: on its way into the table the token of the progress row is compared with the one that
stands there, inside the transaction, and another one than the primed one raises, so nothing is written. The transaction
id, the ledger's version at prime, is the second belt: Delta passes in silence over what it has taken before.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow import tables
from windrow.engine import encoding
from windrow.engine.configured import INTERPRETED, SMALL_BYTES, WHOLE_TIMES, configured, takes
from windrow.engine.frames import frame_of
from windrow.engine.protocol import Live, Merged
from windrow.locations import reference

OVERWRITTEN_BYTES = 32_000_000  # of open batches
SOURCE = "windrow_rows"
NOTE = "spark.databricks.delta.commitInfo.userMetadata"
TXN_ID, TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
BEYOND = {"spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false"}
# What somebody has cached of a table answers queries of it, whatever version that was; nobody caches where rows lie.
UNCACHED = "_metadata.file_path IS NOT NULL"
MOVED = "raise_error('WINDROW-LEDGER-MOVED: the ledger moved between prime and commit')"


@dataclass(frozen=True, slots=True)
class SparkCommit:
    """What every commit needs to know: the session and ledger, the live rows as they were primed, token and note."""

    session: SparkSession
    ledger: str
    live: Live
    token: str
    note: str

    def write(self, rows: Any, control: pa.Table) -> Merged | None:
        """Commit the rows (Arrow, or a frame of the executors) and the control rows; None when Spark does not say.

        Raises what Spark raises.
        """
        belt = {TXN_ID: tables.application(self.live.table_id), TXN_VERSION: str(self.live.table_version)}
        small = isinstance(rows, pa.Table) and rows.nbytes + self.live.open.octets <= SMALL_BYTES
        overwrites = self.live.open.octets <= OVERWRITTEN_BYTES and takes(self.session, BEYOND)
        try:
            with (
                configured(self.session, belt),
                configured(self.session, {NOTE: self.note} | WHOLE_TIMES | _encodings(rows)),
                configured(self.session, INTERPRETED) if small else nullcontext(),
            ):
                if not overwrites:
                    return self._merge(rows, control)
                self._overwrite(rows, control, small)
                return None
        finally:
            self.session.catalog.dropTempView(SOURCE)

    def stage(self, frame: DataFrame) -> None:
        """Give the rows to write a name for SQL."""
        frame.createOrReplaceTempView(SOURCE)

    def _overwrite(self, rows: Any, control: pa.Table, small: bool) -> None:
        """Replace the live rows by what is live afterwards; a small commit writes one file a partition."""
        live = pa.concat_tables([self.live.rows, self.live.open.wanted(None)])
        if isinstance(rows, pa.Table):
            new = pa.concat_tables([rows.drop_columns(["known"]), control])
            frame = frame_of(self.session, pa.concat_tables([_without(live, new["id"]), _remaining(new)]))
        else:
            known = rows.where("known").select("id").toArrow()["id"].cast(pa.string())
            beside = pa.concat_tables(
                [_without(live, pa.chunked_array([*known.chunks, *control["id"].chunks])), control]
            )
            frame = rows.where(f"state <> '{tables.GONE}'").drop("known").unionByName(frame_of(self.session, beside))
        self.stage(frame.coalesce(1) if small else frame)
        stands = (
            f"(SELECT token FROM {reference(self.ledger)} "
            f"WHERE state = 'progress' AND id = '{tables.PROGRESS}' AND {UNCACHED})"
        )
        fenced = _fenced(f"NOT ({stands} <=> '{self.token}')")
        columns = ", ".join(fenced + " AS token" if name == "token" else f"s.{name}" for name in control.schema.names)
        write = self.session.sql(f"SELECT {columns} FROM {SOURCE} s").writeTo(reference(self.ledger))
        with configured(self.session, BEYOND):
            write.overwrite(F.expr(tables.live_states(control.schema.names)))

    def _merge(self, rows: Any, control: pa.Table) -> Merged | None:
        """Match live rows with the new ones. The literal states keep the MERGE away from final rows' files."""
        frame = (
            frame_of(self.session, pa.concat_tables([rows.drop_columns(["known"]), control]))
            if isinstance(rows, pa.Table)
            else rows.drop("known").unionByName(frame_of(self.session, control))
        )
        self.stage(frame)
        counts = self.session.sql(_merge_sql(reference(self.ledger), control.schema.names, self.token)).collect()
        if not counts:
            return None
        done = counts[0].asDict()
        return Merged(done["num_updated_rows"], done["num_deleted_rows"], done["num_inserted_rows"])


def _encodings(rows: Any) -> dict[str, str]:
    """Return the settings that write columns of messages without a dictionary."""
    names = encoding.plain(rows if isinstance(rows, pa.Table) else None)
    return {f"parquet.enable.dictionary#{name}": "false" for name in names}


def _without(live: pa.Table, ids: pa.ChunkedArray) -> pa.Table:
    """Return the live rows that stay as they are."""
    return live.filter(pc.invert(pc.is_in(live["id"], ids.combine_chunks())))


def _remaining(new: pa.Table) -> pa.Table:
    return new.filter(pc.not_equal(new["state"], tables.GONE))


def _fenced(moved: str) -> str:
    """Return the token to write, which for the progress row raises when the ledger moved."""
    return f"CASE WHEN s.id = '{tables.PROGRESS}' AND {moved} THEN {MOVED} ELSE s.token END"


def _merge_sql(ledger: str, columns: list[str], token: str) -> str:
    fenced, absent = _fenced(f"NOT (t.token <=> '{token}')"), _fenced("true")
    update = ", ".join(f"{name} = {fenced if name == 'token' else f's.{name}'}" for name in columns)
    insert = ", ".join(absent if name == "token" else f"s.{name}" for name in columns)
    return (
        f"MERGE INTO {ledger} t USING {SOURCE} s ON t.{tables.live_states(columns)} AND t.id = s.id "
        f"WHEN MATCHED AND s.state = '{tables.GONE}' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({insert})"
    )
