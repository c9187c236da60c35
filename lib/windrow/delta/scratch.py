"""Directories for temporary files that outlive no process: the next process cleans up after one that was killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

PREFIX = "windrow-scratch-"
LOCK = "lock"  # the file that a process locks as long as it uses its directory
LOCKED_AFTER_SECONDS = 60  # a directory is locked by then, or its process was killed


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory for temporary files, which a later call removes if this process is killed.

    Raises OSError where there is no room for it.
    """
    from filelock import FileLock

    _remove_abandoned()
    scratch = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
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
