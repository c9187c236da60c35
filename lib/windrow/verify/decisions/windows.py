"""Derive the batches of the chosen streams from their messages and from the history of their sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.verify.columns import NONE, Ints
from windrow.verify.decisions.microbatch_history import MicrobatchHistory
from windrow.verify.decisions.reference_model import (
    DERIVED,
    Batch,
    Messages,
    ReferenceStream,
    ReferenceWindow,
    RulesChange,
    SourceHistory,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CHUNK = 200_000  # messages between two reports of progress
NOBODY = 1 << 62
FLUSH_CUTS = "SELECT microbatch, source, cut FROM flush_cuts"
CUTS = "SELECT source, list(microbatch ORDER BY microbatch), list(cut ORDER BY microbatch) FROM cuts GROUP BY source"
FLUSHED = "SELECT microbatch, source, flushed_at FROM clocks WHERE flushed_at IS NOT NULL"
HEIGHTS = """
SELECT source, list(microbatch ORDER BY microbatch, version), list(height ORDER BY microbatch, version)
FROM moves GROUP BY source
"""
# The accepted messages of the chosen streams in the order in which the rules process them. A type is its number in the
# order of their bytes.
ACCEPTED = """
SELECT s.stream, j.row, j.event_time, j.now AS processing_time, t.kind, j.content_bytes AS byte_count, j.microbatch,
    coalesce(j.batch, -1) AS batch
FROM judged AS j JOIN streams AS s ON s.source = j.source AND s.key = j.key
JOIN (SELECT type, row_number() OVER (ORDER BY type) AS kind FROM (SELECT DISTINCT type FROM judged)) AS t
    ON t.type = j.type
WHERE s.chosen AND j.reason IS NULL
ORDER BY s.stream, j.version, j.now, j.sequence NULLS FIRST, j.event_time, j.type
"""
SOURCES = """
SELECT DISTINCT s.stream, s.source FROM judged AS j JOIN streams AS s ON s.source = j.source AND s.key = j.key
WHERE s.chosen AND j.reason IS NULL
"""
# The windows that were open after what is verified, and in which microbatch each changed last.
OPENED = """
SELECT b.row, b.window_start, b.window_end, b.open_reason, b.opened_microbatch, h.microbatch
FROM batches_open AS b ASOF JOIN history_rows AS h ON h.revision <= b.revision
"""


def derive(
    connection: DuckDBPyConnection, sources: Mapping[str, SourceHistory], progress: Callable[[int], None]
) -> int:
    """Derive the batches of the chosen streams of a part, as `derived`, and the batch of each message, as `placed`.

    `progress` is called with the messages done; returns how many they are.
    """
    columns_of = connection.sql(ACCEPTED).fetchnumpy()
    source_of = dict(connection.sql(SOURCES).fetchall())
    opened = {place: ReferenceWindow(*window) for place, *window in connection.sql(OPENED).fetchall()}
    stream, row, batch = columns_of["stream"], columns_of["row"], columns_of["batch"]
    columns = np.stack([columns_of.pop(name) for name in Messages.__dataclass_fields__])
    begins = np.flatnonzero(np.diff(stream, prepend=-1)).tolist()
    batches, batch_of, reported = list[Batch](), list[int](), 0
    for start, end in pairwise([*begins, row.size]):
        number = int(stream[start])
        messages = Messages(*columns[:, start:end].tolist())
        batch_of_row = batch[start:end]
        windows = [opened[place] for place in batch_of_row[batch_of_row >= 0].tolist()]
        batch_of += ReferenceStream(number, messages, sources[source_of[number]], batches, windows).derive()
        if end - reported >= CHUNK:
            progress(end)
            reported = end
    connection.register("derived", _table(batches))
    connection.register("placed", pa.table({"row": row, "batch": pa.array(batch_of, pa.int64())}))
    return int(row.size)


def _table(batches: list[Batch]) -> pa.Table:
    """Return the derived batches with their numbers."""
    columns = [pa.array([batch[at] for batch in batches], type_) for at, type_ in enumerate(DERIVED.types)]
    return pa.table(columns, DERIVED).append_column("batch", pa.array(np.arange(len(batches))))


def source_histories(connection: DuckDBPyConnection, history: MicrobatchHistory) -> dict[str, SourceHistory]:
    """Return the history of each source as its streams see it: its floor, changes of the rules, and flushes."""
    cuts, flushed = (
        {(microbatch, source): at for microbatch, source, at in connection.sql(query).fetchall()}
        for query in (FLUSH_CUTS, FLUSHED)
    )
    calendar: dict[str, list[list[int]]] = {source: lists for source, *lists in connection.sql(CUTS).fetchall()}
    changed = [change for change in history.changes() if change > history.gone]
    raised = history.raised.tolist()
    histories = {}
    for source, reached_in, heights in connection.sql(HEIGHTS).fetchall():
        at = np.array(changed, np.int64)
        before, after = (_floors(history, np.array(reached_in), np.array(heights), version) for version in (at - 1, at))
        changes = []
        for place, microbatch in enumerate(changed):
            floor, flush = before[place], history.kinds[microbatch] == "flush"
            now = max(floor, flushed.get((microbatch, source), NONE)) if flush else after[place]
            changes.append(RulesChange(microbatch, floor, now, flush, cuts.get((microbatch, source), NOBODY)))
        cut_in, at_cut = calendar.get(source, [[], []])
        heard = history.rules, raised, heights, reached_in, changes, heights[-1] + raised[-1]
        histories[source] = SourceHistory(*heard, cut_in, at_cut, history.verified)
    return histories


def _floors(history: MicrobatchHistory, reached_in: Ints, heights: Ints, microbatch: Ints) -> list[int]:
    """Return the floors of a source after microbatches; a floor before the first is lower than any other."""
    place = np.searchsorted(reached_in, microbatch, side="right") - 1
    floors: list[int] = (np.append(heights, NONE)[place] + history.raised[microbatch]).tolist()
    return floors
