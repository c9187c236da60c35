"""DuckDB for questions that Arrow does not answer: in memory, and beyond a limit in temporary files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from windrow.errors import TableUnwritable, first_line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_BYTES = 2_000_000_000  # the same as Spark's driver
LEAST_BYTES = 300_000_000  # with less, DuckDB fails at joins of few rows
SHARE = 2  # of the memory is DuckDB's; the process, Arrow and a reference model have the rest
PREFIX = "windrow-check-"
LOCK = "lock"  # the file that a process holds as long as it uses its directory
LOCKED_AFTER_SECONDS = 60  # a directory is locked by then, or its process was killed


def share_of(max_memory_bytes: int) -> int:
    """Return how much of the memory of a check is DuckDB's."""
    return max(LEAST_BYTES, max_memory_bytes // SHARE)


@contextmanager
def database(memory_bytes: int = MEMORY_BYTES) -> Iterator[DuckDBPyConnection]:
    """Yield a connection to an empty database with this much memory, which is gone afterwards.

    Raises TableUnwritable where neither memory nor disk have room.
    """
    import duckdb

    with _scratch() as scratch:
        config: dict[str, Any] = {"memory_limit": f"{memory_bytes}B", "temp_directory": str(scratch)}
        with duckdb.connect(config=config) as connection:
            try:
                yield connection
            except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
                raise disk_error(error) from error


def disk_error(error: Exception) -> TableUnwritable:
    """Return the error for temporary rows that fit neither into memory nor on disk."""
    return TableUnwritable(
        f"there is no room for temporary rows in memory and in {tempfile.gettempdir()}: {first_line(error)}",
        "Nothing was checked to the end. Set TMPDIR to a directory with more room, or raise max_memory_bytes.",
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
    """Remove the directories of processes that were killed."""
    from filelock import FileLock, Timeout

    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time() - directory.stat().st_mtime > LOCKED_AFTER_SECONDS:
                with FileLock(directory / LOCK, timeout=0):
                    shutil.rmtree(directory, ignore_errors=True)
        except (OSError, Timeout):
            continue  # of another user, or in use
