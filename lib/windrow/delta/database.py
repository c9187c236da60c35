"""DuckDB for questions that Arrow does not answer: in memory, and beyond a limit in temporary files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from windrow.errors import TableUnwritable, first_line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_BYTES = 1_000_000_000  # what max_memory_bytes is by default
LEAST_DATABASE_BYTES = 300_000_000  # with less, DuckDB fails at joins of few rows
DATABASE_SHARE = 2  # of the memory is DuckDB's; the process, Arrow and the reference model have the rest
PREFIX = "windrow-check-"
LOCK = "lock"  # the file that a process holds as long as it uses its directory
LOCKED_AFTER_SECONDS = 60  # a directory is locked by then, or its process was killed

_MEMORY_BYTES: ContextVar[int] = ContextVar("memory_bytes", default=MEMORY_BYTES)


@contextmanager
def within_memory(memory_bytes: int) -> Iterator[None]:
    """Let what is read in the block take about this much memory, unless it is told otherwise."""
    token = _MEMORY_BYTES.set(memory_bytes)
    try:
        yield
    finally:
        _MEMORY_BYTES.reset(token)


@contextmanager
def database(memory_bytes: int | None = None) -> Iterator[DuckDBPyConnection]:
    """Yield a connection to an empty database, which is gone afterwards; it has its share of this much memory.

    Raises TableUnwritable where neither memory nor disk have room.
    """
    import duckdb

    share = (memory_bytes or _MEMORY_BYTES.get()) // DATABASE_SHARE
    with _scratch() as scratch:
        config: dict[str, Any] = {
            "memory_limit": f"{max(LEAST_DATABASE_BYTES, share)}B",
            "temp_directory": str(scratch),
            "python_enable_replacements": False,
        }
        with duckdb.connect(config=config) as connection:
            try:
                yield connection
            except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
                raise disk_error(error) from error


def is_full(error: Exception) -> bool:
    """Tell whether an error of DuckDB, or of Arrow that reads from it, is that there is no room for temporary rows."""
    return "Out of Memory Error" in str(error) or PREFIX in str(error)


def disk_error(error: Exception) -> TableUnwritable:
    """Return the error for temporary rows that fit neither into memory nor on disk."""
    return TableUnwritable(
        f"there is no room for temporary rows in memory and in {tempfile.gettempdir()}: {first_line(error)}",
        "Nothing was read to the end. Set TMPDIR to a directory with more room, or raise max_memory_bytes.",
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a directory for temporary files, which a later call removes if this process is killed."""
    from filelock import FileLock

    _remove_abandoned()
    try:
        scratch = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise disk_error(error) from error
    with scratch as directory, FileLock(Path(directory, LOCK)):
        yield Path(directory)


def _remove_abandoned() -> None:
    from filelock import FileLock, Timeout

    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time() - directory.stat().st_mtime > LOCKED_AFTER_SECONDS:
                with FileLock(directory / LOCK, timeout=0):
                    shutil.rmtree(directory, ignore_errors=True)
        except (OSError, Timeout):
            continue  # of another user, or in use
