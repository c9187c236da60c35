"""Sync commits of local tables to disk: fsync the data files, then the log entry that names them.

The operating system writes files to the device later; Linux waits half a minute by default. So a commit is reported
only after `sync_commits` has returned, when the data files of the entry, the entry and their directories are on the
device. A power cut during a commit then leaves at most one entry, which was not reported. Object stores are durable by
design.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from windrow.delta.logfiles import (
    HINT,
    LOG,
    actions,
    added_files,
    checksums,
    entries,
    entry_path,
    last_checkpoint,
    names,
)

WRITTEN_AFTER = 120.0  # seconds; Linux waits for 35 by default


def sync_commits(root: Path, after: int, last_version: int | None = None) -> int:
    """Sync the commits after version `after`, up to `last_version`; return the last one synced. Raises OSError."""
    log_entries = list(entries(root, after, last_version))
    if not log_entries:
        return after
    logged = list(chain.from_iterable(actions(entry) or [] for entry in log_entries))
    data = [file for file, _ in added_files(root, logged)]
    if any("deletionVector" in action.get("add", {}) for action in logged):
        data += root.rglob("deletion_vector_*.bin")
    folders = {file.parent for file in data}
    inside = {above for folder in folders for above in (folder, *folder.parents) if above.is_relative_to(root)}
    made = {root, *root.parents} if after < 0 else set()
    fsync([*_with_checksums(data), *sorted(inside | made, reverse=True)])
    checkpoint = last_checkpoint(root)
    fsync(_with_checksums(log_entries))
    if checkpoint is not None and checkpoint > after:
        sync_checkpoint(root, checkpoint)
    else:
        fsync([root / LOG])
    return after + len(log_entries)


def sync_checkpoint(root: Path, version: int) -> None:
    """Sync the checkpoint of a version, before the entries that it replaces are deleted. Raises OSError."""
    log = root / LOG
    files = [log / name for name in names(log) if name.startswith(f"{version:020}.checkpoint.")]
    fsync([*_with_checksums([*files, log / HINT]), log])


def last_durable_version(root: Path, last_version: int, kept: int) -> int:
    """Return the version up to which a table's commits are on the device; this process has synced those up to `kept`.

    Files older than `WRITTEN_AFTER` count as written by the operating system. Raises OSError.
    """
    since = time.time() - WRITTEN_AFTER
    for version in range(last_version, min(kept, last_version), -1):
        entry = root / entry_path(version)
        if not entry.exists() or entry.stat().st_ctime < since:  # a copy may keep the old modification time
            return version
    return min(kept, last_version)


def fsync(paths: Iterable[Path]) -> None:
    """Sync files and directories in this order. Raises OSError."""
    for path in dict.fromkeys(paths):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):  # removed or not ours: the reader reports it
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _with_checksums(files: Iterable[Path]) -> list[Path]:
    return [path for file in files for path in (file, checksums(file))]
