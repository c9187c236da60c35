"""The open batches of a ledger as Spark has them: a frame of one table version, of which the driver gets what fits.

A microbatch that needs only some of them says so (`BatchFilter`): those of its streams, and those whose windows have
ended. That becomes a join with small frames of streams and clocks, and before it a condition on ids and times of which
Delta knows for each file whether it can hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.columnar.arrow import plain, text
from windrow.delta.table import unreadable
from windrow.engine.protocol import ended_in
from windrow.engine.spark.frames import frame_of
from windrow.errors import BrokenPromise
from windrow.model import clock, tables
from windrow.model.floors import Floors
from windrow.model.messages import microseconds, times
from windrow.model.open_batches import SCHEMA, OpenBatches
from windrow.model.step import BatchFilter

# What somebody has cached of a table answers queries of it, whatever version that was; nobody caches where rows lie.
UNCACHED = "_metadata.file_path IS NOT NULL"
OPEN = f"state = '{tables.OPEN}'"
RANGES = 50  # of ids that a condition names one by one


@dataclass(slots=True)
class SparkOpen:
    """What is open in the ledger known by `reference`, at a version; `rows` are all of it where the driver has them."""

    session: SparkSession
    reference: str
    version: int
    schema: pa.Schema
    rows: pa.Table | None = None
    _counted: tuple[BatchFilter, OpenBatches] | None = None

    def wanted(self, wanted: BatchFilter | None) -> pa.Table:
        """Bring what is wanted to the driver, all for None; others may come along."""
        if self.rows is not None:
            return self.rows
        found = self._here(self.frame(wanted))
        if wanted is None:
            self.rows = found
        return found

    def of_state(self, state: str) -> pa.Table:
        """Bring the rows of one state of a topology to the driver."""
        if self.rows is not None:
            return self.rows.filter(pc.equal(self.rows["state"], text(state)))
        return self._here(self.frame_of_state(state))

    def frame_of_state(self, state: str) -> DataFrame:
        """Return the rows of one state of a topology."""
        return self._live("*").where(F.col("state") == state)

    def ended(self, passed: Floors) -> Floors:
        """Return the last end of a window that a clock has passed, of the sources that have one."""
        if self.rows is not None:
            return ended_in(self.rows, passed)
        latest = int(np.max(passed.floor, initial=clock.UNKNOWN))
        batches = self._live("source", "window_end").where(F.col("window_end") <= _time(latest))
        batches = batches.join(self._clocks(passed), "source").where("window_end <= passed")
        return self._floors(batches.groupBy("source").agg(F.max("window_end")))

    def last_event_times(self, passed: Floors) -> Floors:
        """Return the last event time in the open batches of each source whose windows its clock has not passed."""
        batches = self._live("source", "window_end", "last_event_time")
        batches = batches.join(self._clocks(passed), "source", "left")
        left = batches.where("passed IS NULL OR window_end > passed")
        return self._floors(left.groupBy("source").agg(F.max("last_event_time")))

    def counted(self, wanted: BatchFilter, streams: DataFrame | None = None) -> OpenBatches:
        """Count what is wanted, by source."""
        if self._counted is None or self._counted[0] is not wanted:
            frame = self.frame(wanted, streams)
            sums = [F.count("*"), F.sum("message_count"), F.sum("bytes"), F.min("window_end")]
            found = plain(frame.groupBy("source").agg(*sums).toArrow()).rename_columns(SCHEMA.names)
            self._counted = wanted, OpenBatches.of(found.cast(SCHEMA))
        return self._counted[1]

    def frame(self, wanted: BatchFilter | None, streams: DataFrame | None = None) -> DataFrame:
        """Return what is wanted, all for None, in the columns that an open batch fills.

        `streams` has `source, key` of what arrived where the driver does not know them.
        """
        batches = self._live(*(["*"] if self._is_of_topology else tables.BATCH))
        if wanted is None:
            return batches
        columns, found = batches.columns, wanted.streams()
        if found is not None:
            batches = batches.where(_may_hold(found, wanted.passed))
            streams = frame_of(self.session, found.select(["source", "key"]))
        if streams is None:
            raise BrokenPromise("the streams of what arrived are known to the driver or to the executors")
        touched = F.broadcast(streams.distinct()) if found is not None else streams.distinct()
        joined = batches.join(touched.withColumn("touched", F.lit(True)), ["source", "key"], "left")
        joined = joined.join(self._clocks(wanted.passed), "source", "left")
        return joined.where("touched OR window_end <= passed").select(columns)

    @property
    def _is_of_topology(self) -> bool:
        return tables.is_of_topology(self.schema.names)

    def _live(self, *columns: str) -> DataFrame:
        """Return the open rows; control rows are live too, and no open ones."""
        if self.rows is not None:
            return frame_of(self.session, self.rows.select(tables.BATCH)).select(*columns)
        control = ", ".join(map(repr, tables.CONTROL))
        states = f"{tables.live_states(self.schema.names)} AND state NOT IN ({control})"
        return self.session.sql(
            f"SELECT {', '.join(columns)} FROM {self.reference} VERSION AS OF {self.version} "
            f"WHERE {states if self._is_of_topology else OPEN} AND {UNCACHED}"
        )

    def _clocks(self, passed: Floors) -> DataFrame:
        known = pa.table({"source": passed.source, "passed": times(passed.floor)})
        return F.broadcast(frame_of(self.session, known.filter(pc.greater(known["passed"], EARLIEST))))

    def _floors(self, found: DataFrame) -> Floors:
        rows = brought(found.toDF("source", "time"), self.reference)
        return Floors(rows["source"].cast(pa.string()).combine_chunks(), microseconds(rows["time"]))

    def _here(self, frame: DataFrame) -> pa.Table:
        """Bring rows to the driver, in all columns of the ledger."""
        found = brought(frame, self.reference)
        columns: dict[str, object] = {
            name: found[name].cast(self.schema.field(name).type) for name in found.column_names
        }
        return tables.rows(self.schema, columns, found.num_rows).combine_chunks()


def brought(frame: DataFrame, ledger: str) -> pa.Table:
    """Bring rows of a ledger to the driver. Raises TableUnreadable."""
    try:
        return plain(frame.toArrow())
    except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
        raise unreadable(ledger, "ledger", error) from error


EARLIEST = times(np.array([-62_135_596_800_000_000]))[0]  # the first that Spark can have: the year 1


def _time(microseconds_: int) -> Column:
    return F.timestamp_micros(F.lit(max(microseconds_, EARLIEST.value)))


def _may_hold(streams: pa.Table, passed: Floors) -> Column:
    """Return a condition that all wanted batches fulfil, in terms of what Delta knows of a file."""
    latest = int(np.max(passed.floor, initial=clock.UNKNOWN))
    ids = tables.identifier(tables.BATCH_ID, streams["source"].combine_chunks(), streams["key"].combine_chunks())
    # guard: open-batches-of-all-keys
    prefixes = sorted({f"{one}/" for one in ids.to_pylist()})  # in order with the slash: `a-1/` comes before `a/`
    ranges = [(one, one) for one in prefixes] if len(prefixes) <= RANGES else [(prefixes[0], prefixes[-1])]
    return _any([F.col("window_end") <= _time(latest), *(_between(*one) for one in ranges)])


def _between(first: str, last: str) -> Column:
    return (F.col("id") >= first) & (F.col("id") < f"{last[:-1]}0")  # 0 is what comes behind the slash


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)
