"""The rows of a ledger without Spark: DuckDB runs the translated SQL, and reads each column of the files once.

Rows without their messages are in memory, and beyond a limit in temporary files. Of the messages, only counts are kept,
and those that may be repeated. Great Expectations, on its pandas engine, gets a small frame that refers to these rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from duckdb import DuckDBPyConnection

from windrow.delta.query import execute
from windrow.model import tables
from windrow.reading.tables import Ledger, open_ledger
from windrow.verify.invariants import for_duckdb, payload_bytes, views
from windrow.verify.invariants.relations import INSIDE, TYPES
from windrow.verify.quality.great_expectations import SITE

if TYPE_CHECKING:
    import pandas as pd
ROWS = "rows"  # the attribute of a pandas frame that refers to the rows
STATES = {"batches": ("open", "closed"), "rejected": ("rejected",), "books": ("microbatch", *tables.CONTROL)}
LONG = ("messages", "payload", "content", "digests")  # columns that only a user's expectation may need
ASKS_FOR_LONG = re.compile(rf"\b({'|'.join(LONG)})\b|(?i:SELECT\s+|\.)\*")
ALL = "FROM batches UNION ALL BY NAME FROM rejected UNION ALL BY NAME FROM books"
BATCHES = ("id", "state", "source", "key", "window_start", "window_end", "messages")
# All figures about messages in one pass, with list functions, which take a fraction of the time of grouping messages by
# batch. Only repeated messages can fail, and hashes, which take little memory, tell which may be repeated.
CONTENTS = """
CREATE TEMP TABLE contents AS SELECT id, state, len(times) AS found, coalesce(list_sum(bytes), 0) AS content_bytes,
    list_min(times) AS first_inside, list_max(times) AS last_inside,
    len(list_filter(times, lambda one: (one >= window_start AND one < window_end) IS NOT TRUE)) AS outside,
    len(list_filter(messages, lambda one: one.type IS NULL OR one.received_at IS NULL)) AS incomplete,
    len(list_filter(times, lambda one, place: one < times[place - 1])) AS unsorted,
    list_transform(messages, lambda one: hash(stream, one.type, one.event_time)) AS message_hashes,
    list_transform(messages, lambda one: hash(stream, window_start, one.type)) AS type_hashes
FROM (
    SELECT id, state, hash(source, key) AS stream, window_start, window_end, messages,
        list_transform(messages, lambda one: one.event_time) AS times,
        list_transform(messages, lambda one: coalesce(strlen(one.type), 0) + {payload}) AS bytes
    FROM ledger
)
"""
HASHES = """
CREATE TEMP TABLE messages_again AS SELECT message_hash FROM (
    SELECT unnest(message_hashes) AS message_hash FROM contents
    UNION ALL SELECT hash(hash(source, key), type, event_time) FROM rejected WHERE reason = 'duplicate'
) GROUP BY ALL HAVING count(*) > 1;
CREATE TEMP TABLE types_again AS SELECT type_hash FROM (SELECT unnest(type_hashes) AS type_hash FROM contents)
    GROUP BY ALL HAVING count(*) > 1;
CREATE TEMP TABLE batches_again AS SELECT DISTINCT id FROM (
    SELECT id FROM (SELECT id, unnest(message_hashes) AS message_hash FROM contents) SEMI JOIN messages_again
        USING (message_hash)
    UNION ALL SELECT id FROM (SELECT id, unnest(type_hashes) AS type_hash FROM contents) SEMI JOIN types_again
        USING (type_hash)
)
"""
# The messages of batches with repeated ones; if there are none, no file is read.
EACH = """
CREATE TEMP TABLE each_message AS SELECT *, hash(hash(source, key), type, event_time) AS message_hash,
    hash(hash(source, key), window_start, type) AS type_hash
FROM (
    SELECT batch, source, key, window_start, one.type AS type, one.event_time AS event_time
    FROM (
        SELECT id AS batch, source, key, window_start, unnest(messages) AS one FROM ledger SEMI JOIN batches_again
            USING (id)
    )
)
"""
MESSAGES = """
CREATE TABLE messages AS SELECT batch, source, key, type, event_time FROM each_message SEMI JOIN messages_again
    USING (message_hash)
"""
AGAIN = "(SELECT * FROM each_message SEMI JOIN types_again USING (type_hash))"


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """The rows of a ledger as a table of DuckDB."""

    views: ClassVar[Mapping[str, str]] = {name: name for name in views("")}
    connection: DuckDBPyConnection

    def __deepcopy__(self, memo: Any) -> EmbeddedRows:
        """Return the same rows: pandas copies a frame's attributes whenever it selects a column."""
        return self

    def ask(self, statement: str) -> pa.Table:
        """Return the answer to a statement, in which `{batch}` is the ledger."""
        ledger = "ledger" if ASKS_FOR_LONG.search(statement) else "all_rows"
        return execute(self.connection, for_duckdb(statement.format(batch=ledger))).read_all()

    def batch(self, context: Any, name: str) -> tuple[Any, pd.DataFrame]:
        """Return a batch definition for pandas, and a one-row frame that refers to these rows."""
        import pandas as pd

        frame = pd.DataFrame({"ledger": ["ledger"]})
        frame.attrs[ROWS] = self
        source = context.data_sources.add_or_update_pandas(SITE)
        return source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("ledger"), frame


@contextmanager
def embedded_rows(location: str, with_messages: bool) -> Iterator[tuple[int, EmbeddedRows]]:
    """Yield the latest version of a ledger at a path and its rows, optionally with the tables about messages.

    Raises TableMissingError, TableUnreadableError.
    """
    ledger = open_ledger(location)
    for table, states in STATES.items():
        with ledger.connect(states, table_columns(ledger.names, table, ledger.raw)) as connection:
            connection.execute(f"CREATE TABLE {table} AS FROM ledger")
    if with_messages:
        _load_messages(ledger)
    every = [state for states in STATES.values() for state in states]
    with ledger.connect(tuple(every), ledger.names) as connection:
        create_views(connection)
        yield ledger.version, EmbeddedRows(connection)


def _load_messages(ledger: Ledger) -> None:
    """Create `inside`, `messages` and `types`, in one pass over the messages."""
    payload = payload_bytes(ledger.payload, "one.payload", "strlen")
    with ledger.connect(("open", "closed"), BATCHES) as connection:
        inside = f"CREATE TABLE inside AS {INSIDE.format(rows='contents')}"
        for statement in (CONTENTS.format(payload=payload), inside, HASHES, EACH, MESSAGES):
            connection.execute(statement)
        connection.execute(f"CREATE TABLE types AS {TYPES.format(messages=AGAIN)}")


def create_views(connection: DuckDBPyConnection) -> None:
    """Create the views of the invariants over the tables of `STATES`."""
    connection.execute(f"CREATE VIEW all_rows AS {ALL}")
    connection.execute("CREATE VIEW rows AS SELECT id, state FROM all_rows")
    over = views("books")
    for name in ("microbatches", "versions", "clocks", "progress", "sources"):
        connection.execute(f"CREATE VIEW {name} AS {for_duckdb('SELECT * FROM ' + over[name])}")


def table_columns(columns: Sequence[str], table: str, raw: bool) -> list[str]:
    """Return the columns that a table gets, out of those of a ledger; `raw` if its depot is a raw depot."""
    own = {
        "batches": tables.BATCH_COLUMNS,
        "rejected": ["state", *tables.REJECTED, *(tables.RAW_REJECTED if raw else [])],
    }
    only_batches = {*tables.BATCH_COLUMNS}.difference(("id", "state", "source"))
    names = own.get(table, [name for name in columns if name not in only_batches])
    return [name for name in names if name not in LONG]
