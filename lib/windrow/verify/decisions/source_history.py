"""The history of each source as its streams see it: its floor, changes of the rules, and flushes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windrow.verify.columns import NONE, Ints
from windrow.verify.decisions.microbatch_history import MicrobatchHistory
from windrow.verify.decisions.reference_model import Change, SourceHistory

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NOBODY = 1 << 62
# The cut of a flush is just after the last message of the source that it closed. It depends on all streams of the
# source, so it is read from the ledger. It is right if every stream is.
CUTS = """
SELECT closed_in AS microbatch, source, max(last_event_time) + 1 AS cut
FROM batches WHERE close_reason = 'flush' GROUP BY closed_in, source
"""
FLUSHED = "SELECT microbatch, source, flushed_at FROM clocks WHERE flushed_at IS NOT NULL"
HEIGHTS = """
SELECT source, list(microbatch ORDER BY microbatch, version), list(height ORDER BY microbatch, version)
FROM moves GROUP BY source
"""


def source_histories(connection: DuckDBPyConnection, history: MicrobatchHistory) -> dict[str, SourceHistory]:
    """Return the history of each source."""
    cuts, flushed = (
        {(microbatch, source): at for microbatch, source, at in connection.sql(query).fetchall()}
        for query in (CUTS, FLUSHED)
    )
    changed = [change for change in history.changes() if change > history.gone]
    raised = history.raised.tolist()
    found = {}
    for source, reached_in, heights in connection.sql(HEIGHTS).fetchall():
        at = np.array(changed, np.int64)
        before, after = (_floors(history, np.array(reached_in), np.array(heights), one) for one in (at - 1, at))
        changes = []
        for place, microbatch in enumerate(changed):
            floor, flush = before[place], history.kinds[microbatch] == "flush"
            now = max(floor, flushed.get((microbatch, source), NONE)) if flush else after[place]
            changes.append(Change(microbatch, floor, now, flush, cuts.get((microbatch, source), NOBODY)))
        found[source] = SourceHistory(history.rules, raised, heights, reached_in, changes, heights[-1] + raised[-1])
    return found


def _floors(history: MicrobatchHistory, reached_in: Ints, heights: Ints, microbatch: Ints) -> list[int]:
    """Return the floors of a source after microbatches; a floor before the first is lower than any other."""
    place = np.searchsorted(reached_in, microbatch, side="right") - 1
    floors: list[int] = (np.append(heights, NONE)[place] + history.raised[microbatch]).tolist()
    return floors
