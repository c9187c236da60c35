"""Entries of a Delta log on a disk of this machine: what each says, which file it is, and how to put one behind it.

delta-rs lists the log when it opens a table, and twice for each commit, so that both grow with the past. Whoever knows
the number of the last entry knows the name of the next one. To put one there it is written whole beside the log and
linked under its number, which is what delta-rs does as well and what only one can do.

Only plain tables are written like this: those whose commits are nothing but files and numbers of applications.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from deltalake import DeltaTable

from windrow.locations import local_path
from windrow.version import VERSION

PLAIN_VERSION = 4  # up to this writer version all that a table may want of a commit stands in schema and properties
BY_FEATURES = 7  # the writer version that names what a table may want, so that Spark's catalogs give it to their tables
PLAIN_FEATURES = {"appendOnly", "changeDataFeed", "invariants"}
# More to be done at a commit or after it: values to check, manifests and other formats to write, files to put together.
WORK = ("delta.constraints.", "delta.compatibility.", "delta.universalFormat.", "delta.autoOptimize.")
USUAL_INTERVAL = 100  # commits between two checkpoints, where the table says nothing that makes sense
LARGEST = 4_000_000  # octets of an entry that is read here
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # a log on another disk, a disk without links
Action = dict[str, Any]
Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """What the log says of a version, and which file says it."""

    version: int
    identity: Identity
    actions: tuple[Action, ...]

    @property
    def kinds(self) -> set[str]:
        """Return the names of its actions."""
        return {kind for action in self.actions for kind in action}

    def of(self, kind: str) -> Iterator[Action]:
        """Yield its actions of a kind."""
        return (action[kind] for action in self.actions if kind in action)


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries in the log of one table."""

    root: Path

    @classmethod
    def at(cls, location: str) -> Entries | None:
        """Return the entries of the table at a location, None for one that is on no disk of this machine."""
        root = local_path(location)
        return None if root is None else cls(root)

    def path(self, version: int) -> Path:
        """Return where the entry of a version lies."""
        return self.root / "_delta_log" / f"{version:020}.json"

    def changed(self) -> Identity | None:
        """Return what is another one when an entry came or went, None where that cannot be seen."""
        try:
            return _identity((self.root / "_delta_log").stat())
        except OSError:
            return None

    def identity(self, version: int) -> Identity | None:
        """Return which file an entry is, None where that cannot be seen."""
        try:
            return _identity(self.path(version).stat())
        except OSError:
            return None

    def holds(self, version: int, identity: Identity) -> bool:
        """Tell whether the entry of a version is the file with an identity."""
        return self.identity(version) == identity

    def read(self, version: int) -> Entry | None:
        """Return an entry, None where there is none. Raises OSError, and ValueError for a large or damaged one."""
        try:
            with self.path(version).open("rb") as opened:
                identity = _identity(os.fstat(opened.fileno()))
                if not 0 < identity[1] <= LARGEST:
                    raise ValueError(f"{opened.name} has {identity[1]} octets")
                actions = tuple(json.loads(line) for line in opened if line.strip())
        except FileNotFoundError:
            return None
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError(f"{self.path(version)} does not hold actions")
        return Entry(version, identity, actions)

    def put(self, actions: Sequence[Action], behind: int, identity: Identity) -> Identity | None:
        """Put an entry behind a version whose entry is the file with an identity; return which file it is.

        None where somebody else was first, where that version has another entry now, or where the disk has no links:
        then nothing was put. Raises OSError when that is not known.
        """
        written = self.root / f"entry-{uuid4()}.tmp"
        try:
            written.write_text("".join(f"{_line(action)}\n" for action in actions), encoding="utf-8")
            put = _identity(written.stat())
            return put if self.holds(behind, identity) and _linked(written, self.path(behind + 1)) else None
        finally:
            written.unlink(missing_ok=True)


def _line(action: Action) -> str:
    return json.dumps(action, separators=(",", ":"))


def _linked(written: Path, number: Path) -> bool:
    """Give a file the name of a number, and tell whether it has it.

    A file system on a network may say of a link that it made, and of which the reply was lost, that it is there.
    """
    try:
        os.link(written, number)
    except FileExistsError:
        return written.samefile(number)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return False
    return True


def is_plain(table: DeltaTable) -> bool:
    """Tell whether a commit to a table is nothing but files and numbers of applications."""
    protocol = table.protocol()
    named = protocol.min_writer_version == BY_FEATURES and set(protocol.writer_features or ()) <= PLAIN_FEATURES
    return (
        (named or protocol.min_writer_version <= PLAIN_VERSION)
        and not any(name.startswith(WORK) for name in table.metadata().configuration)
        and all(field.metadata.keys() <= {"comment"} for field in table.schema().fields)
    )


def checkpoint_interval(table: DeltaTable) -> int:
    """Return how many commits lie between two checkpoints of a table."""
    said = table.metadata().configuration.get("delta.checkpointInterval", "").strip()
    return int(said) if said.isdecimal() and int(said) else USUAL_INTERVAL


def now() -> int:
    """Return the time of the log's entries in milliseconds."""
    return time.time_ns() // 1_000_000


def commit_info(parameters: Mapping[str, str], said: Mapping[str, str], at: int) -> Action:
    """Return what an entry says of itself: how it writes, and what its writer says."""
    about: Action = {"timestamp": at, "operation": "WRITE", "operationParameters": dict(parameters)}
    return about | {"engineInfo": f"windrow:{VERSION}", **said}


def number(application: str, version: int, at: int) -> Action:
    """Return the action that records the number of an application."""
    return {"txn": {"appId": application, "version": version, "lastUpdated": at}}


def add(path: str, octets: int, partition: Mapping[str, str | None], statistics: str, at: int) -> Action:
    """Return the action that adds a file."""
    added: Action = {"path": in_log(path), "partitionValues": dict(partition), "size": octets, "modificationTime": at}
    return {"add": added | {"dataChange": True, "stats": statistics}}


def remove(path: str, octets: int, partition: Mapping[str, str], at: int) -> Action:
    """Return the action that removes a file."""
    removed: Action = {"path": in_log(path), "dataChange": True, "deletionTimestamp": at}
    return {"remove": removed | {"extendedFileMetadata": True, "partitionValues": dict(partition), "size": octets}}


def in_log(path: str) -> str:
    """Return the path of a file as the log writes it."""
    return quote(path, safe="/=:")


def _identity(found: os.stat_result) -> Identity:
    return found.st_ino, found.st_size, found.st_mtime_ns
