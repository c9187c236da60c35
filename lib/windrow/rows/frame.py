"""Turn Arrow tables into Spark frames without losing rows, and persist frames."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

LARGE = 10_000  # rows of a chunk that is worth a Spark task
IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)  # before 4.2 always


def schema_of(frame: DataFrame) -> pa.Schema:
    """Return the columns of a frame as Arrow types; timestamps are in UTC."""
    return to_arrow_schema(frame.schema, **IN_UTC)


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of a table as a frame.

    Spark loses the rows after an empty chunk, so empty chunks are removed. It refuses nested columns without chunks,
    and Spark Connect refuses tables without rows, so an empty table is created with explicit types.
    """
    if table.num_rows == 0:
        return session.createDataFrame(table.schema.empty_table(), from_arrow_schema(table.schema))
    batches = table.to_batches()
    large = [batch for batch in batches if batch.num_rows >= LARGE]
    small = pa.Table.from_batches([batch for batch in batches if batch.num_rows < LARGE], table.schema)
    # guard: empty-chunk
    table = pa.Table.from_batches([*large, *small.combine_chunks().to_batches()])
    return session.createDataFrame(table)


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

    def release(self) -> None:
        """Release the frame."""
        frame, self._frame = self._frame, None
        if frame is not None:
            with suppress(PySparkException):
                frame.unpersist()
