"""Rows in an Arrow table of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.commits import VERSION
from windrow.rows.rows import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The rows of an Arrow table."""

    content: pa.Table
    processed_on: str = "driver"

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return int(self.content.num_rows)

    def versions(self) -> dict[int, int]:
        """Return how many rows each depot version has."""
        counted = pc.value_counts(version_of(self.content))
        return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))

    def map(self, function: Function, schema: pa.Schema) -> ArrowRows:
        """Return the result of a function on the rows."""
        return ArrowRows(function(self.content))

    def table(self) -> pa.Table:
        """Return the rows."""
        return self.content

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame."""
        from windrow.rows.frame import frame_of

        return frame_of(session, self.content)


def version_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the depot version of each row, message or chunk."""
    return rows[VERSION if VERSION in rows.column_names else "version"]
