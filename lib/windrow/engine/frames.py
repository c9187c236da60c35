"""Arrow tables as Spark frames, whole."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of a table as a frame.

    Spark loses the rows after an empty chunk, so there is one chunk; it refuses nested columns without any, and Spark
    Connect tables without rows, so for these the types are given.
    """
    if table.num_rows == 0:
        return session.createDataFrame(table.schema.empty_table(), from_arrow_schema(table.schema))
    return session.createDataFrame(table.combine_chunks())
