"""Tables opened, and what goes wrong with them on disk, in words of our own: contexts around reading and writing.

Whatever delta-rs, Arrow or the operating system raise inside becomes TableUnreadable or TableUnwritable with the place
and the cause. Our own errors pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import PostCommitHookProperties
from pyarrow.fs import FileType, PyFileSystem

from windrow.errors import TableMissing, TableUnreadable, TableUnwritable, first_line
from windrow.locations import local_path

FAULTS = (DeltaError, pa.ArrowException, OSError)
# After a commit: a checkpoint now and then, as the table's properties say, but nothing of the log is deleted. What is
# old in a depot may be unread still; only maintenance knows how far the ledger has come.
UNTRIMMED = PostCommitHookProperties(cleanup_expired_logs=False)


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


def shared_table(location: str, role: str) -> DeltaTable:
    """Return a table at a path as it is now, the same object to all who ask until it changes.

    So nobody may write through it in a way that moves it to another version. Raises TableMissing, TableUnreadable.
    """
    return _opened(OPENED.get, location, role)


def _opened(opening: Callable[[str], DeltaTable], location: str, role: str) -> DeltaTable:
    try:
        return opening(location)
    except TableNotFoundError as error:
        raise missing(location, role) from error
    except FAULTS as error:
        raise unreadable(location, role, error) from error


class Opened:
    """Tables on a disk of this machine that were opened lately: to open one reads its log from the last checkpoint on.

    A table is the one that was opened as long as nothing came to its log or went, and the file of its version is the
    same. A table that was made anew, brought back from a copy or RESTOREd has another.
    """

    def __init__(self, most: int = 8) -> None:
        """Keep `most` tables at most."""
        self._most = most
        self._kept: dict[str, tuple[DeltaTable, Stamp]] = {}

    def get(self, location: str) -> DeltaTable:
        """Return the table as it is now. Raises what delta-rs raises."""
        kept = self._kept.pop(location, None)
        if kept is None or _stamp(location, kept[0].version()) != kept[1]:
            table = DeltaTable(location)
            stamp = _stamp(location, table.version())
            if stamp is None:
                return table
            kept = table, stamp
        while len(self._kept) >= self._most:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[location] = kept
        return kept[0]

    def forget(self, location: str) -> None:
        """Open a table anew when it is asked for next: somebody knows, or tried, more than a file system may tell."""
        self._kept.pop(location, None)


Stamp = tuple[tuple[int, int, int], tuple[int, int, int]]


def _stamp(location: str, version: int) -> Stamp | None:
    """Return what changes when anything is added to the log or taken away, or the file of a version is another one.

    None when there is a newer version, which two commits within a tick of the file system's clock need, or none at all.
    """
    path = local_path(location)
    if path is None or (path / _entry(version + 1)).exists():
        return None
    try:
        return _identity(path / "_delta_log"), _identity(path / _entry(version))
    except OSError:
        return None


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _entry(version: int) -> str:
    return f"_delta_log/{version:020}.json"


OPENED = Opened()


def history(table: DeltaTable, since: int = 0, *, octets: bool = False) -> Iterator[dict[str, Any]]:
    """Yield what the log says of each commit, the last first, back to version `since` or where the log begins.

    `version` is the number of the log's own file. `DeltaTable.history` counts back from the version at which the table
    was opened, and begins with the newest that there is: one commit in between, and each has the number of another. A
    commit that says nothing of itself has the time of its file. With `octets` it says how many its files have. Raises
    OSError for an empty file.
    """
    store = PyFileSystem(DeltaStorageHandler(table.table_uri))
    for version in range(table.version(), since - 1, -1):
        place = _entry(version)
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
