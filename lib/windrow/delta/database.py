"""DuckDB for queries that Arrow cannot answer: in memory, and beyond a limit in temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from windrow.delta.scratch import scratch_directory
from windrow.errors import TableUnwritableError, first_line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_BYTES = 1_000_000_000  # the default of max_memory_bytes
MIN_DATABASE_BYTES = 300_000_000  # with less, DuckDB fails at joins of few rows
DATABASE_SHARE = 2  # DuckDB gets half of the memory; the process, Arrow and the reference model the rest
SPILLED = "windrow-spilled"  # the directory; a DuckDB error that names it is about temporary rows

_MEMORY_BYTES: ContextVar[int] = ContextVar("memory_bytes", default=MEMORY_BYTES)


@contextmanager
def memory_limit(memory_bytes: int) -> Iterator[None]:
    """Let reads inside the block use about this much memory, unless they are told otherwise."""
    token = _MEMORY_BYTES.set(memory_bytes)
    try:
        yield
    finally:
        _MEMORY_BYTES.reset(token)


@contextmanager
def database(memory_bytes: int | None = None) -> Iterator[DuckDBPyConnection]:
    """Yield a connection to an empty database, which is gone afterwards; it gets its share of this much memory.

    Raises TableUnwritableError if neither memory nor disk has room.
    """
    import duckdb

    share = (memory_bytes or _MEMORY_BYTES.get()) // DATABASE_SHARE
    with ExitStack() as stack:
        try:
            scratch = stack.enter_context(scratch_directory())
        except OSError as error:
            raise disk_error(error) from error
        config: dict[str, Any] = {
            "memory_limit": f"{max(MIN_DATABASE_BYTES, share)}B",
            "temp_directory": str(scratch / SPILLED),
            "python_enable_replacements": False,
        }
        with duckdb.connect(config=config) as connection:
            try:
                yield connection
            except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
                raise disk_error(error) from error


@contextmanager
def joins_as_written(connection: DuckDBPyConnection) -> Iterator[None]:
    """Make DuckDB join in the order of a query, which names the stream of rows first, and small tables after it.

    DuckDB does not know how many rows a stream has, so it might keep all of them in memory to look up a few others.
    """
    connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    try:
        yield
    finally:
        connection.execute("RESET disabled_optimizers")


def is_full(error: Exception) -> bool:
    """Tell whether an error of DuckDB, or of Arrow reading from it, means that temporary rows have no room."""
    return "Out of Memory Error" in str(error) or SPILLED in str(error)


def disk_error(error: Exception) -> TableUnwritableError:
    """Return the error for temporary rows that fit neither in memory nor on disk."""
    return TableUnwritableError(
        f"there is no room for temporary rows in memory or in {tempfile.gettempdir()}: {first_line(error)}",
        "The read did not finish. Set TMPDIR to a directory with more room, or raise max_memory_bytes.",
    )
