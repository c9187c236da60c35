"""Read from a Delta table's log, not its rows, which versions wait and which can still be read."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileType, PyFileSystem

from windrow.delta.table import history
from windrow.errors import WindrowError
from windrow.model import durations, tables
from windrow.model.commits import changes_rows, rows_added, rows_in_files
from windrow.reading.tables import DepotTable, TableLog

PROGRESS_FILES = f"state={tables.PROGRESS}/"
KEPT = "delta.logRetentionDuration"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The depot versions with messages that no microbatch has read yet.

    `oldest` is the first of them and `committed_at` its time (microseconds). `message_count` is None when a commit
    does not say how many rows it added. `changed` is the first unread version that removed or changed rows.
    """

    version_count: int
    message_count: int | None
    oldest: int | None
    committed_at: int | None
    changed: int | None = None


def waiting_versions(depot: DepotTable, read: int, state: str | None = None) -> Waiting:
    """Return what waits after depot version `read`. Versions that add no rows, such as deletions, do not count.

    In a Windrow table that a topology reads, only the rows in `state` count, such as closed batches.
    """
    behind = depot.version() - read
    if behind <= 0:
        return Waiting(0, 0, None, None)
    if isinstance(depot, DeltaTable):
        result = [*history(depot, read + 1, files=state is not None)]
    else:
        result = depot.history(read + 1)
    commits = {int(commit["version"]): commit for commit in result}
    versions = range(read + 1, depot.version() + 1)
    counts = {version: _brought(commits.get(version, {}), state) for version in versions}
    changed = min((version for version, commit in commits.items() if changes_rows(commit)), default=None)
    filled = {version: count for version, count in counts.items() if count != 0}
    if not filled:
        return Waiting(0, 0, None, None, changed)
    known = [count for count in filled.values() if count is not None]
    oldest = min(filled)
    stamp = commits.get(oldest, {}).get("timestamp")
    return Waiting(
        version_count=len(filled),
        message_count=sum(known) if len(known) == len(filled) else None,
        oldest=oldest,
        committed_at=None if stamp is None else int(stamp) * 1_000,
        changed=changed,
    )


def _brought(commit: Mapping[str, Any], state: str | None) -> int | None:
    """Return how many rows a commit added, in all or in one state (None: it does not say); a deletion adds none."""
    if state is None or "added" not in commit:
        return 0 if commit.get("operation") == "DELETE" else None if state else rows_added(commit)
    added = [file for file in commit["added"] if file["partitionValues"].get("state", state) == state]
    return rows_in_files(commit.get("operation"), added, commit["removed"])


def earliest_readable(table: TableLog, depot: bool = False) -> int:
    """Return the first version from which a ledger, or a depot with its change feed, can be read completely.

    A version becomes unreadable when the log is cleaned up, or when VACUUM deletes files that later commits removed.
    Both begin with the oldest, so a bisection finds the boundary. In a ledger only the progress files are checked,
    which every fold removes.
    """
    if not isinstance(table, DeltaTable):
        return table.earliest()
    latest = table.version()
    prefix = "" if depot else PROGRESS_FILES
    needed = _files(table, prefix)
    store = PyFileSystem(DeltaStorageHandler(table.table_uri))

    def readable(version: int) -> bool:
        try:
            before, after = (DeltaTable(table.table_uri, at) for at in (version, min(version + 1, latest)))
        except DeltaError:
            return False
        removed = sorted((_files(before, prefix) | _files(after, prefix)) - needed)
        return all(info.type != FileType.NotFound for info in store.get_file_info(removed))

    if latest == 0 or readable(0):  # most tables have lost nothing yet
        return 0
    return bisect_left(range(latest), True, key=readable)


def log_retention(table: TableLog) -> str | None:
    """Return how long the log and removed files are kept, according to the table's property; None without it."""
    interval = table.metadata().configuration.get(KEPT)
    parts = re.fullmatch(r"interval (\d+) (second|minute|hour|day|week)s?", interval or "")
    if not parts:
        return interval
    factors = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "d"}
    count = int(parts[1]) * (7 if parts[2] == "week" else 1)
    try:
        return durations.format_duration(durations.microseconds(f"{count}{factors[parts[2]]}"))
    except WindrowError:
        return interval


def _files(table: DeltaTable, prefix: str) -> set[str]:
    paths = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()["path"].to_pylist()
    return {path for path in paths if path.startswith(prefix)}
