"""Summarise messages on Spark's executors without Python, in half the time of passing each message to it."""

from __future__ import annotations

from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, TimestampType

from windrow.columnar.arrow import to_plain_types
from windrow.model.messages import EARLIEST, INVALID_VALUE, LATEST, REQUIRED, TIMES
from windrow.model.summary import SUMMARY
from windrow.rows.frame import FrameRows


def can_summarise(rows: FrameRows) -> bool:
    """Tell whether the sources are texts and the times are times; what must be converted is left to Python."""
    types = {field.name: field.dataType for field in rows.content.schema}
    return isinstance(types["source"], StringType) and all(isinstance(types[name], TimestampType) for name in TIMES)


def summarise_on_spark(rows: FrameRows, latest: int) -> pa.Table:
    """Return what `model.summary.summarise_messages` returns of messages.

    A source that is not UTF-8 counts as NULL: the step refuses such text before anything is committed.
    """
    valid = [F.col(name).isNotNull() for name in REQUIRED]
    valid += [F.unix_micros(name).between(EARLIEST, LATEST - 1) for name in TIMES]
    valid += [F.col(INVALID_VALUE).isNull()] if INVALID_VALUE in rows.content.columns else []
    moves = reduce(and_, valid) & (F.unix_micros("received_at") <= latest)
    stamp = F.when(moves, F.col("received_at"))
    by = [F.col("version").cast("long").alias("version"), F.try_validate_utf8("source").alias("source")]
    summary = rows.content.groupBy(*by).agg(F.count("*"), F.min(stamp), F.max(stamp))
    return to_plain_types(summary.toArrow()).rename_columns(SUMMARY.names).cast(SUMMARY)
