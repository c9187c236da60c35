"""An advisory lock beside a local table.

On a local file system the commits of Spark and of delta-rs are not safe against each other, nor two Sparks: the rename
that publishes a commit is checked before, not while it is done. Windrow's own writers take this lock around each
commit. It belongs to the process and is gone with it, however the process ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windrow.errors import TableLocked
from windrow.locations import local_path
from windrow.storage import unwritable

PATIENCE_SECONDS = 120.0


@contextmanager
def commit_lock(location: str) -> Iterator[None]:
    """Hold the lock of a local table; nothing for a table elsewhere. Raises TableLocked, TableUnwritable.

    Whoever comes by a symbolic link takes the lock of the table that it leads to.
    """
    path = local_path(location)
    if path is None:
        yield
        return
    from filelock import FileLock, Timeout

    path = path.resolve() if path.exists() else path
    file = path.parent / f".{path.name}.lock"
    lock = FileLock(file, timeout=PATIENCE_SECONDS)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise TableLocked(
            f"another process has held {file} for {PATIENCE_SECONDS:.0f} s",
            "See which process writes to this table; the lock is free as soon as it ends.",
        ) from error
    except OSError as error:
        raise unwritable(location, "table", error) from error
    try:
        yield
    finally:
        lock.release()
