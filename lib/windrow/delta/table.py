"""Open Delta tables with delta-rs, keep them open, read their history, and translate errors.

Errors of delta-rs, Arrow and the operating system become TableUnreadableError or TableUnwritableError, with the
location and the cause. Windrow's errors pass unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import PostCommitHookProperties
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from windrow.delta.locations import absolute, local_path
from windrow.delta.logfiles import LOG, Condition, entry_path, names, read_entry, versions
from windrow.delta.store_errors import explain_store_error
from windrow.errors import (
    REPORT,
    InternalError,
    TableMissingError,
    TableUnreadableError,
    TableUnwritableError,
    first_line,
    is_panic,
)
from windrow.model.commits import rows_added, rows_in_files

if TYPE_CHECKING:
    from deltalake.table import FilterType

READ_ERRORS = (DeltaError, pa.ArrowException, OSError)
# After a commit delta-rs writes checkpoints as the table's properties say, but deletes no log entries. Old versions of
# a depot may still be unread; only maintenance knows how far the ledger has read.
# guard: depot-log-stays
UNTRIMMED = PostCommitHookProperties(cleanup_expired_logs=False)
BY_NAME = 2  # the reader version that introduced column mapping
BEYOND_DELTA_RS = re.compile(r"[Uu]nsupported table features|is not supported for read")
GONE_FILE = re.compile(
    r'(?:Object at location |match the pattern "|Cannot open file ")(\S.*?)(?: not found|"(?:$|\s|: No such))',
    re.MULTILINE,
)
BEGINNING_BYTES = 65_536  # of an entry, which identify it
HARMLESS = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}  # features that change no file's meaning


class EmptyEntry(OSError):
    """An entry of a log is empty: Delta's readers would take it for a commit without content."""


@contextmanager
def translate_read_errors(location: str, role: str) -> Iterator[None]:
    """Read a depot or ledger. Raises TableUnreadableError, and InternalError if delta-rs panics."""
    with translate_panics(location, role):
        try:
            yield
        except READ_ERRORS as error:
            raise unreadable_error(location, role, error) from error


@contextmanager
def translate_write_errors(location: str, role: str) -> Iterator[None]:
    """Write to a depot or ledger. Raises TableUnwritableError: a commit that failed left nothing that counts."""
    with translate_panics(location, role):
        try:
            yield
        except READ_ERRORS as error:
            raise unwritable_error(location, role, error) from error


@contextmanager
def translate_panics(location: str, role: str) -> Iterator[None]:
    """Use delta-rs. Its panics, which are no `Exception` and could end a thread or program, become InternalError."""
    try:
        yield
    except BaseException as error:
        # guard: delta-rs-panics
        if is_panic(error):
            raise InternalError(f"delta-rs failed at the {role} {location}: {first_line(error)}", REPORT) from error
        raise


def unreadable_error(location: str, role: str, error: Exception) -> TableUnreadableError:
    """Return the error for a table that exists but cannot be read."""
    path = local_path(location)
    if path is not None and path.is_file():
        return TableUnreadableError(f"{location} is a file, not a table", f"Name the directory of the {role}.")
    if (cause := explain_store_error(error, location)) is not None:
        return TableUnreadableError(f"the {role} at {location} cannot be read: {cause[0]}", cause[1])
    if (gone := GONE_FILE.search(str(error))) is not None:
        return TableUnreadableError(
            f"the {role} at {location} lacks a file that its log names: {gone[1]}",
            "Restore it from a copy. `windrow doctor` lists what is missing.",
        )
    if (entry := damaged_entry(location)) is not None:
        return TableUnreadableError(
            f"the {role} at {location} cannot be read: {entry} is damaged",
            "Restore it from a copy; `windrow recover` returns a ledger to the version before it.",
        )
    hint = "Check its permissions and files; restore damaged or missing ones from a copy, log and files together."
    if isinstance(error, EmptyEntry):
        hint = "The next `windrow run` sets it aside if it is at the end of the log."
    if BEYOND_DELTA_RS.search(str(error)):
        hint = "The table has a feature that only Spark reads: add --engine spark."
    if "catalog-managed" in str(error):
        hint = "Its last commits are in a catalog: give its name there, and add --engine spark."
    return TableUnreadableError(f"the {role} at {location} cannot be read: {first_line(error)}", hint)


def damaged_entry(location: str) -> str | None:
    """Return the first entry in the log of a local table that is neither whole nor torn, None if there is none."""
    root = local_path(location)
    if root is None:
        return None
    with suppress(OSError):
        for version in versions(names(root / LOG)):
            if read_entry(root / entry_path(version))[0] is Condition.DAMAGED:
                return entry_path(version)
    return None


def unwritable_error(location: str, role: str, error: Exception) -> TableUnwritableError:
    """Return the error for a table that cannot be written."""
    if (cause := explain_store_error(error, location)) is not None:
        return TableUnwritableError(f"the {role} at {location} cannot be written: {cause[0]}", cause[1])
    return TableUnwritableError(
        f"the {role} at {location} cannot be written: {first_line(error)}",
        "Nothing was committed. Check the free space and the permissions, then run again.",
    )


def overtaken_error(location: str) -> TableUnwritableError:
    """Return the error for an append that comes after one of a later plan."""
    return TableUnwritableError(
        f"{location} has rows that were appended under a later plan of these states, so this plan is obsolete",
        "The next attempt makes a new plan.",
    )


def open_table(location: str, role: str) -> DeltaTable:
    """Open a table at a path. Raises TableMissingError, TableUnreadableError."""
    return latest_snapshot(location, role).table


def latest_table(location: str, role: str) -> DeltaTable:
    """Return the latest version of a table at a path, for reading; all callers share the handle, which moves on.

    Raises TableMissingError, TableUnreadableError.
    """
    return shared_snapshot(location, role).table


def latest_snapshot(location: str, role: str, known: TableSnapshot | None = None) -> TableSnapshot:
    """Return the latest version of a table at a path on a private handle: that of `known`, which moves on.

    Raises TableMissingError, TableUnreadableError.
    """
    with _opening(location, role):
        return TableSnapshot.open(location) if known is None else known.latest()


def shared_snapshot(location: str, role: str, reaching: int | None = None) -> TableSnapshot:
    """Return the snapshot that all readers of a table share: the latest, or an earlier one that has version `reaching`.

    Raises TableMissingError, TableUnreadableError.
    """
    place = absolute(location)  # a relative path means another table in another directory
    kept = OPEN_TABLES.pop(place, None)
    with _opening(location, role):
        if kept is None:
            snapshot = TableSnapshot.open(location)
        else:
            snapshot = kept if reaching is not None and kept.version >= reaching else kept.latest()
    while len(OPEN_TABLES) >= MAX_OPEN:
        OPEN_TABLES.pop(next(iter(OPEN_TABLES)), None)
    OPEN_TABLES[place] = snapshot
    return snapshot


@contextmanager
def _opening(location: str, role: str) -> Iterator[None]:
    """Open a table. Raises TableMissingError, TableUnreadableError."""
    with translate_read_errors(location, role):
        try:
            yield
        except TableNotFoundError as error:
            raise missing_error(location, role) from error


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """An open table at a version, and the beginning of the version's log entry (None if it is gone).

    The handle `table` moves on when somebody asks for the latest snapshot. A commit that needs this version calls
    `stands` first. `commits` has the history that was read so far.
    """

    location: str
    table: DeltaTable
    version: int
    entry: bytes | None
    commits: dict[int, dict[str, Any]] = field(default_factory=dict, compare=False)

    @classmethod
    def open(cls, location: str) -> TableSnapshot:
        """Open a table. Raises what delta-rs raises."""
        return cls.of(location, DeltaTable(location))

    @classmethod
    def of(cls, location: str, table: DeltaTable) -> TableSnapshot:
        """Return an open table at the version of its handle. Raises what delta-rs raises."""
        version = table.version()
        entry = _entry(table, version)
        # guard: empty-last-entry
        if entry == b"":
            raise EmptyEntry(f"{entry_path(version)} is empty, as after a power cut")
        return cls(location, table, version, entry)

    def stands(self) -> bool:
        """Tell whether the handle is still at this version and the log still has the same entry for it."""
        try:
            # guard: same-entry
            # guard: table-as-primed
            return self.table.version() == self.version and self.is_in_log()
        except READ_ERRORS:
            return False

    def is_in_log(self) -> bool:
        """Tell whether the log still has the same entry for this version, wherever the handle is. Raises OSError."""
        return _entry(self.table, self.version) == self.entry

    def content(self, version: int) -> bytes | None:
        """Return the log entry of a version if all of it was read, else None."""
        is_whole = self.entry is not None and len(self.entry) < BEGINNING_BYTES
        return self.entry if is_whole and version == self.version else None

    def latest(self) -> TableSnapshot:
        """Return the latest snapshot, or this one if nothing changed. Raises the errors of delta-rs.

        delta-rs reads only new log entries, so the time does not grow with the log. But it relies on version numbers: a
        table that was deleted and created again would keep the columns and files of the old one. So the table is opened
        again if the log entry of this version has changed.
        """
        try:
            self.table.update_incremental()
            # guard: opened-table-unchanged
            if self.entry is not None and self.is_in_log():
                grown = self.table.version() != self.version
                return replace(self.of(self.location, self.table), commits=self.commits) if grown else self
        except READ_ERRORS:  # for example, the log ends before this version: opening it again raises any real error
            pass
        return TableSnapshot.open(self.location)


# Recently read tables, the last one at the end: updating an open table takes a third of the time of opening it.
OPEN_TABLES: dict[str, TableSnapshot] = {}
MAX_OPEN = 8


def read_filtered(table: DeltaTable, filters: FilterType, columns: Sequence[str] | None) -> pa.Table:
    """Read the rows of a table that pass filters (`column, operator, value`), in some columns or all.

    Given lists of filters, rows pass one of the lists.

    Arrow opens the files: with delta-rs's file system, the program sometimes ended with SIGABRT.
    """
    store = table_files(table.table_uri, table)
    return table.to_pyarrow_table(filters=filters, columns=None if columns is None else list(columns), filesystem=store)


@contextmanager
def scan_rows(table: DeltaTable) -> Iterator[pa.RecordBatchReader]:
    """Read the rows of a table piece by piece, with Arrow: delta-rs cannot run a query inside a write of its own.

    Arrow's threads keep reading through Python after the consumer has stopped, and a process that ends meanwhile hangs
    or crashes. So they get one file at a time, and leaving early waits until they have finished it.
    """
    dataset = table.to_pyarrow_dataset()

    def pieces() -> Generator[pa.RecordBatch, None, None]:
        for file in dataset.get_fragments():
            with file.scanner(dataset.schema).to_reader() as rows:
                yield from rows

    with closing(pieces()) as batches:
        yield pa.RecordBatchReader.from_batches(dataset.schema, batches)


def table_files(location: str, table: DeltaTable, sizes: dict[str, int] | None = None) -> FileSystem:
    """Return the file system of a table. A store is not asked for `sizes` (in bytes) that are known."""
    if local_path(location) is None:
        return files_in(table.table_uri, sizes)
    return files_at(location)


def files_at(location: str, options: Mapping[str, str] | None = None) -> FileSystem:
    """Return the file system of a table at a location.

    `options` are those of its object store, by default those of this process.
    """
    path = local_path(location)
    if path is None:
        return files_in(location, options=options)
    return SubTreeFileSystem(str(path.resolve()), LocalFileSystem())


def files_in(
    location: str, sizes: dict[str, int] | None = None, options: Mapping[str, str] | None = None
) -> FileSystem:
    """Return the file system of a table through which delta-rs reads and writes.

    A store is not asked for `sizes` (in bytes) that are known.
    """
    return PyFileSystem(DeltaStorageHandler(location, None if options is None else dict(options), known_sizes=sizes))


def _entry(table: DeltaTable, version: int) -> bytes | None:
    """Return the beginning of a version's log entry, None if there is none. Raises OSError.

    It has the time of the commit, so different entries have different beginnings.
    """
    return _beginning(_log_files(table, [version]), version)


def _log_files(table: DeltaTable, versions: Iterable[int]) -> FileSystem:
    """Return the file system of a table, to read log entries up to `BEGINNING_BYTES`.

    A store is not asked for the sizes of entries: it returns as many bytes as there are.
    """
    return table_files(table.table_uri, table, {entry_path(version): BEGINNING_BYTES for version in versions})


def _beginning(store: FileSystem, version: int) -> bytes | None:
    """Return the beginning of a version's log entry, None if there is none. Raises OSError."""
    try:
        with store.open_input_file(entry_path(version)) as opened:
            return bytes(opened.read(BEGINNING_BYTES))
    except FileNotFoundError:
        return None


def history(
    table: DeltaTable,
    since: int = 0,
    last_version: int | None = None,
    *,
    files: bool = False,
    known: TableSnapshot | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the `commitInfo` of each commit, from `last_version` (None: the last) back to `since` or the first one.

    `version` is the number of the log file. (`DeltaTable.history` counts back from the version of the handle but begins
    with the newest commit, so after a commit in between all its numbers are wrong.) A commit without `commitInfo` gets
    the time of its file. With `files`, `added` has its `add` actions, and `removed` tells whether it removed rows.
    `known` remembers what is read, so that it is not read again.
    Raises OSError for an empty file.
    """
    last = table.version() if last_version is None else min(last_version, table.version())
    store, before = _log_files(table, range(since, last + 1)), {} if known is None else known.commits
    for version in range(last, since - 1, -1):
        commit = before.get(version)
        if commit is None or (files and "added" not in commit):
            content = (None if known is None else known.content(version)) or _content(table, store, version)
            if content is None:
                return
            commit = before[version] = _commit(store, version, content, files)
        yield commit


def _content(table: DeltaTable, store: FileSystem, version: int) -> bytes | None:
    """Return a version's log entry, None if it is gone."""
    beginning = _beginning(store, version)
    if beginning is None or len(beginning) < BEGINNING_BYTES:
        return beginning
    with files_in(table.table_uri).open_input_file(entry_path(version)) as opened:
        return bytes(opened.read())


def _commit(store: FileSystem, version: int, content: bytes, files: bool) -> dict[str, Any]:
    place = entry_path(version)
    if not content:
        raise EmptyEntry(f"{place} is empty, as after a power cut")
    try:
        info: dict[str, Any] = next((result["commitInfo"] for result in _actions(content, "commitInfo")), {})
        silent = rows_added(info) is None
        actions = _actions(content, "add", "remove") if files or silent else []
    except ValueError as error:
        raise OSError(f"{place} is damaged: {error}") from error
    time = {} if "timestamp" in info else {"timestamp": store.get_file_info(place).mtime_ns // 1_000_000}
    commit = time | info | {"version": version}
    added = [action["add"] for action in actions if "add" in action]
    removed = any(action["remove"].get("dataChange", True) for action in actions if "remove" in action)
    if silent:
        commit["rows_in_files"] = rows_in_files(info.get("operation"), added, removed)
    return commit | ({"added": added, "removed": removed} if files else {})


def _actions(content: bytes, *names: str) -> list[dict[str, Any]]:
    """Return the actions of some kinds in a log entry. Raises ValueError."""
    words = [f'"{name}"'.encode() for name in names]
    parsed = [json.loads(line) for line in content.splitlines() if any(word in line for word in words)]
    return [action for action in parsed if any(name in action for name in names)]


def missing_error(location: str, role: str) -> TableMissingError:
    """Return the error for a table that does not exist."""
    creates = "`windrow init` creates it" if role == "ledger" else "`windrow init` or `windrow ingest` creates it"
    path = local_path(location)
    place = f"{location} ({path.resolve()})" if path is not None and not path.is_absolute() else location
    return TableMissingError(f"there is no {role} at {place}", f"{creates}; or name another with --{role}.")


def is_managed(features: Iterable[str] | None) -> bool:
    """Tell whether a catalog has the last commits of a table with these features, so that its log is not enough."""
    return "catalogManaged" in (features or ())


def beyond_files(table: DeltaTable) -> str:
    """Return the table features with which the rows of a file differ from the table's, such as deletion vectors."""
    protocol = table.protocol()
    if protocol.min_reader_version == BY_NAME:
        return "columnMapping"
    return ", ".join(sorted(set(protocol.reader_features or ()) - HARMLESS))
