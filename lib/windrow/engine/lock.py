"""Commits to a local table: one writer at a time, and none counts before the disk keeps it.

On a local file system the commits of Spark and of delta-rs are not safe against each other, nor two Sparks: the rename
that publishes a commit is checked before, not while it is done. Windrow's own writers take an advisory lock beside the
table around each commit. It belongs to the process and is gone with it, however the process ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from windrow import durable
from windrow.errors import NotKept, TableLocked, TableUnwritable
from windrow.locations import local_path
from windrow.storage import unwritable, writing

PATIENCE_SECONDS = 120.0
KEPT: dict[Path, int] = {}  # of each table the last version that this process has seen kept


@contextmanager
def commit_lock(location: str, keep: bool = True) -> Iterator[None]:
    """Hold the lock of a local table, and `keep` what was committed meanwhile; nothing for a table elsewhere.

    Whoever comes by a symbolic link takes the lock of the table that it leads to. Raises TableLocked, TableUnwritable,
    and NotKept for a commit that the disk does not keep.
    """
    path = local_path(location)
    if path is None:
        yield
        return
    from filelock import FileLock, Timeout

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
        with _keeping(path) if keep else nullcontext():
            yield
    finally:
        lock.release()


@contextmanager
def _keeping(path: Path) -> Iterator[None]:
    """Keep what is committed meanwhile, also by who fails after it was; that error then is the one to tell."""
    before = None
    with suppress(OSError):  # who writes to the table says what is wrong with it
        before = durable.newest(path)
    try:
        yield
    except BaseException:
        if before is not None:
            with suppress(NotKept):
                _keep(path, before)
        raise
    if before is not None:
        _keep(path, before)


def keep_read(location: str, after: int, upto: int) -> None:
    """Have a local depot keep the versions after `after` up to `upto`, whoever wrote them, before a ledger counts them.

    Otherwise a power cut could take a version that the ledger has read, and another one would get its number. Raises
    NotKept.
    """
    path = local_path(location)
    if path is not None:
        _keep(path.resolve(), after, upto)


def mend(location: str, role: str) -> None:
    """Set aside what a power cut left at the end of a local table's log. Raises TableUnreadable, TableLocked."""
    if durable.is_torn(location):
        try:
            with commit_lock(location, keep=False), writing(location, role):
                durable.mend(location, role)
        except TableUnwritable:
            if durable.is_torn(location, entries=True):
                raise  # files that only save time may stay where nobody may move them
        KEPT.clear()


def follow(ledger: str, depot: str) -> None:
    """Set aside what a local ledger made of versions that were set aside of its depot. Raises TableLocked."""
    if durable.resting_on_lost(ledger, depot) is not None:
        with commit_lock(ledger, keep=False), writing(ledger, "ledger"):
            durable.follow(ledger, depot)
        KEPT.clear()


def keep_recent(location: str) -> None:
    """Have the disk keep what a local table has, whoever wrote it. Raises NotKept."""
    path = local_path(location)
    if path is not None:
        path = path.resolve()
        with writing(location, "depot"):
            before = durable.newest(path)
        _keep(path, before)


def _keep(path: Path, before: int, upto: int | None = None) -> None:
    """Keep what came after version `before`, and of what was there already all that nobody may have kept yet.

    A process that was killed, or told not to wait, left that; a commit that is kept on top of it would be lost with it.
    """
    after = before if upto is not None else durable.unwritten(path, before, KEPT.get(path, -1))
    try:
        last = durable.keep(path, after, upto)
    except OSError as error:
        raise NotKept(
            f"the disk does not keep what was written to the table at {path}: {error}",
            "What stands there may be gone after a power cut. See to the disk, then run `windrow verify`.",
        ) from error
    if upto is None:
        KEPT[path] = last
