"""Arrow tables as Spark frames, whole; and frames that are kept."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

LARGE = 10_000  # rows, from which a chunk is worth a task


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of a table as a frame.

    Spark loses the rows after an empty chunk, so there is none; it refuses nested columns without any, and Spark
    Connect tables without rows, so for these the types are given.
    """
    if table.num_rows == 0:
        return session.createDataFrame(table.schema.empty_table(), from_arrow_schema(table.schema))
    # guard: empty-chunk
    return session.createDataFrame(_in_large_chunks(table))


def _in_large_chunks(table: pa.Table) -> pa.Table:
    """Return the rows with what lies in large chunks as it lies, and all others in one chunk behind."""
    batches = table.to_batches()
    small = [batch for batch in batches if batch.num_rows < LARGE]
    together = pa.Table.from_batches(small, table.schema).combine_chunks()
    return pa.Table.from_batches([*(batch for batch in batches if batch.num_rows >= LARGE), *together.to_batches()])


class Kept:
    """A frame that is kept on the disks of the executors, where Spark does that, until another one is or none."""

    def __init__(self) -> None:
        """Keep none."""
        self._frame: DataFrame | None = None

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep a frame, and no other any longer."""
        self.release()
        with suppress(PySparkException):  # serverless keeps nothing
            frame.persist(StorageLevel.DISK_ONLY)
            self._frame = frame
        return frame

    def release(self) -> None:
        """Let go what is kept."""
        frame, self._frame = self._frame, None
        if frame is not None:
            with suppress(PySparkException):
                frame.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
