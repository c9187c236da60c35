"""The relations in DuckDB from which decisions are derived. All times are microseconds.

The inputs are the tables of `verify.tables` and, from the history, `versions` (which microbatch read each depot
version), `microbatches` with their rules, and `clocks` as recorded. What all streams `sent`, which determines the
clocks, is read first; verdicts on messages follow part by part. `OF_LEDGER` has the relations over all streams of the
ledger, in SQL that Spark understands as well.

The floor of a source is the greatest of the stamps it sent in earlier depot versions and of the floors that ticks and
flushes recorded. A larger `max_delay` raises it by the difference: `raised` is the sum of these raises up to a
microbatch. `height` is a floor minus these raises, so that each step is the greater of two values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from duckdb import DuckDBPyConnection

from windrow.columnar.arrow import times_to_numbers
from windrow.model.messages import EARLIEST, INVALID_VALUE, LATEST
from windrow.verify.decisions.windows import MicrobatchHistory
from windrow.verify.tables import with_times

Ask: TypeAlias = Callable[[str], pa.Table]

# Relations over all streams of a ledger: the latest stamp that was not ahead of the machine's clock, as the rejections
# of a microbatch record it; the cut of a flush, just after the last message of the source that it closed, correct if
# every stream is; and the greatest timeout that a microbatch closed.
OF_LEDGER = {
    "ahead": """
        SELECT microbatch, min(received_at - missed_by_us) AS latest FROM all_rejected WHERE reason = 'clock_ahead'
        GROUP BY microbatch""",
    "flush_cuts": """
        SELECT closed_microbatch AS microbatch, source, max(last_event_time) + 1 AS cut
        FROM all_batches WHERE close_reason = 'flush' GROUP BY closed_microbatch, source""",
    "timeouts": "SELECT closed_microbatch, source, max(timeout_at) AS timeout_at FROM all_batches "
    "GROUP BY closed_microbatch, source",
}

# Nothing is derived for a microbatch with a version that can no longer be read. `detail` says what makes a message
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

# The latest stamp of the good messages that each source sent in a version.
SENT = f"""
SELECT source, microbatch, version, max(received_at) AS floor
FROM ({ARRIVED.format("stream")}) WHERE good GROUP BY source, microbatch, version
"""
SENT_TOGETHER = """
CREATE TABLE sent AS
SELECT source, microbatch, version, max(floor) AS floor FROM sent_in_parts GROUP BY source, microbatch, version
"""

# Each event that moved a clock, with the floor `before` it, and the height and the `clock` after it: the greatest
# processing time of the source's data. Where versions can no longer be read, the last recorded clock comes first.
MOVES = """
CREATE TABLE moves AS
WITH events AS (
    SELECT source, microbatch, version, true AS sent, floor, NULL AS clock FROM sent
    UNION ALL
    SELECT source, microbatch, -1, false, floor, NULL FROM clocks JOIN microbatches USING (microbatch)
    WHERE readable AND kind IN ('tick', 'flush')
    UNION ALL
    SELECT source, microbatch, -1, false, floor, clock FROM clocks JOIN microbatches USING (microbatch)
    WHERE NOT readable QUALIFY row_number() OVER (PARTITION BY source ORDER BY microbatch DESC) = 1
), heights AS (
    SELECT *, max(floor - raised) OVER (
        PARTITION BY source ORDER BY microbatch, version ROWS UNBOUNDED PRECEDING) AS height
    FROM events JOIN microbatches USING (microbatch)
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

# By source, the event time by which all windows off the calendar end, after each event that raised it: a flush, or a
# change of the rules, before which no window ended later than that of the latest acceptable message.
# Where versions can no longer be read, the last recorded cut comes first.
CUTS = """
CREATE TABLE cuts AS
WITH events AS (
    SELECT microbatch, source, cut FROM flush_cuts JOIN microbatches USING (microbatch) WHERE readable
    UNION ALL
    SELECT r.microbatch, r.source, s.height + r.farthest
    FROM (
        SELECT m.*, k.source
        FROM (SELECT *, lag(raised + reach) OVER (ORDER BY microbatch) AS farthest FROM microbatches) AS m
        CROSS JOIN (SELECT DISTINCT source FROM moves) AS k WHERE m.kind = 'rules' AND m.readable
    ) AS r ASOF JOIN states AS s ON s.source = r.source AND s.microbatch < r.microbatch
    UNION ALL
    SELECT microbatch, source, cut FROM clocks JOIN microbatches USING (microbatch)
    WHERE NOT readable AND cut IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY source ORDER BY microbatch DESC) = 1
), highest AS (
    SELECT microbatch, source, max(cut) OVER (PARTITION BY source ORDER BY microbatch ROWS UNBOUNDED PRECEDING) AS cut
    FROM events
)
SELECT * FROM highest
QUALIFY cut IS DISTINCT FROM lag(cut) OVER (PARTITION BY source ORDER BY microbatch)
"""

# The verdict on each message needs no window, only its processing time (`now`) and the messages before it: `reason` is
# NULL if it is accepted. `place` is its rank among equal ones, in processing order, and NULL if no other has its hash,
# so that few are sorted. Messages that were open after what is verified come first, and have a `batch`.
JUDGED = f"""
CREATE OR REPLACE TABLE judged AS
WITH processed AS (
    SELECT a.*, CASE WHEN a.good THEN greatest(a.received_at, m.before) END AS now
    FROM ({ARRIVED.format("depot")}) AS a
    LEFT JOIN moves AS m ON m.sent AND m.source = a.source AND m.version = a.version
), measured AS MATERIALIZED (
    SELECT *, now - max_delay - event_time AS late, event_time - now - max_lead AS early,
        coalesce(late <= 0 AND early <= 0, false) AS timely, NULL::BIGINT AS batch,
        hash(source, key, type, event_time) AS identity
    FROM processed
    UNION ALL BY NAME
    SELECT h.* EXCLUDE (row, previous_event_time), -1 AS version, 0 AS microbatch, 0 AS now,
        -row_number() OVER () AS row, true AS timely, h.row AS batch,
        hash(source, key, type, event_time) AS identity
    FROM held_open AS h
), repeated AS (
    SELECT identity FROM measured WHERE timely GROUP BY identity HAVING count(*) > 1
), places AS (
    SELECT row, row_number() OVER (
        PARTITION BY source, key, type, event_time
        ORDER BY version, now, sequence NULLS FIRST, received_at, payload NULLS FIRST) AS place
    FROM measured SEMI JOIN repeated USING (identity) WHERE timely
), placed AS (
    SELECT m.*, p.place FROM measured AS m LEFT JOIN places AS p ON p.row = m.row
)
SELECT * EXCLUDE (detail, identity), detail,
    CASE WHEN detail IS NOT NULL THEN 'invalid' WHEN beyond > 0 THEN 'clock_ahead' WHEN late > 0 THEN 'too_old'
        WHEN early > 0 THEN 'too_far_ahead' WHEN place > 1 THEN 'duplicate' END AS reason,
    CASE reason WHEN 'clock_ahead' THEN beyond WHEN 'too_old' THEN late WHEN 'too_far_ahead' THEN early
        ELSE 0 END AS missed_by_us
FROM placed
"""

# A stream is whole when all its messages are in depot versions that can still be read.
COUNTED = """
SELECT source, key, bool_and(whole) AS whole, sum(messages)::BIGINT AS messages, bool_or(there) AS there FROM (
    SELECT source, key, {gone} = 0 OR coalesce(opened_microbatch > {gone}, false) AS whole, message_rows AS messages,
        true AS there FROM {batches}
    UNION ALL
    SELECT source, key, {gone} = 0 OR coalesce(microbatch > {gone}, false), 0, false FROM {rejected}{others}
) GROUP BY source, key
"""
# The windows of whole streams are derived, smallest first, then by name, up to `most` accepted messages in total, but
# not those of a stream with more messages than there is `room` for in memory.
CHOSEN = """
SELECT *, messages > {room} AS large, whole AND messages <= {room} AND {within} AS chosen FROM (
    SELECT *, sum(messages) OVER (
        PARTITION BY whole ORDER BY messages, source NULLS FIRST, key NULLS FIRST ROWS UNBOUNDED PRECEDING
    ) AS together FROM ({counted})
)
"""
# Counts of streams with batches: all, whole ones, derived ones; counts of whole streams not derived and their messages,
# first of those too large for the memory; and the messages of the chosen streams.
FIGURES = """
SELECT count(*) FILTER (WHERE there), count(*) FILTER (WHERE there AND whole),
    count(*) FILTER (WHERE chosen AND messages > 0),
    count(*) FILTER (WHERE whole AND large), coalesce(sum(messages) FILTER (WHERE whole AND large), 0)::BIGINT,
    count(*) FILTER (WHERE whole AND NOT chosen AND NOT large),
    coalesce(sum(messages) FILTER (WHERE whole AND NOT chosen AND NOT large), 0)::BIGINT,
    coalesce(sum(messages) FILTER (WHERE chosen), 0)::BIGINT
FROM ({0})
"""
FIRST_LEFT = """
SELECT messages, source, key FROM ({0}) WHERE whole AND NOT chosen AND NOT large
ORDER BY messages, source NULLS FIRST, key NULLS FIRST LIMIT 1
"""
# The streams of the loaded part; those before `left`, the first stream not derived, are chosen. Some streams have
# messages only in the depot.
ARRIVED_STREAMS = """
    UNION ALL
    SELECT DISTINCT source, key, true, 0, false
    FROM depot JOIN versions USING (version) JOIN microbatches USING (microbatch) WHERE readable
"""
BEFORE = "({0}messages, {0}source IS NOT NULL, coalesce({0}source, ''), {0}key IS NOT NULL, coalesce({0}key, ''))"
STREAMS = f"""
CREATE OR REPLACE TABLE streams AS
SELECT s.*, row_number() OVER (ORDER BY s.source NULLS FIRST, s.key NULLS FIRST) AS stream,
    whole AND s.messages <= $room AND coalesce({BEFORE.format("s.")} < {BEFORE.format("f.")}, true) AS chosen
FROM ({COUNTED.format(gone="$gone", batches="batches", rejected="rejected", others=ARRIVED_STREAMS)}) AS s
LEFT JOIN left_streams AS f ON true
"""
# Equal rows have equal hashes: hashes are counted first, then only rows whose hashes do not balance.
HASH = "hash(*COLUMNS(* EXCLUDE (sign)))"
UNEVEN = f"""
CREATE OR REPLACE TABLE uneven_rows AS
SELECT content FROM (SELECT {HASH} AS content, sign FROM {{0}}) GROUP BY content HAVING sum(sign) <> 0
"""
LEFT = pa.schema([("messages", pa.int64()), ("source", pa.string()), ("key", pa.string())])


class Figures(NamedTuple):
    """The answer to `FIGURES`."""

    streams: int = 0
    whole: int = 0
    derived: int = 0
    large: int = 0
    large_messages: int = 0
    left: int = 0
    left_messages: int = 0
    chosen_messages: int = 0


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """Which streams are derived: those before the one in `left` (a row or none), with at most `max_messages` each."""

    gone: int
    max_messages: int
    left: pa.Table


def relate_history(connection: DuckDBPyConnection, history: MicrobatchHistory, ask: Ask, sent: Ask) -> None:
    """Create the relations of the history and, with the answer of `sent` to `SENT`, of what all streams sent."""
    tables = {
        "versions": pa.table({"version": history.version, "microbatch": history.read_in}),
        "microbatches": history.table,
        "clocks": history.clocks,
    } | {name: ask(query) for name, query in OF_LEDGER.items()}
    for name, rows in tables.items():
        connection.register(name, times_to_numbers(rows))
    connection.register("sent_in_parts", sent(SENT))
    for statement in (SENT_TOGETHER, MOVES, STATES, CUTS):
        connection.execute(statement)


def choose_streams(
    history: MicrobatchHistory, most: int | None, max_messages: int, ask: Ask
) -> tuple[Figures, StreamChoice]:
    """Return the figures of the streams, and which streams are derived: `most` messages in total, None: all."""
    gone = 0 if history.verified else history.gone
    of_messages = "(SELECT * FROM all_rejected WHERE of_message)"
    streams = COUNTED.format(gone=gone, batches="all_batches", rejected=of_messages, others="")
    within = "true" if most is None else f"together <= {most:d}"
    chosen = CHOSEN.format(room=max_messages, within=within, counted=streams)
    [figures] = ask(FIGURES.format(chosen)).to_pylist()
    numbers = Figures(*figures.values())
    left = ask(FIRST_LEFT.format(chosen)) if numbers.left else LEFT.empty_table()
    return numbers, StreamChoice(gone, max_messages, left.cast(LEFT))


def judge_part(connection: DuckDBPyConnection, choice: StreamChoice) -> None:
    """Create the streams of the loaded part, and the verdicts on its messages."""
    connection.register("left_streams", choice.left)
    connection.execute(STREAMS, {"gone": choice.gone, "room": choice.max_messages})
    connection.execute(JUDGED)


def differing_pairs(
    connection: DuckDBPyConnection, our_query: str, their_query: str, keys: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """Return a row of each of two queries for each key whose rows differ between the two, ordered by key.

    Where a query has no row, all its columns are NULL; NULL equals NULL, and repeated rows count separately.
    """
    names, same = ", ".join(keys), " AND ".join(f"ours.{key} IS NOT DISTINCT FROM theirs.{key}" for key in keys)
    order = ", ".join(f"coalesce(ours.{key}, theirs.{key})" for key in keys)
    both = f"(SELECT *, 1 AS sign FROM ({our_query}) UNION ALL SELECT *, -1 FROM ({their_query}))"
    connection.execute(UNEVEN.format(both))
    pairs = connection.sql(f"""
        WITH surplus AS MATERIALIZED (
            SELECT * EXCLUDE (sign), sum(sign) AS more FROM {both} WHERE {HASH} IN (FROM uneven_rows)
            GROUP BY ALL HAVING more <> 0
        )
        SELECT ours, theirs
        FROM (SELECT DISTINCT ON ({names}) * EXCLUDE (more) FROM surplus WHERE more > 0 ORDER BY ALL) AS ours
        FULL JOIN (SELECT DISTINCT ON ({names}) * EXCLUDE (more) FROM surplus WHERE more < 0 ORDER BY ALL) AS theirs
            ON {same}
        ORDER BY {order}
    """)
    rows = pairs.to_arrow_table().combine_chunks()
    ours, theirs = (with_times(pa.Table.from_struct_array(rows[name])) for name in ("ours", "theirs"))
    return ours, theirs
