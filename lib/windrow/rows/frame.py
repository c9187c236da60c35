"""Rows in a frame on Spark's executors; turn Arrow tables into frames without losing rows, and persist frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from windrow.columnar.arrow import to_plain_types
from windrow.model.commits import VERSION
from windrow.rows.rows import Function

Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
LARGE = 10_000  # rows of a chunk that is worth a Spark task
IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)  # Spark before 4.2 always uses UTC


def schema_of(frame: DataFrame) -> pa.Schema:
    """Return the columns of a frame as Arrow types; timestamps are in UTC."""
    return to_arrow_schema(frame.schema, **IN_UTC)


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of a table as a frame.

    Spark loses the rows after an empty chunk, so empty chunks are removed. It refuses nested columns without chunks,
    and Spark Connect refuses tables without rows, so an empty table is created with explicit types. It fails with a
    column of lists that begins within a longer array, so that column is copied.
    """
    if table.num_rows == 0:
        return session.createDataFrame(table.schema.empty_table(), from_arrow_schema(table.schema))
    batches = table.to_batches()
    large = [_apart(batch) for batch in batches if batch.num_rows >= LARGE]
    small = pa.Table.from_batches([batch for batch in batches if batch.num_rows < LARGE], table.schema)
    # guard: empty-chunk
    table = pa.Table.from_batches([*large, *small.combine_chunks().to_batches()])
    return session.createDataFrame(table)


def _apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose nested columns are arrays of their own."""
    # guard: sliced-lists
    copied = [pa.types.is_nested(column.type) and column.offset > 0 for column in batch.columns]
    columns = [
        pa.concat_arrays([column, column[:0]]) if copy else column
        for column, copy in zip(batch.columns, copied, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The rows of a frame; `conform` casts what Spark returns to the types of the rows.

    `known` is how many rows there are, None if Spark has to count them.
    """

    content: DataFrame
    conform: Function
    known: int | None = None
    processed_on: str = "executors"

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return self.content.count() if self.known is None else self.known

    def versions(self) -> dict[int, int]:
        """Return how many rows each depot version has."""
        version = F.col(VERSION if VERSION in self.content.columns else "version").cast("long")
        counted = to_plain_types(self.content.groupBy(version.alias("version")).count().toArrow())
        return dict(zip(counted["version"].to_pylist(), counted["count"].to_pylist(), strict=True))

    def map(self, function: Function, schema: pa.Schema) -> FrameRows:
        """Return the results of a function on each part of the rows, on the executors."""
        mapped = self.content.mapInArrow(_each(function, self.conform), from_arrow_schema(schema))
        return FrameRows(mapped, partial(_cast, schema))

    def table(self) -> pa.Table:
        """Bring the rows to the driver."""
        return self.conform(to_plain_types(self.content.toArrow()))

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows."""
        return self.content


def all_rows_at_once(function: Function) -> Batches:
    """Return a task that passes all of its rows to a function at once, and does nothing without rows."""

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if rows := list(batches):
            yield from function(to_plain_types(pa.Table.from_batches(rows))).combine_chunks().to_batches()

    return once


def _each(function: Function, conform: Function) -> Batches:
    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from function(conform(to_plain_types(pa.table(batch)))).to_batches()

    return each


def keep_types(rows: pa.Table) -> pa.Table:
    """Return rows in the types that Spark gave them."""
    return rows


def _cast(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    return rows.select(schema.names).cast(schema)


class PersistedFrame:
    """Persists one frame at a time on the executors' disks, if Spark supports that."""

    def __init__(self) -> None:
        """Start without a frame."""
        self._frame: DataFrame | None = None

    def keep(self, frame: DataFrame) -> DataFrame:
        """Persist a frame and release the previous one."""
        self.release()
        with suppress(PySparkException):  # serverless cannot persist
            frame.persist(StorageLevel.DISK_ONLY)
            self._frame = frame
        return frame

    @property
    def is_kept(self) -> bool:
        """Tell whether a frame is persisted."""
        return self._frame is not None

    def release(self) -> None:
        """Release the frame."""
        frame, self._frame = self._frame, None
        if frame is not None:
            with suppress(PySparkException):
                frame.unpersist()
