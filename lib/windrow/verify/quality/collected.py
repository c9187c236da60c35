"""The rows of a ledger on a Spark that cannot cache them, such as serverless compute: three queries, then DuckDB.

The first query reads each row once, and of its messages takes figures. The others bring the messages that may occur
again. So all rows pass through the driver, without their messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windrow.columnar.arrow import to_plain_types
from windrow.delta.database import database
from windrow.delta.query import identifier
from windrow.model import tables
from windrow.model.payload import of_column
from windrow.rows.frame import schema_of
from windrow.verify.invariants import payload_bytes
from windrow.verify.quality.embedded import LONG, STATES, EmbeddedRows, create_views, table_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIGURES = {
    "found": "array_size(messages)",
    "content_bytes": "aggregate(transform(messages, one -> coalesce(octet_length(one.type), 0) + {payload}), 0L, "
    "(total, bytes) -> total + bytes)",
    "first_inside": "array_min(transform(messages, one -> one.event_time))",
    "last_inside": "array_max(transform(messages, one -> one.event_time))",
    "outside": "array_size(filter(messages, one -> "
    "(one.event_time >= window_start AND one.event_time < window_end) IS NOT TRUE))",
    "incomplete": "array_size(filter(messages, one -> one.type IS NULL OR one.received_at IS NULL))",
    "unsorted": "array_size(filter(messages, (one, place) -> one.event_time < get(messages, place - 1).event_time))",
}
INSIDE = """
CREATE TABLE inside AS SELECT id AS batch, min(state) AS state, sum(found) AS found,
    coalesce(sum(content_bytes), 0) AS content_bytes, min(first_inside) AS first_inside,
    max(last_inside) AS last_inside, sum(outside) AS outside, sum(incomplete) AS incomplete, sum(unsorted) AS unsorted
FROM collected WHERE state IN ('open', 'closed') GROUP BY id
"""
EACH = """
SELECT id AS batch, source, key, window_start, one.type AS type, one.event_time AS event_time
FROM {batch} LATERAL VIEW explode(messages) AS one WHERE state IN ('open', 'closed')
"""
# Messages that are in batches several times, or in one and among the duplicates.
AGAIN = f"""
SELECT source, key, type, event_time, count(batch) AS times, min(batch) AS first_batch, max(batch) AS last_batch
FROM (
    SELECT batch, source, key, type, event_time FROM ({EACH})
    UNION ALL
    SELECT NULL, source, key, type, event_time FROM {{batch}} WHERE state = 'rejected' AND reason = 'duplicate'
) GROUP BY source, key, type, event_time HAVING count(*) > 1 AND count(batch) > 0
"""
MESSAGES = """
CREATE TABLE messages AS SELECT CASE WHEN place = 0 THEN first_batch ELSE last_batch END AS batch,
    source, key, type, event_time
FROM (SELECT *, unnest(range(times)) AS place FROM again)
"""
TYPES = f"""
SELECT source, key, window_start, type, count(*) AS times, min(batch) AS batch
FROM ({EACH}) GROUP BY source, key, window_start, type HAVING count(*) > 1
"""


@contextmanager
def collected_rows(frame: DataFrame) -> Iterator[EmbeddedRows]:
    """Yield the rows of a ledger that a frame reads, without their messages, in a database."""
    columns = [name for name in frame.columns if name not in LONG]
    counted = payload_bytes(of_column(schema_of(frame)), "one.payload")
    figures = [f"{text.format(payload=counted)} AS {name}" for name, text in FIGURES.items()]
    queries = {
        "collected": frame.selectExpr(*(f"`{name}`" for name in columns), *figures),
        "again": _asked(frame, AGAIN),
        "types": _asked(frame, TYPES),
    }
    with database() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, query in queries.items():
            connection.register("answer", to_plain_types(query.toArrow()))
            connection.execute(f"CREATE TABLE {name} AS FROM answer")
            connection.unregister("answer")
        for name, states in STATES.items():
            chosen = ", ".join(map(identifier, table_columns(columns, name, tables.reads_raw_depot(columns))))
            listed = ", ".join(f"'{state}'" for state in states)
            connection.execute(f"CREATE VIEW {name} AS SELECT {chosen} FROM collected WHERE state IN ({listed})")
        connection.execute(INSIDE)
        connection.execute(MESSAGES)
        create_views(connection)
        yield EmbeddedRows(connection)


def _asked(frame: DataFrame, statement: str) -> DataFrame:
    return frame.sparkSession.sql(statement, batch=frame)
