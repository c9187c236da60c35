"""Read the open batches of a ledger with Spark, all of one table version.

A `BatchFilter` selects the batches of the streams with messages and those whose windows have ended. Spark joins the
batches with small frames of streams and clocks. Before the join, a condition on ids and times lets Delta skip files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.columnar.arrow import boolean_array, combine_chunks, conform, filter_rows, to_plain_types
from windrow.delta.table import unreadable_error
from windrow.engine.spark.engine import SparkEngine
from windrow.errors import InternalError
from windrow.ledger.live import Due, OpenRows, last_window_ends
from windrow.ledger.strategy import GOOD_PART
from windrow.ledger.versions import latest, latest_frame, latest_whole
from windrow.model import clock, tables
from windrow.model.floors import Floors
from windrow.model.id_filter import MANY, IdFilter
from windrow.model.messages import microseconds, times
from windrow.model.open_batches import MESSAGES, SCHEMA, BatchFilter, OpenBatchTotals, with_messages
from windrow.model.tables import DELETED, WHOLE
from windrow.rows.frame import frame_of
from windrow.rows.session_settings import FEW_ROWS

# A cached query would answer for any version of a table; no cache has the file path of a row.
UNCACHED = "_metadata.file_path IS NOT NULL"
VERSION_COLUMNS = ("revision", DELETED, "folded")
OPEN = f"state = '{tables.OPEN}'"


@dataclass(slots=True)
class SparkOpen(OpenRows):
    """The open rows of the ledger `reference` at a version; `rows` are all open batches if the driver has them.

    Batches whose messages the driver has not read are in `rows` without them. `whole` has all rows of each state of a
    topology that the driver has read completely. The engine is asked for the session each time: rows that were primed
    before `foreachBatch` are read inside it, where another session is at work.
    """

    engine: SparkEngine
    reference: str
    version: int
    schema: pa.Schema
    rows: pa.Table | None = None
    whole: dict[str, pa.Table] = field(default_factory=dict)
    _counted: tuple[BatchFilter, OpenBatchTotals] | None = None

    @property
    def session(self) -> SparkSession:
        """Return the session at work."""
        # guard: session-at-work
        return self.engine.session_at_work

    def batches(self, batch_filter: BatchFilter | None) -> pa.Table:
        """Bring open batches that match to the driver, with messages if they can change; None: all, with messages."""
        if self.rows is None or (batch_filter is None and not self._complete):
            batches = latest_whole(self._collect(self.frame(batch_filter)))
            if batch_filter is None:
                self.rows = batches
            return batches
        if batch_filter is None:
            return self.rows
        batches, changing = batch_filter.needed(self.rows)
        unread = pc.and_(boolean_array(changing), pc.is_null(batches[MESSAGES]))
        ids = combine_chunks(filter_rows(batches, unread)["id"])
        return self._with_messages(batches, ids) if len(ids) else batches

    def read_headers(self) -> None:
        """Bring all open batches without their messages to the driver, unless it has them."""
        if self.rows is None:
            self.rows = latest(
                self._collect(self._versions(*(name for name in tables.BATCH_COLUMNS if name != MESSAGES)))
            )

    def needed_messages(self, batch_filter: BatchFilter) -> int:
        """Count the messages of the open batches that can change, or of all that match if headers are not here."""
        if self.rows is None:
            return self.count(batch_filter).total[1]
        batches, changing = batch_filter.needed(self.rows)
        return int(pc.sum(filter_rows(batches, boolean_array(changing))["message_count"]).as_py() or 0)

    @property
    def _complete(self) -> bool:
        """Tell whether the driver has all open batches with their messages."""
        return self.rows is not None and not self.rows[MESSAGES].null_count

    def _with_messages(self, batches: pa.Table, ids: pa.Array) -> pa.Table:
        """Read the messages of some batches, and return all batches."""
        versions = self._versions("id", MESSAGES)
        read = latest_whole(collect_rows(matching(versions, IdFilter(ids)), self.reference))
        at = pc.index_in(batches["id"], combine_chunks(read["id"]))
        type_ = batches.schema.field(MESSAGES).type
        return with_messages(batches, pc.coalesce(batches[MESSAGES], read[MESSAGES].take(at).cast(type_)))

    def of_state(self, state: str, columns: pa.Schema, id_filter: IdFilter | None = None) -> pa.Table:
        """Bring the rows of a topology's state to the driver: all, or those that match and perhaps others.

        For many ids, it reads all rows unless there are many more rows than ids: a query by ids takes longer.
        """
        if state in self.whole:
            return self.whole[state]
        frame = self._versions_of_state(state, columns)
        if id_filter is None:
            self.whole[state] = _of_state(collect_rows(frame, self.reference), columns)
            return self.whole[state]
        if len(id_filter.ids) > FEW_ROWS:
            most = len(id_filter.ids) * GOOD_PART
            versions = collect_rows(frame.limit(most + 1), self.reference)
            if versions.num_rows <= most:
                self.whole[state] = _of_state(versions, columns)
                return self.whole[state]
        return _of_state(collect_rows(matching(frame, id_filter), self.reference), columns)

    def frame_of_state(self, state: str, columns: pa.Schema, id_filter: IdFilter | None = None) -> DataFrame:
        """Return the `id` and the columns of the rows of a topology's state, all or those that match."""
        versions = self._versions_of_state(state, columns)
        return latest_frame(versions if id_filter is None else matching(versions, id_filter))

    def due(self, state: str, columns: pa.Schema, until: int) -> Due:
        """Bring the rows of a topology's state that are due at a time (microseconds), and the time of the next one."""
        rows = self.frame_of_state(state, columns)
        due = collect_rows(rows.where(F.col("due") <= _time(until)), self.reference)
        later = collect_rows(rows.where(F.col("due") > _time(until)).agg(F.min("due").alias("due")), self.reference)
        schema = pa.schema([pa.field("id", pa.string()), *columns])
        return Due(due.select(schema.names).cast(schema).combine_chunks(), later["due"].cast(pa.int64())[0].as_py())

    def _versions_of_state(self, state: str, columns: pa.Schema) -> DataFrame:
        names = ", ".join(f"`{name}`" for name in ["id", *columns.names, *VERSION_COLUMNS])
        return self.session.sql(
            f"SELECT {names} FROM {self.reference} VERSION AS OF {self.version} WHERE state = '{state}' AND {UNCACHED}"
        )

    def passed_window_ends(self, passed: Floors) -> Floors:
        """Return, by source, the last end of an open window that the source's clock has passed."""
        if self.rows is not None:
            return last_window_ends(self.rows, passed)
        until = int(np.max(passed.floor, initial=clock.UNKNOWN))
        batches = self._live("source", "window_end").where(F.col("window_end") <= _time(until))
        batches = batches.join(self._clocks(passed), "source").where("window_end <= passed")
        return self._floors(batches.groupBy("source").agg(F.max("window_end")))

    def last_event_times(self, passed: Floors) -> Floors:
        """Return, by source, the last event time in open batches whose windows the clock has not passed."""
        batches = self._live("source", "window_end", "last_event_time")
        batches = batches.join(self._clocks(passed), "source", "left")
        left = batches.where("passed IS NULL OR window_end > passed")
        return self._floors(left.groupBy("source").agg(F.max("last_event_time")))

    def count(self, batch_filter: BatchFilter, streams: DataFrame | None = None) -> OpenBatchTotals:
        """Count the open batches that match, by source."""
        if self._counted is None or self._counted[0] is not batch_filter:
            frame = self.frame(batch_filter, streams, ("source", "window_end", "message_count", "bytes"))
            sums = [F.count("*"), F.sum("message_count"), F.sum("bytes"), F.min("window_end")]
            counts = to_plain_types(frame.groupBy("source").agg(*sums).toArrow()).rename_columns(SCHEMA.names)
            self._counted = batch_filter, OpenBatchTotals.of(counts.cast(SCHEMA))
        return self._counted[1]

    def frame(
        self, batch_filter: BatchFilter | None, streams: DataFrame | None = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """Return the versions of the open batches that match, all for None, in the columns that an open batch fills.

        With `columns`, return the batches themselves. `streams` are the `source, key` of the messages if the driver
        does not know them. Windows only shrink, and tombstones have stream and window, so if an earlier version
        matches, the latest one does too; and with it all versions that a batch consists of, which have the same window.
        """
        batches = self._versions(*tables.BATCH_COLUMNS) if columns is None else self._live(*{*columns, "source", "key"})
        if batch_filter is None:
            return batches
        columns, result = batches.columns, batch_filter.streams
        if result is not None:
            batches = batches.where(_may_hold(result, batch_filter.ends_before))
            streams = frame_of(self.session, result.select(["source", "key"]))
        if streams is None:
            raise InternalError("the streams of what arrived are known to the driver or to the executors")
        touched = F.broadcast(streams.distinct()) if result is not None else streams.distinct()
        joined = batches.join(touched.withColumn("touched", F.lit(True)), ["source", "key"], "left")
        joined = joined.join(self._clocks(batch_filter.ends_before), "source", "left")
        return joined.where("touched OR window_end <= passed").select(columns)

    def _live(self, *columns: str) -> DataFrame:
        """Return columns of the open batches."""
        return latest_frame(self._versions("id", *columns)).drop("id")

    def _versions(self, *columns: str) -> DataFrame:
        """Return columns of the versions of open batches, and those that tell which of them count."""
        named = [*columns, *VERSION_COLUMNS, *([WHOLE] if MESSAGES in columns else [])]
        if self.rows is not None and (self._complete or MESSAGES not in columns):
            return frame_of(self.session, self.rows.select(named))
        return self.session.sql(
            f"SELECT {', '.join(named)} FROM {self.reference} VERSION AS OF {self.version} WHERE {OPEN} AND {UNCACHED}"
        )

    def _clocks(self, passed: Floors) -> DataFrame:
        known = pa.table({"source": passed.source, "passed": times(passed.floor)})
        return F.broadcast(frame_of(self.session, known.filter(pc.greater(known["passed"], EARLIEST))))

    def _floors(self, frame: DataFrame) -> Floors:
        rows = collect_rows(frame.toDF("source", "time"), self.reference)
        return Floors(rows["source"].cast(pa.string()).combine_chunks(), microseconds(rows["time"]))

    def _collect(self, frame: DataFrame) -> pa.Table:
        """Bring rows to the driver, in all columns of the ledger."""
        return conform(collect_rows(frame, self.reference), self.schema).combine_chunks()


def _of_state(versions: pa.Table, columns: pa.Schema) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.string()), *columns])
    return latest(versions).select(schema.names).cast(schema).combine_chunks()


def collect_rows(frame: DataFrame, ledger: str) -> pa.Table:
    """Bring rows of a ledger to the driver. Raises TableUnreadableError."""
    try:
        return to_plain_types(frame.toArrow())
    except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
        raise unreadable_error(ledger, "ledger", error) from error


EARLIEST = times(np.array([-62_135_596_800_000_000]))[0]  # the earliest time in Spark: the year 1


def _time(microseconds_: int) -> Column:
    return F.timestamp_micros(F.lit(max(microseconds_, EARLIEST.value)))


def _may_hold(streams: pa.Table, passed: Floors) -> Column:
    """Return a condition that all matching batches meet, on columns with statistics in Delta's log."""
    latest = int(np.max(passed.floor, initial=clock.UNKNOWN))
    return (F.col("window_end") <= _time(latest)) | _within(IdFilter.of_streams(streams))


def matching(rows: DataFrame, id_filter: IdFilter) -> DataFrame:
    """Return the rows of a table that match; Delta skips files by a condition on their ids."""
    rows = rows.where(_within(id_filter))
    if len(id_filter.ids) <= MANY:
        return rows
    known = F.broadcast(frame_of(rows.sparkSession, pa.table({"id": id_filter.ids})))
    first = rows["id"] if id_filter.components is None else F.substring_index(rows["id"], "/", id_filter.components)
    return rows.join(known, first == known["id"], "left_semi")


def _within(id_filter: IdFilter) -> Column:
    """Return a condition that the selected ids meet; if they are many, other ids meet it too."""
    conditions = [(F.col("id") >= first) & (F.col("id") < stop) for first, stop in id_filter.spans()]
    return reduce(lambda left, right: left | right, conditions, F.lit(False))
