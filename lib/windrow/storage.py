"""Tables opened, and what goes wrong with them on disk, in words of our own: contexts around reading and writing.

Whatever delta-rs, Arrow or the operating system raise inside becomes TableUnreadable or TableUnwritable with the place
and the cause. Our own errors pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import TextIOWrapper
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import PostCommitHookProperties
from pyarrow.fs import FileSystem, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from windrow.entries import Entries, Entry, Identity
from windrow.errors import TableMissing, TableUnreadable, TableUnwritable, first_line
from windrow.locations import local_path

FAULTS = (DeltaError, pa.ArrowException, OSError)
# After a commit: a checkpoint now and then, as the table's properties say, but nothing of the log is deleted. What is
# old in a depot may be unread still; only maintenance knows how far the ledger has come.
UNTRIMMED = PostCommitHookProperties(cleanup_expired_logs=False)
FOLLOWED = {"add", "remove", "cdc", "txn", "commitInfo"}  # actions that change nothing but which files a table has
MOST_FOLLOWED = 200  # entries
Found = TypeVar("Found")


@contextmanager
def reading(location: str, role: str) -> Iterator[None]:
    """Read a depot or ledger. Raises TableUnreadable."""
    try:
        yield
    except FAULTS as error:
        raise unreadable(location, role, error) from error


@contextmanager
def writing(location: str, role: str) -> Iterator[None]:
    """Write to a depot or ledger. Raises TableUnwritable: a commit that failed left nothing that counts."""
    try:
        yield
    except FAULTS as error:
        raise unwritable(location, role, error) from error


def unreadable(location: str, role: str, error: Exception) -> TableUnreadable:
    """Return the error for a table that is there and cannot be read."""
    return TableUnreadable(
        f"the {role} at {location} cannot be read: {first_line(error)}",
        "Check its rights and its files; what is damaged or gone has to come back from a copy, log and files together.",
    )


def unwritable(location: str, role: str, error: Exception) -> TableUnwritable:
    """Return the error for a table to which nothing can be written."""
    return TableUnwritable(
        f"the {role} at {location} cannot be written: {first_line(error)}",
        "Nothing of it counts. See that there is space and the right to write, and run again.",
    )


def open_table(location: str, role: str) -> DeltaTable:
    """Open a table at a path. Raises TableMissing, TableUnreadable."""
    return _opened(DeltaTable, location, role)


def seen_table(location: str, role: str) -> Seen:
    """Return a table at a path as it is now, the same object to all who ask until it changes.

    Raises TableMissing, TableUnreadable.
    """
    return _opened(OPENED.get, location, role)


def _opened(opening: Callable[[str], Found], location: str, role: str) -> Found:
    try:
        return opening(location)
    except TableNotFoundError as error:
        raise missing(location, role) from error
    except FAULTS as error:
        raise unreadable(location, role, error) from error


@dataclass(frozen=True, slots=True)
class Seen:
    """A table as it is at a version: as it was opened, and what its log says since.

    Nobody may write through `table`, which others have as well and which knows nothing of what came since. `log`,
    `identity` (the file of the version's entry) and `changed` (the log's directory before it was read) are None for a
    table elsewhere than on a disk of this machine.
    """

    table: DeltaTable
    version: int
    log: Entries | None = None
    identity: Identity | None = None
    changed: Identity | None = None
    since: tuple[Entry, ...] = ()

    @classmethod
    def at(cls, location: str) -> Seen:
        """Open a table. Raises what delta-rs raises."""
        log = Entries.at(location)
        changed = None if log is None else log.changed()
        table = DeltaTable(location)
        version = table.version()
        return cls(table, version, log, None if log is None else log.identity(version), changed)

    def transaction(self, application: str) -> int | None:
        """Return the version that the log recorded for a transaction id."""
        for entry in reversed(self.since):
            for number in entry.of("txn"):
                if number["appId"] == application:
                    return int(number["version"])
        return self.table.transaction_version(application)

    @property
    def files(self) -> FileSystem:
        """Return the files of the table, by their paths in it."""
        if self.log is None:
            return PyFileSystem(DeltaStorageHandler(self.table.table_uri))
        return SubTreeFileSystem(str(self.log.root.resolve()), LocalFileSystem())

    def history(self, since: int = 0, *, octets: bool = False) -> Iterator[dict[str, Any]]:
        """Yield what the log says of each commit, as `history` does of a table."""
        return _history(self.files, self.version, since, octets)

    def followed(self) -> Seen | None:
        """Return the table as it is now, None where it has to be opened anew.

        That is so when the entry of the version is gone or another file, as in a table that was made anew, brought
        back from a copy or cut off; when something happened to the log and there is no next entry, as where one is
        missing; when more changed than files; and now and then, to forget what came long ago.
        """
        if self.log is None or self.identity is None:
            return None
        since, changed = [*self.since], self.log.changed()
        try:
            while (entry := self.log.read(self.table.version() + len(since) + 1)) is not None:
                since.append(entry)
                if len(since) > MOST_FOLLOWED or not entry.kinds <= FOLLOWED:
                    return None
        except (OSError, ValueError):
            return None
        if not self.log.holds(self.version, self.identity):
            return None
        if len(since) == len(self.since):
            return self if changed == self.changed else None
        last = since[-1]
        return replace(self, version=last.version, identity=last.identity, changed=changed, since=tuple(since))


class Opened:
    """Tables that were opened lately: to open one costs the more, the longer its log is and the more was ever removed.

    So one on a disk of this machine is followed from then on, entry by entry.
    """

    def __init__(self, most: int = 8) -> None:
        """Keep `most` tables at most."""
        self._most = most
        self._kept: dict[str, Seen] = {}

    def get(self, location: str) -> Seen:
        """Return the table as it is now. Raises what delta-rs raises."""
        kept = self._kept.pop(location, None)
        seen = (None if kept is None else kept.followed()) or Seen.at(location)
        while len(self._kept) >= self._most:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[location] = seen
        return seen

    @contextmanager
    def doubted(self, location: str) -> Iterator[None]:
        """Open a table anew when it is asked for next if what is tried fails: it may not be what it looks like."""
        try:
            yield
        except BaseException:
            self._kept.pop(location, None)
            raise


OPENED = Opened()


def history(table: DeltaTable, since: int = 0, *, octets: bool = False) -> Iterator[dict[str, Any]]:
    """Yield what the log says of each commit, the last first, back to version `since` or where the log begins.

    `version` is the number of the log's own file. `DeltaTable.history` counts back from the version at which the table
    was opened, and begins with the newest that there is: one commit in between, and each has the number of another. A
    commit that says nothing of itself has the time of its file. With `octets` it says how many its files have. Raises
    OSError for an empty file.
    """
    return _history(PyFileSystem(DeltaStorageHandler(table.table_uri)), table.version(), since, octets)


def _history(store: FileSystem, latest: int, since: int, octets: bool) -> Iterator[dict[str, Any]]:
    for version in range(latest, since - 1, -1):
        place = f"_delta_log/{version:020}.json"
        found = store.get_file_info(place)
        if found.type == FileType.NotFound:
            return
        if not found.size:
            raise OSError(f"{place} is empty")
        with TextIOWrapper(store.open_input_stream(place), encoding="utf-8") as lines:
            wanted = ('"commitInfo"', '"add"') if octets else ('"commitInfo"',)
            actions = (json.loads(line) for line in lines if any(word in line for word in wanted))
            known = list(actions) if octets else actions
            said: dict[str, Any] = next((action["commitInfo"] for action in known if "commitInfo" in action), {})
        size = {"octets": sum(action.get("add", {}).get("size", 0) for action in known)} if octets else {}
        yield {"timestamp": found.mtime_ns // 1_000_000} | said | {"version": version} | size


def missing(location: str, role: str) -> TableMissing:
    """Return the error for a table that is not there."""
    creates = "`windrow init` creates it" if role == "ledger" else "`windrow init` or `windrow ingest` creates it"
    path = local_path(location)
    place = f"{location} ({path.resolve()})" if path is not None and not path.is_absolute() else location
    return TableMissing(f"there is no {role} at {place}", f"{creates}; or name another with --{role}.")
