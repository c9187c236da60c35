"""Lock a local table around each commit, and sync the commit to disk.

On a local file system two writers (Spark or delta-rs) can both publish the same version, because checking that the
version is free and renaming the entry is not atomic. So Windrow's writers hold an advisory lock, a file next to the
table, around each commit. The lock belongs to the process and is released when the process ends, even by a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from windrow.delta import durable
from windrow.delta.locations import local_path
from windrow.delta.logfiles import newest_version
from windrow.delta.table import translate_write_errors, unwritable_error
from windrow.errors import CommitNotDurableError, TableLockedError

LOCK_TIMEOUT_SECONDS = 120.0
SYNCED: dict[Path, int] = {}  # the last version of each table that this process has synced


@contextmanager
def commit_lock(location: str, sync: bool = True) -> Iterator[None]:
    """Hold the lock of a local table, and `sync` the commits made inside; other tables have no lock.

    A symbolic link uses the lock of its target. Raises TableLockedError, TableUnwritableError, and
    CommitNotDurableError if the disk does not keep a commit.
    """
    path = local_path(location)
    if path is None:
        yield
        return
    from filelock import FileLock, Timeout

    # guard: one-lock
    path = path.resolve() if path.exists() else path.absolute()
    file = path.parent / f".{path.name}.lock"
    lock = FileLock(file, timeout=LOCK_TIMEOUT_SECONDS)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # fails at once where no file can be created; FileLock would wait
        lock.acquire()
    except Timeout as error:
        raise TableLockedError(
            f"another process has held {file} for {LOCK_TIMEOUT_SECONDS:.0f} s",
            "Find the process that writes to this table; the lock is free when that process ends.",
        ) from error
    except OSError as error:
        raise unwritable_error(location, "table", error) from error
    try:
        # guard: commit-durable
        with _syncing(path) if sync else nullcontext():
            yield
    finally:
        lock.release()


@contextmanager
def _syncing(path: Path) -> Iterator[None]:
    """Sync the commits made inside, even if something fails after the commit; then that error is raised."""
    before = None
    with suppress(OSError):  # the writer reports what is wrong with the table
        before = newest_version(path)
    try:
        yield
    except BaseException:
        if before is not None:
            with suppress(CommitNotDurableError):
                _sync_new(path, before)
        raise
    if before is not None:
        _sync_new(path, before)


def sync_read(location: str, after: int, last_version: int) -> None:
    """Sync the versions of a local depot after `after` up to `last_version`, whoever wrote them, before they are read.

    Otherwise a power cut could remove a version that the ledger has read, and another commit would get its number.
    Raises CommitNotDurableError.
    """
    path = local_path(location)
    if path is not None:
        with _refusals(path):
            root = path.resolve()
            durable.sync_commits(root, durable.last_durable_version(root, last_version, after), last_version)


def sync_recent(location: str) -> None:
    """Sync all commits of a local depot, even if others wrote them.

    Raises CommitNotDurableError, TableUnwritableError.
    """
    path = local_path(location)
    if path is not None:
        path = path.resolve()
        with translate_write_errors(location, "depot"):
            before = newest_version(path)
        _sync_new(path, before)


def _sync_new(path: Path, before: int) -> None:
    """Sync the versions after `before`, and earlier ones that may not be on the disk yet.

    A process that was killed, or runs with `fsync = false`, may have left such versions. If a power cut removed them,
    the commits after them would be lost too.
    """
    with _refusals(path):
        # guard: predecessor-durable
        SYNCED[path] = durable.sync_commits(path, durable.last_durable_version(path, before, SYNCED.get(path, -1)))


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommitNotDurableError(
            f"what was written to the table at {path} may not have reached the disk: {error.strerror or error}",
            "A power cut may remove the commit. Check the disk, then run `windrow verify`.",
        ) from error
