"""Derive the batches of the chosen streams from their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.verify.decisions.reference_model import DERIVED, Batch, Messages, SourceHistory, Stream

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CHUNK = 200_000  # messages between two reports of progress
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
    columns = np.stack([found[name] for name in Messages.__slots__])
    begins = np.flatnonzero(np.diff(stream, prepend=-1)).tolist()
    batches, batch_of, told = list[Batch](), list[int](), 0
    for begin, end in pairwise([*begins, row.size]):
        number = int(stream[begin])
        messages = Messages(*columns[:, begin:end].tolist())
        batch_of += Stream(number, messages, sources[source_of[number]], batches).derive()
        if end - told >= CHUNK:
            progress(end, row.size)
            told = end
    connection.register("derived", _table(batches))
    connection.register("placed", pa.table({"row": row, "batch": pa.array(batch_of, pa.int64())}))


def _table(batches: list[Batch]) -> pa.Table:
    """Return the derived batches with their numbers."""
    columns = [pa.array([batch[at] for batch in batches], type_) for at, type_ in enumerate(DERIVED.types)]
    return pa.table(columns, DERIVED).append_column("batch", pa.array(np.arange(len(batches))))
