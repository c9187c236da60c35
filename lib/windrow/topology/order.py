"""All messages and events of a microbatch in one order: by processing time, then by the priority of their depots.

The processing time of a message is that of the batcher: its stamp (`received_at`), or the floor of its source if that
is later. Each depot has its own floors. A message that moves no clock, because it is invalid or stamped ahead of the
wall clock, has no processing time. An event comes at the time at which it was due, before messages of that time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME
from windrow.model.clock import UNKNOWN
from windrow.model.floors import FloorsByVersion, times_of
from windrow.model.messages import times

ADDED = pa.schema([("depot", pa.string()), ("priority", pa.int64()), ("processing_time", TIME), ("event", pa.string())])
FIRST = np.iinfo(np.int64).min  # the priority of events
ORDER = [
    "processing_time",
    "priority",
    "event",
    "depot",
    "version",
    "sequence",
    "event_time",
    "source",
    "key",
    "type",
    "payload",
]


def with_processing_times(rows: pa.Table, floors: FloorsByVersion, latest: int, depot: str, priority: int) -> pa.Table:
    """Return the messages of a depot with its name, its priority and their processing times."""
    result = times_of(rows, floors, latest)
    named, first = pa.repeat(depot, rows.num_rows), pa.repeat(priority, rows.num_rows)
    added = [named, first, times(result, result != UNKNOWN), pa.nulls(rows.num_rows)]
    for field, column in zip(ADDED, added, strict=True):
        rows = rows.append_column(field, column.cast(field.type))
    return rows


def event_rows(name: str, due: pa.Array, keys: pa.Table) -> pa.Table:
    """Return rows of an event, or of a timer with keys, that was due at some times: the columns that they fill.

    The key of a row is the text of its key column, or of several joined by slashes.
    """
    parts = [column.cast(pa.string()).combine_chunks() for column in keys.columns]
    key = pc.binary_join_element_wise(*parts, "/") if parts else pa.nulls(len(due), pa.string())
    columns = {"key": key, "event": pa.repeat(name, len(due)), "priority": pa.repeat(FIRST, len(due))}
    return pa.table(columns | dict.fromkeys(("event_time", "received_at", "processing_time"), due))


def merge_in_order(parts: list[pa.Table]) -> pa.Table:
    """Return messages and events in order, those without a processing time last."""
    rows = pa.concat_tables(parts, promote_options="permissive")
    return rows.sort_by([(name, "ascending") for name in ORDER])
