"""Compare the clocks and rules that the history recorded with those that follow from the log and the rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import numbers, select_rows
from windrow.verify.decisions.microbatch_history import MicrobatchHistory
from windrow.verify.decisions.relations import differing_pairs
from windrow.verify.decisions.windows import FLUSH_CUTS, FLUSHED
from windrow.verify.report import Difference, difference_in_rows
from windrow.verify.snapshot import LedgerContents
from windrow.verify.tables import execute

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TICKED = """
SELECT c.microbatch, c.source, c.floor, m.raised
FROM clocks AS c JOIN microbatches AS m ON m.microbatch = c.microbatch WHERE m.readable AND m.kind = 'tick'
"""
# The clocks that microbatches must record. Messages move clock and floor to the greatest processing time. A larger
# `max_delay` raises the floor of every known source. A tick raises lower floors of known sources, as it recorded. A
# flush raises the floor to its time, or to cut + max_delay if that is later. Each has the cut of its source.
MOVED = f"""
SELECT microbatch, source, max(height + raised) AS clock, max(height + raised) AS floor
FROM moves WHERE sent GROUP BY microbatch, source
UNION ALL
SELECT r.microbatch, r.source, s.clock, s.height + r.raised
FROM (
    SELECT m.*, k.source
    FROM (SELECT *, raised > lag(raised) OVER (ORDER BY microbatch) AS raises FROM microbatches) AS m
    CROSS JOIN (SELECT DISTINCT source FROM moves) AS k WHERE m.raises AND m.readable
) AS r ASOF JOIN states AS s ON s.source = r.source AND s.microbatch < r.microbatch
UNION ALL
SELECT t.microbatch, t.source, s.clock, t.floor
FROM ({TICKED}) AS t ASOF JOIN states AS s ON s.source = t.source AND s.microbatch < t.microbatch
WHERE s.clock IS NOT NULL AND t.floor > s.height + t.raised
UNION ALL
SELECT f.microbatch, f.source, s.clock, f.ends
FROM (
    SELECT e.microbatch, e.source, m.raised, max(e.ends) AS ends
    FROM (
        SELECT microbatch, source, flushed_at AS ends FROM ({FLUSHED})
        UNION ALL
        SELECT c.microbatch, c.source, c.cut + m.max_delay
        FROM ({FLUSH_CUTS}) AS c JOIN microbatches AS m ON m.microbatch = c.microbatch
    ) AS e JOIN microbatches AS m ON m.microbatch = e.microbatch
    WHERE m.readable AND m.kind = 'flush' GROUP BY e.microbatch, e.source, m.raised
) AS f ASOF JOIN states AS s ON s.source = f.source AND s.microbatch < f.microbatch
WHERE f.ends > s.height + f.raised
UNION ALL
SELECT c.microbatch, c.source, s.clock, s.height + c.raised
FROM (
    SELECT c.microbatch, c.source, m.raised FROM cuts AS c JOIN microbatches AS m ON m.microbatch = c.microbatch
    WHERE m.readable
) AS c ASOF JOIN states AS s ON s.source = c.source AND s.microbatch < c.microbatch
"""
EXPECTED = f"""
SELECT m.microbatch, m.source, m.clock, m.floor, c.cut
FROM (SELECT microbatch, source, max(clock) AS clock, max(floor) AS floor FROM ({MOVED}) GROUP BY ALL) AS m
ASOF LEFT JOIN cuts AS c ON c.source = m.source AND c.microbatch <= m.microbatch
"""
RECORDED = """
SELECT c.microbatch, c.source, c.clock, c.floor, c.cut
FROM clocks AS c JOIN microbatches AS m ON m.microbatch = c.microbatch WHERE m.readable
"""
# Ticks that did not raise each floor to the greatest timeout that its source closed, with the floors that they raised.
OTHERWISE = f"""
SELECT m.microbatch, m.kind, m.raised, min(t.floor) AS low, max(t.floor) AS high
FROM microbatches AS m LEFT JOIN ({TICKED}) AS t ON t.microbatch = m.microbatch
LEFT JOIN timeouts AS b ON b.closed_microbatch = t.microbatch AND b.source = t.source
WHERE m.kind = 'tick' AND m.readable
GROUP BY m.microbatch, m.kind, m.raised HAVING NOT coalesce(bool_and(coalesce(b.timeout_at = t.floor, false)), false)
"""
# Of these, the ticks that did not raise every lower floor to one time either.
TICKS = f"""
WITH otherwise AS ({OTHERWISE}), lower AS (
    SELECT o.microbatch
    FROM (SELECT o.*, k.source FROM otherwise AS o CROSS JOIN (SELECT DISTINCT source FROM moves) AS k) AS o
    ASOF JOIN states AS s ON s.source = o.source AND s.microbatch <= o.microbatch
    WHERE s.height + o.raised < o.low
)
SELECT microbatch, kind FROM otherwise
WHERE NOT coalesce(low = high, false) OR microbatch IN (SELECT microbatch FROM lower)
ORDER BY microbatch
"""
# In a replay the bound is that of the replayed run, so the start of the microbatch does not determine it.
OTHERS_AHEAD = """
SELECT r.id, r.reason, r.missed_by_us, r.floor_raise_us, r.source, r.key, r.type, r.event_time, r.received_at,
    r.processing_time, r.microbatch
FROM rejected AS r LEFT JOIN ahead AS a ON a.microbatch = r.microbatch
WHERE r.reason = 'clock_ahead' AND r.received_at - r.missed_by_us IS DISTINCT FROM a.latest
ORDER BY r.id
"""


def check_clocks(connection: DuckDBPyConnection, history: MicrobatchHistory) -> Iterator[Difference]:
    """Check that each microbatch recorded the clocks, floors and cuts that follow from log, ticks and rules."""
    by_log, by_ledger = differing_pairs(connection, EXPECTED, RECORDED, ["microbatch", "source"])
    microbatch, source = (pc.coalesce(by_log[name], by_ledger[name]) for name in ("microbatch", "source"))
    rows = pa.table(
        {
            "microbatch": microbatch,
            "kind": pa.array([history.kinds[number] for number in microbatch.to_pylist()], pa.string()),
            "source": source,
            "clock by the log": by_log["clock"],
            "floor by the log": by_log["floor"],
            "cut by the log": by_log["cut"],
            "recorded clock": by_ledger["clock"],
            "recorded floor": by_ledger["floor"],
            "recorded cut": by_ledger["cut"],
        }
    )
    expects = "clock, floor and cut of each source, as the log and the rules move them"
    yield from difference_in_rows("clocks by the log", expects, rows, "clocks recorded otherwise")


def check_ticks(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that a tick raises the floor of a source to the greatest timeout it closes, or all floors to one time."""
    expects = "floors at the greatest timeout that a source closed, or all at one time"
    yield from difference_in_rows("ticks", expects, execute(connection, TICKS), "ticks that raised floors otherwise")


def check_rules(snapshot: LedgerContents, history: MicrobatchHistory) -> Iterator[Difference]:
    """Check that the rules change only in a microbatch of kind `rules`."""
    changes = [change for change in history.changes() if change > 1 and history.kinds[change] != "rules"]
    wrong = [change for change in changes if history.rules[change] != history.rules[change - 1]]
    names = ["microbatch", "kind", "rules"]
    rows = select_rows(snapshot.history, np.isin(numbers(snapshot.history["microbatch"]), wrong), names)
    expects = "other rules only from a microbatch of kind rules on"
    yield from difference_in_rows("rules", expects, rows, "microbatches with other rules")


def check_ahead(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that all messages of the loaded part that were ahead of the clock in a microbatch missed one bound."""
    expects = "ahead of one time in a microbatch"
    yield from difference_in_rows("clock_ahead", expects, execute(connection, OTHERS_AHEAD), "rejections")
