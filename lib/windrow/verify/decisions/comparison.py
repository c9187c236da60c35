"""Compare what log and rules determine with what the ledger recorded, for all streams or for a part.

Clocks and rules are those of the history; rejections, batches and their messages are those of the loaded part. An
example of a difference shows both sides, where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from windrow.columnar.arrow import times_to_numbers
from windrow.reading.values import records
from windrow.verify.columns import MESSAGE, identifier, numbers, select_rows
from windrow.verify.decisions.relations import differing_pairs
from windrow.verify.decisions.windows import FLUSHED, MicrobatchHistory
from windrow.verify.report import EXAMPLES, Difference, difference_in_rows
from windrow.verify.snapshot import LedgerContents
from windrow.verify.tables import execute

RULES, LEDGER = "by the rules", "in the ledger"
VERDICT = ["reason", "detail", "missed_by_us", "floor_raise_us", "processing_time", "microbatch"]
WINDOW = ["source", "key", "window_start", "part"]
IDENTITY = ["source", "key", "type", "event_time"]
DECIDED = [
    "window_end", "timeout_at", "open_reason", "opened_microbatch", "closed_at", "close_reason", "closed_microbatch",
    "oversize",
]  # fmt: skip
Row = dict[str, Any]

CONTENT = ", ".join(f"r.{name}" for name in MESSAGE)
OF_STREAM = "JOIN streams AS s ON s.source IS NOT DISTINCT FROM r.source AND s.key IS NOT DISTINCT FROM r.key"
REFUSED = f"""
SELECT {CONTENT}, r.version AS depot_version, r.reason, r.detail, r.missed_by_us,
    r.now - r.received_at AS floor_raise_us, r.now AS processing_time, r.microbatch
FROM judged AS r {OF_STREAM} WHERE s.whole AND r.reason IS NOT NULL
"""
REJECTED = f"""
SELECT {CONTENT}, r.version AS depot_version, {", ".join(f"r.{name}" for name in VERDICT)}
FROM rejected AS r {OF_STREAM} WHERE s.whole
"""
DERIVED = f"""
SELECT s.source, s.key, d.start AS window_start, d.part, d.end AS window_end,
    {", ".join(f"d.{name}" for name in DECIDED[1:])}
FROM derived AS d JOIN streams AS s ON s.stream = d.stream
"""
BATCHES = f"""
SELECT {", ".join(f"r.{name}" for name in (*WINDOW, *DECIDED))}
FROM batches AS r {OF_STREAM} WHERE s.chosen
"""
PLACED = """
SELECT j.source, j.key, j.type, j.event_time, d.start AS window_start, d.part
FROM placed AS p JOIN judged AS j ON j.row = p.row JOIN derived AS d ON d.batch = p.batch
"""
HELD = f"""
SELECT r.source, r.key, h.type, h.event_time, r.window_start, r.part
FROM batches AS r {OF_STREAM} JOIN held AS h ON h.row = r.row
WHERE s.chosen
"""
# The content of messages that the rules and the ledger place in different batches.
EXAMPLE = f"""
SELECT {CONTENT}
FROM judged AS r JOIN places AS p ON {" AND ".join(f"r.{name} = p.{name}" for name in IDENTITY)}
WHERE r.reason IS NULL ORDER BY {", ".join(f"r.{name}" for name in IDENTITY)}
"""
TICKED = """
SELECT microbatch, source, floor, raised FROM clocks JOIN microbatches USING (microbatch)
WHERE readable AND kind = 'tick'
"""
# The clocks that microbatches must record. Messages move clock and floor to the greatest processing time. A larger
# `max_delay` raises the floor of every known source. A tick raises lower floors of known sources, as it recorded. A
# flush raises the floor to its time, or to cut + max_delay if that is later. Each has the cut of its source.
MOVED = f"""
WITH events AS (
    SELECT microbatch, source, NULL AS floor
    FROM (SELECT *, raised > lag(raised) OVER (ORDER BY microbatch) AS raises FROM microbatches)
    CROSS JOIN (SELECT DISTINCT source FROM moves) WHERE raises
    UNION ALL SELECT microbatch, source, NULL FROM cuts
    UNION ALL SELECT microbatch, source, floor FROM ({TICKED}) WHERE floor IS NOT NULL
    UNION ALL
    SELECT microbatch, source, max(ends) FROM (
        SELECT microbatch, source, flushed_at AS ends FROM ({FLUSHED})
        UNION ALL SELECT microbatch, source, cut + max_delay FROM flush_cuts JOIN microbatches USING (microbatch)
    ) JOIN microbatches USING (microbatch) WHERE kind = 'flush'
    GROUP BY microbatch, source HAVING max(ends) IS NOT NULL
)
SELECT microbatch, source, max(height + raised) AS clock, max(height + raised) AS floor
FROM moves WHERE sent GROUP BY microbatch, source
UNION ALL
SELECT e.microbatch, e.source, s.clock, coalesce(e.floor, s.height + e.raised)
FROM (SELECT * FROM events JOIN microbatches USING (microbatch) WHERE readable) AS e
ASOF JOIN states AS s ON s.source = e.source AND s.microbatch < e.microbatch
WHERE e.floor IS NULL OR (e.floor > s.height + e.raised AND (e.kind = 'flush' OR s.clock IS NOT NULL))
"""
EXPECTED = f"""
SELECT m.microbatch, m.source, m.clock, m.floor, c.cut
FROM (SELECT microbatch, source, max(clock) AS clock, max(floor) AS floor FROM ({MOVED}) GROUP BY ALL) AS m
ASOF LEFT JOIN cuts AS c ON c.source = m.source AND c.microbatch <= m.microbatch
"""
RECORDED = """
SELECT microbatch, source, clock, floor, cut FROM clocks JOIN microbatches USING (microbatch) WHERE readable
"""
# Ticks that did not raise each floor to the greatest timeout they closed for its source, with the raised floors.
OTHERWISE = f"""
SELECT m.microbatch, m.kind, m.raised, min(t.floor) AS low, max(t.floor) AS high
FROM microbatches AS m LEFT JOIN ({TICKED}) AS t ON t.microbatch = m.microbatch
LEFT JOIN timeouts AS b ON b.closed_microbatch = t.microbatch AND b.source = t.source
WHERE m.kind = 'tick' AND m.readable
GROUP BY m.microbatch, m.kind, m.raised HAVING NOT coalesce(bool_and(coalesce(b.timeout_at = t.floor, false)), false)
"""
# Those of these ticks that did not raise every lower floor to one time either.
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
# In a replay, the bound is that of the replayed run, so the microbatch's start does not determine it.
OTHERS_AHEAD = """
SELECT r.id, r.reason, r.missed_by_us, r.floor_raise_us, r.source, r.key, r.type, r.event_time, r.received_at,
    r.processing_time, r.microbatch
FROM rejected AS r LEFT JOIN ahead AS a ON a.microbatch = r.microbatch
WHERE r.reason = 'clock_ahead' AND r.received_at - r.missed_by_us IS DISTINCT FROM a.latest
ORDER BY r.id
"""


def check_clocks(connection: DuckDBPyConnection, history: MicrobatchHistory) -> Iterator[Difference]:
    """Check that each microbatch recorded the clocks, floors and cuts that log, ticks and rules determine."""
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
    """Check that all messages of the loaded part that a microbatch found ahead of the clock missed the same bound."""
    expects = "ahead of one time in a microbatch"
    yield from difference_in_rows("clock_ahead", expects, execute(connection, OTHERS_AHEAD), "rejections")


def check_rejected(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that the ledger rejects exactly the messages that the rules reject, for the same reason and amount."""
    keys = [*MESSAGE, "depot_version"]
    ours, theirs = differing_pairs(connection, REFUSED, REJECTED, keys)
    if not ours.num_rows:
        return
    first = ours.slice(0, EXAMPLES), theirs.slice(0, EXAMPLES)
    examples = records(pa.table({name: pc.coalesce(*(side[name] for side in first)) for name in keys}))
    for name, rows, otherwise in zip((RULES, LEDGER), first, ("accepted", "not rejected"), strict=True):
        for example, verdict in zip(examples, records(rows.select(VERDICT)), strict=True):
            example[name] = otherwise if verdict["reason"] is None else verdict
    yield Difference(
        "decisions",
        "each message accepted or rejected as the log and the rules decide",
        f"{ours.num_rows} messages that the ledger decided otherwise",
        examples=tuple(examples),
    )


def check_windows(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that the batches of the chosen streams are those that the rules make, opened and closed in the same way."""
    ours, theirs = differing_pairs(connection, DERIVED, BATCHES, WINDOW)
    if not ours.num_rows:
        return
    sides = (records(side.slice(0, EXAMPLES)) for side in (ours, theirs.append_column("id", _ids(theirs))))
    yield Difference(
        "windows by the rules",
        "the batches that the rules make from the accepted messages of each stream",
        f"{ours.num_rows} batches that differ",
        examples=tuple(map(_example, *sides)),
    )


def check_members(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that each message is in the batch where the rules put it."""
    sides = differing_pairs(connection, PLACED, HELD, IDENTITY)
    both = pc.and_(*(side["part"].is_valid() for side in sides))
    ours, theirs = (side.filter(both) for side in sides)
    if not ours.num_rows:
        return
    places = ours.slice(0, EXAMPLES)
    connection.register("places", times_to_numbers(places))
    examples = records(execute(connection, EXAMPLE))
    for example, place, batch in zip(examples, records(places), _ids(theirs).to_pylist(), strict=False):
        example[RULES] = f"window from {place['window_start']}, part {place['part']}"
        example[LEDGER] = batch
    yield Difference(
        "messages by the rules",
        "each message in the window in which the rules put it",
        f"{ours.num_rows} messages in another one",
        examples=tuple(examples),
    )


def _ids(batches: pa.Table) -> pa.ChunkedArray:
    *stream, start, part = (batches[name] for name in WINDOW)
    return identifier("batch", *stream, start.cast(pa.int64()), part)


def _example(ours: Row, theirs: Row) -> Row:
    """Return an example: a batch with the columns that differ, of both sides; a side without the batch is all NULL."""
    there = [side["window_start"] is not None for side in (ours, theirs)]
    names = [name for name in DECIDED if not all(there) or ours[name] != theirs[name]]
    sides = {
        name: {column: side[column] for column in names} if is_there else "no such batch"
        for name, side, is_there in zip((RULES, LEDGER), (ours, theirs), there, strict=True)
    }
    return {name: (theirs if there[1] else ours).get(name) for name in ("id", *WINDOW)} | sides


OF_PART = (check_ahead, check_rejected, check_windows, check_members)
"""What compares the decisions on the messages of the loaded part."""
