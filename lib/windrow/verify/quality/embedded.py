"""The rows of a ledger without Spark: delta-rs reads them once, DuckDB holds them and runs the translated SQL.

DuckDB holds them in memory up to a limit, and spills to temporary files. It computes what the invariants ask for; Great
Expectations, on its engine for pandas, gets a small frame that refers to these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from windrow.delta.table import beyond_files, reading, unreadable
from windrow.errors import TableRefused
from windrow.reading.database import database
from windrow.reading.tables import Ledger, open_ledger
from windrow.verify.invariants import for_duckdb, payload_bytes, views
from windrow.verify.quality.great_expectations import SITE

if TYPE_CHECKING:
    import pandas as pd
    from duckdb import DuckDBPyConnection

LEDGER = "ledger"
ROWS = "rows"  # the attribute of a pandas frame that refers to the rows

# The checks need only the length of a payload, so `content_bytes` is kept in its place.
HELD = """
CREATE TABLE ledger AS SELECT * REPLACE (list_transform(messages, lambda one: {{
    'type': one.type, 'event_time': one.event_time, 'received_at': one.received_at,
    'content_bytes': coalesce(strlen(one.type), 0) + {payload}}}) AS messages)
FROM stream
"""
MESSAGES = """
CREATE VIEW messages AS SELECT batch, state, source, key, window_start, window_end, unnest(inside) FROM (
    SELECT id AS batch, state, source, key, window_start, window_end,
        unnest(list_transform(messages, lambda one, place: struct_insert(
            one, previous_event_time := messages[place - 1].event_time))) AS inside
    FROM ledger WHERE state IN ('open', 'closed'))
"""


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """The rows of a ledger as a table of DuckDB."""

    views: ClassVar[Mapping[str, str]] = {name: name for name in views(LEDGER)}
    connection: DuckDBPyConnection

    def __deepcopy__(self, memo: Any) -> EmbeddedRows:
        """Return the same rows: pandas copies a frame's attributes whenever it selects a column."""
        return self

    def ask(self, statement: str) -> pa.Table:
        """Return the answer to a statement, in which `{batch}` is the ledger."""
        found = self.connection.sql(for_duckdb(statement.format(batch=LEDGER))).to_arrow_table()
        return found.cast(pa.schema([field.with_type(_whole(field.type)) for field in found.schema]))

    def batch(self, context: Any, name: str) -> tuple[Any, pd.DataFrame]:
        """Return a batch definition for pandas, and a frame of one row that refers to these rows."""
        import pandas as pd

        frame = pd.DataFrame({"ledger": [LEDGER]})
        frame.attrs[ROWS] = self
        source = context.data_sources.add_or_update_pandas(SITE)
        return source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("ledger"), frame


def rows_of(frame: pd.DataFrame) -> EmbeddedRows:
    """Return the rows to which a frame refers."""
    rows: EmbeddedRows = frame.attrs[ROWS]
    return rows


@contextmanager
def embedded_rows(location: str) -> Iterator[tuple[int, EmbeddedRows]]:
    """Yield the latest version of a ledger at a path and its rows.

    Raises TableMissing, TableUnreadable, and TableRefused for a ledger that only Spark can read.
    """
    ledger = open_ledger(location)
    beyond = beyond_files(ledger.table)
    if beyond:
        raise TableRefused(
            f"the ledger at {location} has {beyond}, so its data files alone do not determine its rows",
            "Check it with --engine spark.",
        )
    with held_rows(ledger) as rows:
        yield ledger.version, rows


@contextmanager
def held_rows(ledger: Ledger) -> Iterator[EmbeddedRows]:
    """Yield the rows of a ledger version. Raises TableUnreadable."""
    import duckdb

    with database() as connection:
        try:
            _hold(connection, ledger)
        except duckdb.OutOfMemoryException:
            raise  # not a fault of the table
        except duckdb.Error as error:
            raise unreadable(ledger.location, "ledger", error) from error
        yield EmbeddedRows(connection)


def _hold(connection: DuckDBPyConnection, ledger: Ledger) -> None:
    """Read the ledger into a table, and create the views over it."""
    with reading(ledger.location, "ledger"):
        connection.register("stream", ledger.everything(without="payload"))
        connection.execute(HELD.format(payload=payload_bytes(ledger.payload, "one.payload", "strlen")))
    connection.unregister("stream")
    connection.execute(MESSAGES)
    for name, rows in views(LEDGER).items():
        if name != "messages":
            connection.execute(f"CREATE VIEW {name} AS {for_duckdb(f'SELECT * FROM {rows}')}")


def _whole(type_: pa.DataType) -> pa.DataType:
    """Return int64 for a decimal, as which DuckDB sums whole numbers, else the type itself."""
    return pa.int64() if pa.types.is_decimal(type_) else type_
