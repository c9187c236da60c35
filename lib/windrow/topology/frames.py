"""A state in the hands of a function of Spark's frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windrow.arrow import plain
from windrow.engine.frames import frame_of
from windrow.topology.state import DELETED, State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class FrameState:
    """The rows of a state before the microbatch as a frame, and helpers for what a function returns."""

    def __init__(self, session: SparkSession, state: State, rows: pa.Table) -> None:
        """Hold the rows, in the columns of the state."""
        self._state = state
        self.rows: DataFrame = frame_of(session, rows)

    def upsert(self, new: DataFrame, **columns: Column) -> DataFrame:
        """Return rows to write: for each row of `new`, by key, the values that it has.

        A value given as an expression is computed over `new` joined with the rows as they were, `old` (NULL where
        there was none): `count=F.coalesce("old.count", F.lit(0)) + F.col("new.count")`. Raises TopologyRefused for a
        name that is no value.
        """
        self._state.require_values(columns)
        keys = self._state.keys.names
        same = [F.col(f"old.`{name}`") == F.col(f"new.`{name}`") for name in keys]
        joined = new.alias("new").join(self.rows.alias("old"), same, "left")
        kept = [F.col(f"new.`{name}`").alias(name) for name in keys]
        return joined.select(
            *kept, *[columns.get(name, F.col(f"new.`{name}`")).alias(name) for name in self._state.values.names]
        )

    def delete(self, keys: DataFrame) -> DataFrame:
        """Return rows that make keys go."""
        nothing = [F.lit(None).alias(name) for name in self._state.values.names]
        return keys.select(*self._state.keys.names, *nothing, F.lit(True).alias(DELETED))


def collected(returned: DataFrame) -> pa.Table:
    """Return the rows that a function of frames returned."""
    return plain(returned.toArrow())
