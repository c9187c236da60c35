"""DuckDB for questions that Arrow does not answer: in memory, and beyond a limit in temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY = "2GB"  # the same as Spark's driver


@contextmanager
def database() -> Iterator[DuckDBPyConnection]:
    """Yield a connection to an empty database, which is gone afterwards."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="windrow-check-") as scratch:
        config: dict[str, Any] = {"memory_limit": MEMORY, "temp_directory": scratch}
        with duckdb.connect(config=config) as connection:
            yield connection
