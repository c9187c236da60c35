"""Admission: which messages are rejected before any rule applies, because they are invalid or ahead of the clock.

A message is *invalid* if it lacks a source, key, type or time, if a time lies outside 1678 to 2261 (the range of
readers that count nanoseconds), or if a mapping could not cast one of its values. It is *ahead of the clock* if its
stamp is later than the wall clock plus `max_clock_skew`. Neither kind moves a clock.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, string_array
from windrow.model.messages import EARLIEST, INVALID_VALUE, LATEST, REQUIRED, TIMES, microseconds

# Refused messages: the row in their table, why, and by how much they missed a limit.
REFUSED = pa.schema(
    [
        ("row", pa.int64()), ("reason", pa.string()), ("detail", pa.string()), ("missed_by_us", pa.int64()),
        ("processing_time", TIME),
    ]
)  # fmt: skip


def reject_inadmissible(messages: pa.Table, latest: int) -> pa.Table:
    """Return the messages that are rejected before any rule applies, as `REFUSED`; they have no processing time.

    A message is `invalid`, or `clock_ahead` if its stamp is later than `latest` (wall clock + `max_clock_skew`).
    """
    fault = find_invalid(messages).combine_chunks()
    stamp = microseconds(messages["received_at"])
    bad = fault.is_valid().to_numpy(zero_copy_only=False)
    row = np.flatnonzero(bad | (stamp > latest))
    ahead = ~bad[row]
    columns = [
        pa.array(row),
        string_array(["invalid", "clock_ahead"]).take(pa.array(ahead.astype(np.int8))),
        fault.take(pa.array(row)).cast(pa.string()),
        pa.array(np.where(ahead, stamp[row] - latest, 0)),
        pa.nulls(row.size, TIME),
    ]
    return pa.Table.from_arrays(columns, schema=REFUSED)


def find_invalid(messages: pa.Table) -> pa.ChunkedArray:
    """Return what makes each message invalid (a value that cannot be cast, or its first bad column), or NULL."""
    if _all_good(messages):
        return pa.chunked_array([pa.nulls(messages.num_rows)])
    fault: pa.ChunkedArray = pa.chunked_array([pa.nulls(messages.num_rows, pa.string())])
    if INVALID_VALUE in messages.column_names:
        fault = messages[INVALID_VALUE]
    for name in REQUIRED:
        fault = pc.coalesce(fault, pc.if_else(pc.is_null(messages[name]), f"{name} is NULL", None))
    for name in TIMES:
        value = messages[name].cast(pa.int64())
        outside = pc.or_(pc.less(value, EARLIEST), pc.greater_equal(value, LATEST))
        fault = pc.coalesce(fault, pc.if_else(outside, f"{name} is out of range", None))
    return fault


def _all_good(messages: pa.Table) -> bool:
    if any(messages[name].null_count for name in REQUIRED):
        return False
    if INVALID_VALUE in messages.column_names and messages[INVALID_VALUE].null_count < messages.num_rows:
        return False
    bounds = [pc.min_max(messages[name].cast(pa.int64())).as_py() for name in TIMES] if messages.num_rows else []
    return all(bound["min"] >= EARLIEST and bound["max"] < LATEST for bound in bounds)
