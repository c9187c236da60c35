"""Commits to a local table: one writer at a time, and a commit counts when the disk keeps it.

On a local file system two writers, of Spark or of delta-rs, can both publish the same version: each checks that the
version is free before it renames its entry, not while it does. So Windrow's writers hold an advisory lock beside the
table around each commit. The lock belongs to the process and ends with it, however that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from windrow.delta import durable
from windrow.delta.locations import local_path
from windrow.delta.logfiles import newest
from windrow.delta.table import unwritable, writing
from windrow.errors import NotKept, TableLocked

PATIENCE_SECONDS = 120.0
KEPT: dict[Path, int] = {}  # the last version of each table that this process has synced


@contextmanager
def commit_lock(location: str, keep: bool = True) -> Iterator[None]:
    """Hold the lock of a local table, and `keep` what is committed inside; a table elsewhere has no lock.

    A symbolic link takes the lock of the table that it leads to. Raises TableLocked, TableUnwritable, and NotKept for a
    commit that the disk does not keep.
    """
    path = local_path(location)
    if path is None:
        yield
        return
    from filelock import FileLock, Timeout

    # guard: one-lock
    path = path.resolve() if path.exists() else path.absolute()
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
        # guard: commit-durable
        with _keeping(path) if keep else nullcontext():
            yield
    finally:
        lock.release()


@contextmanager
def _keeping(path: Path) -> Iterator[None]:
    """Keep what is committed inside, also when something fails after the commit: then that error is raised."""
    before = None
    with suppress(OSError):  # the writer says what is wrong with the table
        before = newest(path)
    try:
        yield
    except BaseException:
        if before is not None:
            with suppress(NotKept):
                _keep_new(path, before)
        raise
    if before is not None:
        _keep_new(path, before)


def keep_read(location: str, after: int, upto: int) -> None:
    """Have a local depot keep the versions after `after` up to `upto`, whoever wrote them, before a ledger counts them.

    Otherwise a power cut could take a version that the ledger has read, and another commit would get its number. Raises
    NotKept.
    """
    path = local_path(location)
    if path is not None:
        with _refusals(path):
            durable.keep(path.resolve(), after, upto)


def keep_recent(location: str) -> None:
    """Have the disk keep what a local depot has, whoever wrote it. Raises NotKept, TableUnwritable."""
    path = local_path(location)
    if path is not None:
        path = path.resolve()
        with writing(location, "depot"):
            before = newest(path)
        _keep_new(path, before)


def _keep_new(path: Path, before: int) -> None:
    """Keep the versions behind `before`, and the earlier ones that nobody may have kept.

    A process that was killed, or told not to wait, left those; a commit on top of them would be lost with them.
    """
    with _refusals(path):
        # guard: predecessor-durable
        KEPT[path] = durable.keep(path, durable.unwritten(path, before, KEPT.get(path, -1)))


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotKept(
            f"the disk does not keep what was written to the table at {path}: {error}",
            "A power cut may take it. Check the disk, then run `windrow verify`.",
        ) from error
