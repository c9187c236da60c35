"""A ledger version in DuckDB, one part of its streams at a time; times are numbers.

`depot`, `batches`, `held` (messages in batches) and `rejected` have the rows of a part. `history_rows`, `source_rows`
and `control_rows` are the rest of the ledger. `all_batches` and `all_rejected` have the rows of all streams, without
payloads, unless the parts are on Spark's executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from duckdb import DuckDBPyConnection

from windrow.columnar.arrow import TIME, times_to_numbers
from windrow.delta.database import database
from windrow.model.tables import RAW_REJECTED
from windrow.reading.values import records
from windrow.verify.parts import EVERY, Part, PartedRows
from windrow.verify.report import EXAMPLES, Difference
from windrow.verify.snapshot import LedgerContents

OF_LEDGER = ("batches", "held", "rejected")
OPEN = ("batches", "held")  # with the suffix `_open`: what was open in the base, if the check builds on one
TIMES = {
    "event_time", "received_at", "processing_time", "window_start", "window_end", "timeout_at", "closed_at",
    "first_event_time", "last_event_time", "clock", "floor", "cut",
}  # fmt: skip
OPEN_MESSAGES = (
    "INSERT INTO depot BY NAME SELECT * EXCLUDE (row, previous_event_time), $version AS version FROM held_open"
)
SMALL = "* EXCLUDE (payload), {} AS of_message"


@contextmanager
def ledger_tables(snapshot: LedgerContents, max_memory_bytes: int) -> Iterator[DuckDBPyConnection]:
    """Yield a connection to the tables of a ledger version that do not depend on the loaded part.

    Raises TableUnwritableError where neither memory nor disk has room.
    """
    with database(max_memory_bytes) as connection:
        connection.register("control_rows", snapshot.controls)
        connection.register("source_rows", snapshot.sources)
        connection.register("history_rows", snapshot.history)
        connection.register("partial_rows", snapshot.raw.partial if snapshot.raw else snapshot.sources.slice(0, 0))
        yield connection


def load_all(connection: DuckDBPyConnection, snapshot: LedgerContents, rows: PartedRows) -> None:
    """Load the batches and rejections of all streams of a ledger, without messages."""
    _create(connection, "all_batches", rows.read("batches", EVERY))
    _create(connection, "all_rejected", rows.read("rejected", EVERY), SMALL.format("true"))
    if snapshot.raw:
        connection.register("by_format", times_to_numbers(snapshot.raw.rejected.drop_columns(RAW_REJECTED)))
        connection.execute(f"INSERT INTO all_rejected BY NAME SELECT {SMALL.format(False)} FROM by_format")


def load_nothing(connection: DuckDBPyConnection, rows: PartedRows) -> None:
    """Create the tables of a part without rows."""
    for name in OF_LEDGER:
        _create(connection, name, rows.read(name, ()))
    for name in OPEN:
        _create(connection, f"{name}_open", rows.read(name, ()))


def load_part(connection: DuckDBPyConnection, part: Part, ledger: PartedRows, depot: PartedRows) -> None:
    """Load a part of the rows of ledger and depot, replacing the previous part."""
    _create(connection, "depot", depot.read("depot", part))
    for name in OF_LEDGER:
        _create(connection, name, ledger.read(name, part))


def load_open(connection: DuckDBPyConnection, part: Part, rows: PartedRows, version: int) -> None:
    """Load what was open in the base, and add its messages to those of the depot, as of a version."""
    for name in OPEN:
        _create(connection, f"{name}_open", rows.read(name, part))
    connection.execute(OPEN_MESSAGES, {"version": version})


def _create(connection: DuckDBPyConnection, name: str, rows: pa.RecordBatchReader, columns: str = "*") -> None:
    connection.register("stream", rows)
    connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT {columns} FROM stream")
    connection.unregister("stream")


def execute(connection: DuckDBPyConnection, query: str) -> pa.Table:
    """Return the answer to a query, with microseconds turned into times."""
    return with_times(connection.sql(query).to_arrow_table())


def with_times(rows: pa.Table) -> pa.Table:
    """Return rows with microseconds turned into times."""
    types = [(field.name, TIME if field.name in TIMES else field.type) for field in rows.schema]
    return rows.cast(pa.schema(types))


def differing_rows(
    connection: DuckDBPyConnection, check: str, expected: str, query: str, noun: str
) -> list[Difference]:
    """Return the difference for the rows that a query finds, with the first rows as examples; none without rows."""
    rows = execute(connection, f"{query} LIMIT {EXAMPLES}")
    if not rows.num_rows:
        return []
    [(count,)] = connection.sql(f"SELECT count(*) FROM ({query})").fetchall()
    return [Difference(check, expected, f"{count} {noun}", examples=tuple(records(rows)))]
