"""Cut the frames that Spark reads from the depot's change feed into slices of whole versions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField

from windrow.columnar.arrow import to_plain_types
from windrow.model import tables
from windrow.model.commits import CHANGE, COMMITTED_AT, FEED_COLUMNS, VERSION, ListedVersions
from windrow.rows.arrow import ArrowRows
from windrow.rows.frame import FrameRows, PersistedFrame, keep_types
from windrow.settings.settings import Settings
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.depot_changes import refuse_changes, refuse_set_back
from windrow.source.depot_rows import MIGRATED, StateChanges, version_name
from windrow.source.slices import ChunkParser, Slice, slice_of
from windrow.source.spark_text import has_replacement as replacement_in
from windrow.source.text import has_replacement


@dataclass(frozen=True, slots=True)
class SparkArrivals(Arrivals):
    """New versions of the depot in the frame of one `foreachBatch` call."""

    frame: DataFrame
    collected: pa.Table | None
    parsed: PersistedFrame
    has_replacement: bool  # whether a text of a query has U+FFFD
    has_changes: bool  # whether a version in the frame on the executors changed or removed rows

    @classmethod
    def of(
        cls,
        frame: DataFrame,
        listed: ListedVersions,
        counts: Mapping[int, int | None],
        byte_count: Mapping[int, int],
        settings: Settings,
        conversion: Conversion,
        kept: ExitStack,
        persist: bool,
    ) -> SparkArrivals:
        """Collect the frame once if it is small enough for the driver, otherwise leave it to the executors.

        `counts` may reach beyond the frame, whose last version is `last` (None if it has no rows). `kept` releases the
        persisted frames. `foreachBatch` passes a frame as an RDD, which each slice would read whole: it is persisted
        for the executors (`persist`). From a query Spark reads only the versions and columns that it needs.
        """
        known, most = [count for count in counts.values() if count is not None], settings.max_driver_messages
        total = sum(known) if len(known) == len(counts) else frame.count()
        fits = total <= conversion.most_rows(most) and conversion.fits(byte_count)
        here = fits and not conversion.needs_executors(total, sum(byte_count.values()), most)
        feed = _collect(frame) if here else None
        read, parsed = PersistedFrame(), PersistedFrame()
        for cached in (read, parsed):
            kept.callback(cached.release)
        if feed is None:
            frame = read.keep(frame) if persist else frame
            changes = F.max(F.col(CHANGE) != "insert")
            seen = F.lit(False) if persist else replacement_in(frame)
            last, changed, replaced = frame.agg(F.max(VERSION), changes, seen).collect()[0]
        else:
            last, changed, replaced = pc.max(feed[VERSION]).as_py(), False, not persist and has_replacement(feed)
        new = {version: count for version, count in counts.items() if count != 0 and version <= (last or 0)}
        rows = None if feed is None else conversion.new_rows(feed, feed[CHANGE], settings.on_depot_change)
        return cls(
            listed, new, byte_count, settings, conversion, last, frame, rows, parsed, bool(replaced), bool(changed)
        )

    def _slice(self, counts: Mapping[int, int | None]) -> Slice | None:
        to_messages = self.conversion.apply_on(self.frame.sparkSession)
        if self.collected is not None:
            return self._fill_slice(self.collected, counts, to_messages)
        part = self.frame.where(F.col(VERSION).between(min(counts), max(counts)))
        unknown = any(count is None for count in counts.values())
        rows = part.count() if unknown else sum(count or 0 for count in counts.values())
        if rows == 0:
            return None
        read = sum(self.byte_count.get(version, 0) for version in counts)
        if not self.conversion.needs_executors(rows, read, self.settings.max_driver_messages):
            feed = _collect(part)
            new = self.conversion.new_rows(feed, feed[CHANGE], self.settings.on_depot_change)
            missing = unknown and not new.num_rows
            return None if missing else slice_of(self.conversion, ArrowRows(new), counts, to_messages)
        if self.settings.on_depot_change == "error" or self.conversion.state is not None:
            self._refuse(part)
        new_rows = _new_rows(part, self.conversion, rows)
        if self.conversion.verbatim and unknown and new_rows.content.isEmpty():
            return None
        return slice_of(self.conversion, new_rows, counts, to_messages, self._parser(new_rows.content))

    def _parser(self, chunks: DataFrame) -> ChunkParser | None:
        """Return a parser of a raw depot's chunks on the executors."""
        if self.conversion.format is None:
            return None
        from windrow.source.raw_executors import parse_on_executors

        return partial(parse_on_executors, chunks, self.conversion.format, self.conversion, self.parsed)

    def _refuse(self, part: DataFrame) -> None:
        """Raise DepotChangedError for deletions and updates; for a ledger, if it was set back."""
        if self.conversion.of_ledger:
            lost = F.col(CHANGE) != "insert"
            lost = lost | (F.col("kind") == "rollback") if self.settings.on_depot_change == "error" else lost
            back = part.where(F.col("state") == "microbatch").where(lost)
            refuse_set_back(
                to_plain_types(back.select(VERSION).limit(1).toArrow()), self.settings.on_depot_change == "error"
            )
            return
        # guard: executors-depot-unchanged
        if self.has_changes:
            refuse_changes(
                to_plain_types(part.where(F.col(CHANGE) != "insert").select(CHANGE, VERSION).limit(1).toArrow())
            )


def _new_rows(part: DataFrame, conversion: Conversion, count: int) -> FrameRows:
    """Return the new rows of a depot, `count` by its log, on the executors."""
    if conversion.verbatim:
        return FrameRows(_plain_rows(part, conversion), keep_types, count)
    inserted = part.where(F.col(CHANGE) == "insert").withColumn("version", F.col(VERSION)).drop(*FEED_COLUMNS)
    if conversion.format is None:
        return conversion.on_executors(inserted, count)
    from windrow.source.raw_executors import CHUNKS, chunks_in

    return FrameRows(inserted.select(CHUNKS.names), chunks_in, count)


def _plain_rows(part: DataFrame, conversion: Conversion) -> DataFrame:
    """Return the new rows of a depot without messages, with the depot version; for a ledger, batches or a state."""
    new = part.where(F.col(CHANGE) == "insert")
    if conversion.state is not None:
        return _changes(new, conversion.state)
    if conversion.of_ledger:
        new = new.where("state = 'closed'").select(*tables.BATCH_COLUMNS, VERSION)
    names = [name for name in new.columns if name not in FEED_COLUMNS]
    version = F.col(VERSION).cast("long").alias(version_name(names))
    return new.select(*[F.col(f"`{name}`") for name in names], version)


def _changes(added: DataFrame, state: StateChanges) -> DataFrame:
    """Return the rows of a state that versions added; a deleted row has its last values."""
    columns = [_of_any_version(added, state, field) for field in from_arrow_schema(state.columns)]
    version = F.col(VERSION).cast("long").alias(version_name([*state.columns.names, tables.DELETED]))
    deleted = F.coalesce(tables.DELETED, F.lit(False)).alias(tables.DELETED)
    if any(tables.OF_VERSION in name for name in added.columns):
        rules = added.where("state = 'microbatch'").select("rules").distinct().toArrow()
        state.require_key(rules["rules"].to_pylist())
    return added.where(F.col("state") == state.state).select(*columns, deleted, version)


def _of_any_version(added: DataFrame, state: StateChanges, field: StructField) -> Column:
    """Return a column of a state, whichever version of the state wrote a row; a failed cast raises."""
    values = []
    for name in state.stored_names(field.name, added.columns):
        column = F.col(f"`{name}`")
        if added.schema[name].dataType != field.dataType:
            wrong = f"the column {field.name!r} of the state {state.state} had values of another type: {MIGRATED}"
            cast = F.expr(f"try_cast(`{name}` AS {field.dataType.simpleString()})")
            column = F.when(column.isNotNull() & cast.isNull(), F.raise_error(F.lit(wrong))).otherwise(cast)
        values.append(column)
    return F.coalesce(*values).alias(field.name)


def _collect(frame: DataFrame) -> pa.Table:
    """Bring a change feed to the driver, with the change type as a boolean, because text costs as much as a payload."""
    return to_plain_types(frame.withColumn(CHANGE, F.col(CHANGE) == "insert").drop(COMMITTED_AT).toArrow())
