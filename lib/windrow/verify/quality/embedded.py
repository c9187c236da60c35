"""The rows of a ledger without Spark: read once by delta-rs, held by DuckDB, which runs the same SQL translated.

DuckDB holds them in memory up to a limit and beyond it in files of its own. It computes what the invariants ask for;
Great Expectations, on its engine for pandas, gets a small frame that leads here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.delta.table import beyond_files, reading, unreadable
from windrow.errors import MissingExtra, TableRefused
from windrow.reading.delta import Ledger, open_ledger
from windrow.verify.invariants import for_duckdb, views
from windrow.verify.quality.library import SITE

if TYPE_CHECKING:
    import pandas as pd
    from duckdb import DuckDBPyConnection

MEMORY = "2GB"  # as Spark's driver has it
LEDGER = "ledger"
NAMES = {name: name for name in views(LEDGER)}
ROWS = "rows"  # where a frame for pandas has the rows that it leads to

# Payloads only count by their content_bytes: those are kept instead.
HELD = """
CREATE TABLE ledger AS SELECT * REPLACE (list_transform(messages, lambda one: {{
    'type': one.type, 'event_time': one.event_time, 'received_at': one.received_at,
    'content_bytes': coalesce(strlen(one.type), 0) + coalesce({content_bytes}(one.payload), 0)}}) AS messages)
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

    connection: DuckDBPyConnection

    def __deepcopy__(self, memo: Any) -> EmbeddedRows:
        """Return the same rows: pandas copies what a frame carries whenever it looks at a column."""
        return self

    @property
    def views(self) -> Mapping[str, str]:
        """Return the names of the views, which DuckDB has."""
        return NAMES

    def ask(self, statement: str) -> pa.Table:
        """Return the answer to a statement, in which `{batch}` is the ledger."""
        found = self.connection.sql(for_duckdb(statement.format(batch=LEDGER))).to_arrow_table()
        return found.cast(pa.schema([field.with_type(_whole(field.type)) for field in found.schema]))

    def batch(self, context: Any, name: str) -> tuple[Any, pd.DataFrame]:
        """Return a batch definition for pandas, and a frame of one row that leads to these rows."""
        import pandas as pd

        frame = pd.DataFrame({"ledger": [LEDGER]})
        frame.attrs[ROWS] = self
        source = context.data_sources.add_or_update_pandas(SITE)
        return source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("ledger"), frame


def rows_of(frame: pd.DataFrame) -> EmbeddedRows:
    """Return the rows to which a frame leads."""
    rows: EmbeddedRows = frame.attrs[ROWS]
    return rows


def can_hold(location: str) -> bool:
    """Tell whether the rows of a ledger at a path can be read here without Spark. Raises TableMissing, TableRefused."""
    return find_spec("duckdb") is not None and not beyond_files(open_ledger(location).table)


@contextmanager
def embedded_rows(location: str) -> Iterator[tuple[int, EmbeddedRows]]:
    """Yield the latest version of a ledger at a path and its rows.

    Raises MissingExtra, TableMissing, TableUnreadable, and TableRefused for one that only Spark reads.
    """
    duckdb = _duckdb()
    ledger = open_ledger(location)
    beyond = beyond_files(ledger.table)
    if beyond:
        raise TableRefused(
            f"the ledger at {location} has {beyond}, with which its files alone do not say what its rows are",
            "Check it with --engine spark.",
        )
    with tempfile.TemporaryDirectory(prefix="windrow-check-") as scratch:
        config = {"memory_limit": MEMORY, "temp_directory": scratch}
        with duckdb.connect(config=config) as connection:
            try:
                _hold(connection, ledger)
            except duckdb.OutOfMemoryException:
                raise  # says nothing of the table
            except duckdb.Error as error:
                raise unreadable(location, "ledger", error) from error
            yield ledger.table.version(), EmbeddedRows(connection)


def _hold(connection: DuckDBPyConnection, ledger: Ledger) -> None:
    """Read the ledger into a table, and make the views over it."""
    with reading(ledger.location, "ledger"):
        connection.register("stream", ledger.everything(without="payload"))
        content_bytes = "octet_length" if pa.types.is_binary(ledger.payload) else "strlen"
        connection.execute(HELD.format(content_bytes=content_bytes))
    connection.unregister("stream")
    connection.execute(MESSAGES)
    for name, rows in views(LEDGER).items():
        if name != "messages":
            connection.execute(f"CREATE VIEW {name} AS {for_duckdb(f'SELECT * FROM {rows}')}")


def _whole(type_: pa.DataType) -> pa.DataType:
    """Return the type of a count: DuckDB sums whole numbers as decimals."""
    return pa.int64() if pa.types.is_decimal(type_) else type_


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra(
            "checking a ledger without Spark needs duckdb", "Install it: pip install 'windrow-delta[embedded]'."
        ) from error
    return duckdb
