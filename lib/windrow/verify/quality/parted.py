"""The critical invariants of a ledger version that is in DuckDB part by part (`verify.tables`).

Invariants of batches or messages join only rows of one stream and the history, so they are checked part by part. The
others need no messages, so they are checked over the rows of all streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from duckdb import DuckDBPyConnection

from windrow.reading.values import records
from windrow.verify.invariants import INVARIANTS, Invariant, counting
from windrow.verify.invariants.relations import TYPES
from windrow.verify.quality.embedded import EmbeddedRows
from windrow.verify.quality.spark import SparkRows
from windrow.verify.report import EXAMPLES, Difference

CRITICAL = [invariant for invariant in INVARIANTS.values() if invariant.severity == "critical"]
BY_STREAM = [
    invariant for invariant in CRITICAL if invariant.relation.name in ("batch", "window_type", "message", "rejection")
]
OVERALL = [invariant for invariant in CRITICAL if invariant not in BY_STREAM]

# A time that DuckDB cannot represent becomes NULL, as when DuckDB reads a table.
MACROS = """
CREATE OR REPLACE MACRO in_range(us) AS CASE WHEN us > -9223372022400000000 AND us < 9223372036854775807 THEN us END;
CREATE OR REPLACE MACRO as_time(us) AS make_timestamptz(in_range(us));
"""
BATCHES = """SELECT * REPLACE (as_time(window_start) AS window_start, as_time(window_end) AS window_end,
    as_time(timeout_at) AS timeout_at, as_time(closed_at) AS closed_at, as_time(first_event_time) AS first_event_time,
    as_time(last_event_time) AS last_event_time) FROM {}"""
REJECTED = """SELECT * REPLACE (as_time(event_time) AS event_time, as_time(received_at) AS received_at,
    as_time(processing_time) AS processing_time) FROM {}"""
# Aggregates over the messages of each batch, by row number, because ids are long texts.
INSIDE = """
CREATE OR REPLACE TABLE part.inside AS
SELECT b.id AS batch, min(b.state) AS state, sum(found) AS found, sum(content_bytes) AS content_bytes,
    as_time(min(first_inside)) AS first_inside, as_time(max(last_inside)) AS last_inside,
    sum(outside) AS outside, sum(incomplete) AS incomplete, sum(unsorted) AS unsorted
FROM (
    SELECT row, count(*) AS found, sum(content_bytes) AS content_bytes, min(event_time) AS first_inside,
        max(event_time) AS last_inside,
        count(*) FILTER ((event_time >= begins AND event_time < ends) IS NOT TRUE) AS outside,
        count(*) FILTER (type IS NULL OR received_at IS NULL) AS incomplete,
        count(*) FILTER (event_time < previous) AS unsorted
    FROM (
        SELECT h.row, h.content_bytes, h.type, in_range(h.received_at) AS received_at,
            in_range(h.event_time) AS event_time, in_range(h.previous_event_time) AS previous,
            in_range(b.window_start) AS begins, in_range(b.window_end) AS ends
        FROM held AS h JOIN main.batches AS b ON b.row = h.row
    ) GROUP BY row
) JOIN main.batches AS b USING (row) GROUP BY b.id
"""
# Only repeated messages can fail, and hashes tell which may be repeated.
HASHES = """
CREATE OR REPLACE TABLE hashes AS
SELECT h.rowid AS place, hash(b.stream, h.type, in_range(h.event_time)) AS message_hash,
    hash(b.stream, b.begins, h.type) AS type_hash
FROM held AS h
JOIN (SELECT row, hash(source, key) AS stream, in_range(window_start) AS begins FROM main.batches) AS b ON b.row = h.row
"""
MESSAGES_AGAIN = """
SELECT message_hash FROM (
    SELECT message_hash FROM hashes
    UNION ALL SELECT hash(hash(source, key), type, in_range(event_time)) FROM main.rejected WHERE reason = 'duplicate'
) GROUP BY ALL HAVING count(*) > 1
"""
TYPES_AGAIN = "SELECT type_hash FROM hashes GROUP BY ALL HAVING count(*) > 1"
AGAIN = """
SELECT b.id AS batch, b.source, b.key, as_time(b.window_start) AS window_start, h.type,
    as_time(h.event_time) AS event_time
FROM held AS h JOIN main.batches AS b ON b.row = h.row
WHERE h.rowid IN (SELECT place FROM hashes SEMI JOIN ({again}) USING ({hash}))
"""
OF_MESSAGES = (
    INSIDE,
    HASHES,
    f"CREATE OR REPLACE TABLE part.messages AS {AGAIN.format(again=MESSAGES_AGAIN, hash='message_hash')}",
    "CREATE OR REPLACE TABLE part.types AS "
    + TYPES.format(messages=f"({AGAIN.format(again=TYPES_AGAIN, hash='type_hash')})"),
    "DROP TABLE hashes",
)
LISTED = (
    "SELECT microbatch, unnest({0}, recursive := true) FROM (SELECT microbatch, unnest({0}) AS {0} FROM history_rows)"
)
COMMON = {
    "microbatches": "FROM history_rows",
    "versions": LISTED.format("versions"),
    "clocks": LISTED.format("clocks"),
    "progress": "FROM control_rows",
    "sources": "FROM source_rows",
}
OF_PART = COMMON | {"batches": BATCHES.format("main.batches"), "rejected": REJECTED.format("main.rejected")}
OF_ALL = COMMON | {
    "batches": BATCHES.format("all_batches"),
    "rejected": REJECTED.format("all_rejected"),
    "inside": "SELECT state, message_rows AS found FROM all_batches",
    "rows": " UNION ALL ".join(
        [
            "SELECT id, state FROM all_batches",
            *(f"SELECT id, '{state}' FROM {name}" for name, state in (
                ("all_rejected", "rejected"), ("history_rows", "microbatch"), ("control_rows", "progress"),
                ("source_rows", "progress"), ("partial_rows", "partial"),
            )),
        ]
    ),
}  # fmt: skip
VIEWS = {"part": OF_PART, "overall": OF_ALL}


def create_views(connection: DuckDBPyConnection, schema: str) -> None:
    """Create the views of the invariants over the tables of the loaded `part`, or over the `overall` tables."""
    connection.execute(MACROS)
    connection.execute(f"CREATE SCHEMA {schema}")
    for name, query in VIEWS[schema].items():
        connection.execute(f"CREATE VIEW {schema}.{name} AS {query}")


def check_part(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check the invariants of the streams in the loaded part."""
    for statement in OF_MESSAGES:
        connection.execute(statement)
    names = (*OF_PART, "inside", "messages", "types")
    return _check(EmbeddedRows(connection), BY_STREAM, {name: f"part.{name}" for name in names})


def check_overall(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check the invariants that need no messages, over all streams."""
    create_views(connection, "overall")
    return _check(EmbeddedRows(connection), OVERALL, {name: f"overall.{name}" for name in OF_ALL})


def check_on_spark(rows: SparkRows) -> Iterator[Difference]:
    """Check the invariants that need no messages, over all streams of a ledger that Spark reads."""
    inside = "(SELECT state, coalesce(array_size(messages), 0) AS found FROM {batch} WHERE state IN ('open', 'closed'))"
    return _check(rows, OVERALL, {**rows.views, "inside": inside})


def _check(
    rows: EmbeddedRows | SparkRows, invariants: Sequence[Invariant], views: Mapping[str, str]
) -> Iterator[Difference]:
    """Count failures in one pass over each relation, then fetch failing rows with a query."""
    failures: dict[str, int] = {}
    for statement in counting(invariants, views):
        failures |= rows.ask(statement).to_pylist()[0]
    for invariant in invariants:
        if count := failures[invariant.name]:
            examples = records(rows.ask(f"{invariant.statement(views)} LIMIT {EXAMPLES}"))
            yield Difference(invariant.name, invariant.about, f"{count} rows", examples=tuple(examples))
