"""All messages of a microbatch in one order: by processing time, then by the priority of their depots.

The processing time of a message is that of the batcher: its stamp (`received_at`), or the floor of its source if that
is later. Each depot has its own floors. A message that moves no clock, because it is invalid or stamped ahead of the
wall clock, has no processing time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import TIME
from windrow.model.admission import refused_before_rules
from windrow.model.floors import FloorsByVersion
from windrow.model.messages import times

ADDED = pa.schema([("depot", pa.string()), ("priority", pa.int64()), ("processing_time", TIME)])
ORDER = [
    "processing_time",
    "priority",
    "depot",
    "version",
    "sequence",
    "event_time",
    "source",
    "key",
    "type",
    "payload",
]


def timed(rows: pa.Table, floors: FloorsByVersion, latest: int, depot: str, priority: int) -> pa.Table:
    """Return the messages of a depot with its name, its priority and their processing times."""
    fit = np.ones(rows.num_rows, np.bool_)
    fit[refused_before_rules(rows, latest)["row"].to_numpy()] = False
    found = np.zeros(rows.num_rows, np.int64)
    found[fit] = floors.processing_times(rows.filter(pa.array(fit)))
    added = [pa.repeat(depot, rows.num_rows), pa.repeat(priority, rows.num_rows), times(found, fit)]
    for field, column in zip(ADDED, added, strict=True):
        rows = rows.append_column(field, column.cast(field.type))
    return rows


def in_order(parts: list[pa.Table]) -> pa.Table:
    """Return the messages of all depots in order, those without a processing time last."""
    rows = pa.concat_tables(parts, promote_options="permissive")
    return rows.sort_by([(name, "ascending") for name in ORDER])
