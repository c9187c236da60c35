"""What a microbatch may do with rows, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function: TypeAlias = Callable[[pa.Table], pa.Table]


class Rows(Protocol):
    """Rows of a depot, or rows made of them."""

    @property
    def processed_on(self) -> str:
        """Return where the rows are: `driver`, `executors` or `parts`."""

    @property
    def count(self) -> int:
        """Return how many rows there are."""

    def versions(self) -> dict[int, int]:
        """Return how many rows each depot version has."""

    def map(self, function: Function, schema: pa.Schema) -> Rows:
        """Return the results of a function on each part of the rows, computed where they are."""

    def table(self) -> pa.Table:
        """Bring the rows to this process."""

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame."""
