"""The relations in DuckDB from which decisions are derived. All times are microseconds.

What is given are the tables of `verify.tables`, and of the history `versions`, which microbatch read each depot
version, `microbatches` with their rules, and `clocks` as they were recorded. What all streams `sent`, from which clocks
follow, is read first; the verdict on each message then part by part.

The floor of a source is the greatest of the stamps it sent in earlier depot versions and of the floors that ticks and
flushes recorded. A larger `max_delay` raises it by the difference: `raised` is the sum of these raises up to a
microbatch. `height` is a floor without them, so that each step takes the greater of two values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.columnar.arrow import counted
from windrow.model.messages import EARLIEST, INVALID_VALUE, LATEST
from windrow.verify.decisions.microbatch_history import MicrobatchHistory
from windrow.verify.parts import EVERY, PartedRows
from windrow.verify.tables import timed

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# The latest stamp that was not ahead of the machine's clock, as the rejections of a microbatch record it.
AHEAD = """
CREATE VIEW ahead AS
SELECT microbatch, min(received_at - missed_by_us) AS latest FROM all_rejected WHERE reason = 'clock_ahead'
GROUP BY microbatch
"""

# What comes of a microbatch of which a version can no longer be read is not derived. `detail` says what makes a message
# invalid: a value that cannot be cast, or the first column that is NULL, or else a time that is out of range.
ARRIVED = f"""
SELECT *, detail IS NULL AND coalesce(beyond, 0) <= 0 AS good
FROM (
    SELECT *, CASE WHEN detail IS NULL THEN received_at - latest END AS beyond
    FROM (
        SELECT d.*, m.* EXCLUDE (kind), a.latest, row_number() OVER () AS row,
            CASE WHEN d.{INVALID_VALUE} IS NOT NULL THEN d.{INVALID_VALUE}
                WHEN d.source IS NULL THEN 'source is NULL' WHEN d.key IS NULL THEN 'key is NULL'
                WHEN d.type IS NULL THEN 'type is NULL' WHEN d.event_time IS NULL THEN 'event_time is NULL'
                WHEN d.received_at IS NULL THEN 'received_at is NULL'
                WHEN d.event_time < {EARLIEST} OR d.event_time >= {LATEST} THEN 'event_time is out of range'
                WHEN d.received_at < {EARLIEST} OR d.received_at >= {LATEST} THEN 'received_at is out of range'
            END AS detail
        FROM {{0}} AS d JOIN versions AS v ON v.version = d.version
        JOIN microbatches AS m ON m.microbatch = v.microbatch
        LEFT JOIN ahead AS a ON a.microbatch = m.microbatch
        WHERE m.readable
    )
)
"""

# What was good of what each source sent in a version, and the streams of all messages.
SENT = f"""
CREATE TABLE sent AS
SELECT source, microbatch, version, max(received_at) AS floor
FROM ({ARRIVED.format("stream")}) WHERE good GROUP BY source, microbatch, version
"""
ARRIVED_STREAMS = """
CREATE TABLE arrived_streams AS
SELECT DISTINCT source, key FROM stream AS d JOIN versions AS v ON v.version = d.version
JOIN microbatches AS m ON m.microbatch = v.microbatch WHERE m.readable
"""

# Each event that moved a clock, with the floor `before` it, the height after it, and the `clock` after it: the greatest
# processing time of the source's data. Where versions can no longer be read, it begins with what was recorded last.
MOVES = """
CREATE TABLE moves AS
WITH events AS (
    SELECT source, microbatch, version, true AS sent, floor, NULL AS clock FROM sent
    UNION ALL
    SELECT c.source, c.microbatch, -1, false, c.floor, NULL
    FROM clocks AS c JOIN microbatches AS m ON m.microbatch = c.microbatch
    WHERE m.readable AND m.kind IN ('tick', 'flush')
    UNION ALL
    SELECT c.source, c.microbatch, -1, false, c.floor, c.clock
    FROM clocks AS c JOIN microbatches AS m ON m.microbatch = c.microbatch WHERE NOT m.readable
    QUALIFY row_number() OVER (PARTITION BY c.source ORDER BY c.microbatch DESC) = 1
), heights AS (
    SELECT e.*, m.raised, max(e.floor - m.raised) OVER moved AS height
    FROM events AS e JOIN microbatches AS m ON m.microbatch = e.microbatch
    WINDOW moved AS (PARTITION BY source ORDER BY e.microbatch, version ROWS UNBOUNDED PRECEDING)
)
SELECT source, microbatch, version, sent, raised, height, lag(height) OVER moved + raised AS before,
    max(CASE WHEN sent THEN height + raised ELSE clock END) OVER moved AS clock
FROM heights
WINDOW moved AS (PARTITION BY source ORDER BY microbatch, version ROWS UNBOUNDED PRECEDING)
"""

STATES = """
CREATE TABLE states AS
SELECT source, microbatch, max(height) AS height, max(clock) AS clock FROM moves GROUP BY source, microbatch
"""

# The cut of a flush is just after the last message of the source that it closed. It depends on all streams of the
# source, so it is read from the ledger. It is right if every stream is.
FLUSH_CUTS = """
CREATE VIEW flush_cuts AS
SELECT closed_in AS microbatch, source, max(last_event_time) + 1 AS cut
FROM all_batches WHERE close_reason = 'flush' GROUP BY closed_in, source
"""

# By source, the event time at which all windows end that may not lie on the calendar, after each event that raised it:
# a flush, or a change of the rules, before which no window ended later than that of the latest acceptable message.
# Where versions can no longer be read, it begins with what was recorded last.
CUTS = """
CREATE TABLE cuts AS
WITH events AS (
    SELECT f.microbatch, f.source, f.cut FROM flush_cuts AS f JOIN microbatches AS m ON m.microbatch = f.microbatch
    WHERE m.readable
    UNION ALL
    SELECT r.microbatch, r.source, s.height + r.farthest
    FROM (
        SELECT m.*, k.source
        FROM (SELECT *, lag(raised + reach) OVER (ORDER BY microbatch) AS farthest FROM microbatches) AS m
        CROSS JOIN (SELECT DISTINCT source FROM moves) AS k WHERE m.kind = 'rules' AND m.readable
    ) AS r ASOF JOIN states AS s ON s.source = r.source AND s.microbatch < r.microbatch
    UNION ALL
    SELECT c.microbatch, c.source, c.cut
    FROM clocks AS c JOIN microbatches AS m ON m.microbatch = c.microbatch WHERE NOT m.readable AND c.cut IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY c.source ORDER BY c.microbatch DESC) = 1
), highest AS (
    SELECT microbatch, source, max(cut) OVER (PARTITION BY source ORDER BY microbatch ROWS UNBOUNDED PRECEDING) AS cut
    FROM events
)
SELECT * FROM highest
QUALIFY cut IS DISTINCT FROM lag(cut) OVER (PARTITION BY source ORDER BY microbatch)
"""

# The verdict on each message needs no window, only its processing time (`now`) and the messages before: `reason` is
# NULL for an accepted one. `place` is that among equal ones, in the order of processing, NULL if there is no other: few
# are sorted then. Messages that were open after what is verified come before all others, and have a `batch`.
JUDGED = f"""
CREATE OR REPLACE TABLE judged AS
WITH processed AS (
    SELECT a.*, CASE WHEN a.good THEN greatest(a.received_at, m.before) END AS now
    FROM ({ARRIVED.format("depot")}) AS a
    LEFT JOIN moves AS m ON m.sent AND m.source = a.source AND m.version = a.version
), measured AS MATERIALIZED (
    SELECT *, now - max_delay - event_time AS late, event_time - now - max_leap AS early,
        coalesce(late <= 0 AND early <= 0, false) AS timely, NULL::BIGINT AS batch
    FROM processed
    UNION ALL BY NAME
    SELECT h.* EXCLUDE (row, previous_event_time), -1 AS version, 0 AS microbatch, 0 AS now,
        -row_number() OVER () AS row, true AS timely, h.row AS batch
    FROM held_open AS h
), repeated AS (
    SELECT source, key, type, event_time FROM measured WHERE timely GROUP BY ALL HAVING count(*) > 1
), places AS (
    SELECT row, row_number() OVER (
        PARTITION BY source, key, type, event_time
        ORDER BY version, now, sequence NULLS FIRST, received_at, payload NULLS FIRST) AS place
    FROM measured SEMI JOIN repeated USING (source, key, type, event_time) WHERE timely
), placed AS (
    SELECT m.*, p.place FROM measured AS m LEFT JOIN places AS p ON p.row = m.row
)
SELECT * EXCLUDE (detail), detail,
    CASE WHEN detail IS NOT NULL THEN 'invalid' WHEN beyond > 0 THEN 'clock_ahead' WHEN late > 0 THEN 'too_old'
        WHEN early > 0 THEN 'too_futuristic' WHEN place > 1 THEN 'duplicate' END AS reason,
    CASE reason WHEN 'clock_ahead' THEN beyond WHEN 'too_old' THEN late WHEN 'too_futuristic' THEN early
        ELSE 0 END AS missed_by_us
FROM placed
"""

# A stream is whole when all its messages are in depot versions that can still be read. The windows of whole streams
# with `most` accepted messages together are derived, the smallest first, then by name. One that has more than there is
# `room` for in memory is not.
STREAMS = """
CREATE TABLE streams AS
WITH members AS (
    SELECT source, key, true AS whole, 0 AS messages, false AS there FROM arrived_streams
    UNION ALL
    SELECT source, key, $gone = 0 OR coalesce(opened_in > $gone, false), message_rows, true FROM all_batches
    UNION ALL
    SELECT source, key, $gone = 0 OR coalesce(microbatch > $gone, false), 0, false FROM all_rejected WHERE of_message
), counted AS (
    SELECT source, key, bool_and(whole) AS whole, sum(messages)::BIGINT AS messages, bool_or(there) AS there
    FROM members GROUP BY source, key
)
SELECT *, row_number() OVER (ORDER BY source NULLS FIRST, key NULLS FIRST) AS stream,
    messages > $room AS large,
    whole AND messages <= $room AND coalesce(sum(messages) OVER (
        PARTITION BY whole ORDER BY messages, source NULLS FIRST, key NULLS FIRST ROWS UNBOUNDED PRECEDING
    ) <= $most, true) AS chosen
FROM counted
"""


def relate_history(connection: DuckDBPyConnection, history: MicrobatchHistory, depot: PartedRows) -> None:
    """Create the relations of the history, and of what all streams of the depot sent."""
    given = {
        "versions": pa.table({"version": history.version, "microbatch": history.read_in}),
        "microbatches": history.table,
        "clocks": history.clocks,
    }
    for name, rows in given.items():
        connection.register(name, counted(rows))
    connection.execute(AHEAD)
    for statement in (SENT, ARRIVED_STREAMS):
        connection.register("stream", depot.read("depot", EVERY))
        connection.execute(statement)
    for statement in (MOVES, STATES, FLUSH_CUTS, CUTS):
        connection.execute(statement)


def choose_streams(connection: DuckDBPyConnection, history: MicrobatchHistory, most: int | None, room: int) -> None:
    """Create the relation of streams; the windows of streams with `most` messages together are derived."""
    gone = 0 if history.verified else history.gone
    connection.execute(STREAMS, {"gone": gone, "most": most, "room": room})


def judge_part(connection: DuckDBPyConnection) -> None:
    """Create the verdicts on the messages of the loaded part."""
    connection.execute(JUDGED)


def apart(connection: DuckDBPyConnection, one: str, other: str, keys: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return a row of each of two queries for the keys whose rows are not the same in both, in the order of the keys.

    Where a query has no row, all its columns are NULL; NULL equals NULL, and rows that come twice are two.
    """
    names, same = ", ".join(keys), " AND ".join(f"ours.{key} IS NOT DISTINCT FROM theirs.{key}" for key in keys)
    order = ", ".join(f"coalesce(ours.{key}, theirs.{key})" for key in keys)
    found = connection.sql(f"""
        WITH surplus AS MATERIALIZED (
            SELECT * EXCLUDE (sign), sum(sign) AS more
            FROM (SELECT *, 1 AS sign FROM ({one}) UNION ALL SELECT *, -1 FROM ({other}))
            GROUP BY ALL HAVING more <> 0
        )
        SELECT ours, theirs
        FROM (SELECT DISTINCT ON ({names}) * EXCLUDE (more) FROM surplus WHERE more > 0 ORDER BY ALL) AS ours
        FULL JOIN (SELECT DISTINCT ON ({names}) * EXCLUDE (more) FROM surplus WHERE more < 0 ORDER BY ALL) AS theirs
            ON {same}
        ORDER BY {order}
    """)
    rows = found.to_arrow_table().combine_chunks()
    ours, theirs = (timed(pa.Table.from_struct_array(rows[name])) for name in ("ours", "theirs"))
    return ours, theirs
