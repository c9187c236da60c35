"""Derive the batches of the chosen streams from their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.verify.columns import NONE
from windrow.verify.decisions.reference_model import DerivedBatches, Messages, SourceHistory, Stream

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CHUNK = 200_000
# The accepted messages of the chosen streams in the order in which the rules process them. A type is its number in the
# order of their bytes.
ACCEPTED = """
SELECT s.stream, j.row, j.event_time, j.now AS processing_time, t.kind, j.content_bytes AS byte_count, j.microbatch
FROM judged AS j JOIN streams AS s ON s.source = j.source AND s.key = j.key
JOIN (SELECT type, row_number() OVER (ORDER BY type) AS kind FROM (SELECT DISTINCT type FROM judged)) AS t
    ON t.type = j.type
WHERE s.chosen AND j.reason IS NULL
ORDER BY s.stream, j.version, j.now, j.sequence NULLS FIRST, j.event_time, j.type
"""


def derive(
    connection: DuckDBPyConnection, sources: Mapping[str, SourceHistory], progress: Callable[[int, int], None]
) -> None:
    """Derive the batches of the chosen streams, as `derived`, and the batch of each of their messages, as `placed`.

    `progress` is called with the messages done and all messages.
    """
    found = connection.sql(ACCEPTED).fetchnumpy()
    source_of = dict(connection.sql("SELECT stream, source FROM streams WHERE chosen").fetchall())
    stream, row = found.pop("stream"), found.pop("row")
    begins = np.flatnonzero(np.diff(stream, prepend=-1))
    ends = np.append(begins[1:], row.size)
    batches, first = DerivedBatches([0] * row.size), 0
    while first < begins.size:
        upto = max(int(np.searchsorted(ends, begins[first] + CHUNK, side="right")), first + 1)
        low, high = int(begins[first]), int(ends[upto - 1])
        messages = Messages(**{name: values[low:high].tolist() for name, values in found.items()})
        of_chunk = replace(batches, batch_of=[0] * (high - low))
        for at in range(first, upto):
            number = int(stream[begins[at]])
            one = Stream(number, messages, sources[source_of[number]], of_chunk)
            one.derive(range(int(begins[at]) - low, int(ends[at]) - low))
        batches.batch_of[low:high] = of_chunk.batch_of
        if high - low < row.size:
            progress(high, row.size)
        first = upto
    connection.register("derived", _table(batches))
    connection.register("placed", pa.table({"row": row, "batch": pa.array(batches.batch_of, pa.int64())}))


def _table(batches: DerivedBatches) -> pa.Table:
    """Return the derived batches with their numbers; an open one has neither `closed_at` nor `closed_in`."""
    closed = {name: np.array(getattr(batches, name), np.int64) for name in ("closed_at", "closed_in")}
    columns = {name: pa.array(values, mask=values == NONE) for name, values in closed.items()}
    for name in ("stream", "start", "part", "end", "timeout", "opened_in"):
        columns[name] = pa.array(getattr(batches, name), pa.int64())
    for name in ("opened_by", "close_reason"):
        columns[name] = pa.array(getattr(batches, name), pa.string())
    columns["oversize"] = pa.array(batches.oversize, pa.bool_())
    return pa.table(columns | {"batch": np.arange(len(batches.start))})
