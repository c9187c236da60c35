"""Commits of a Delta log: how many rows each added, as Spark and delta-rs record it, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FEED = "delta.enableChangeDataFeed"
FEED_COLUMNS = CHANGE, VERSION, COMMITTED_AT = ("_change_type", "_commit_version", "_commit_timestamp")
BYTES = "windrow.bytes"  # how many bytes of chunks a commit to a raw depot added, as Windrow records it
ROWS_ADDED = ("numOutputRows", "num_added_rows")
FILES_REMOVED = ("numRemovedFiles", "num_removed_files", "numRemovedFile")
FILES_RESTORED = ("numRestoredFiles", "numRestoredFile")
ROWS_REMOVED = ("numDeletedRows", "numUpdatedRows", "numTargetRowsDeleted", "numTargetRowsUpdated")
CHANGES = ("DELETE", "UPDATE", "MERGE", "RESTORE", "TRUNCATE")
COMMIT_FIELDS = ("timestamp", "operation", "operationMetrics", "engineInfo", "txnId")
APPENDS = ("WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT", "COPY INTO")
WITHOUT_ROWS = ("OPTIMIZE", "CREATE TABLE", "SET TBLPROPERTIES", "VACUUM START", "VACUUM END", "ADD CONSTRAINT")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the depot's log: its version, time (microseconds), and how many rows it added (None: unknown).

    `fingerprint` tells it from another commit with the same number. Only fingerprints of the same reader can be
    compared: `log:...` comes from the log itself, `spark:...` from Spark. A RESTORE `restores` earlier rows.
    """

    version: int
    committed_at: int
    rows: int | None
    fingerprint: str = ""
    restores: bool = False


@dataclass(frozen=True, slots=True)
class ListedVersions:
    """Versions of a table from `start` on: its id, and the fingerprints of their commits and of the one before.

    Those in `restored` were written by a RESTORE.
    """

    depot_id: str
    start: int
    fingerprints: Mapping[int, str]
    restored: frozenset[int] = frozenset()

    @classmethod
    def of(cls, depot_id: str, start: int, commits: Iterable[Commit]) -> ListedVersions:
        """Return the versions of these commits of the log."""
        listed = list(commits)
        restored = frozenset(commit.version for commit in listed if commit.restores)
        return cls(depot_id, start, {commit.version: commit.fingerprint for commit in listed}, restored)


def differs(id_: str | None, known: str | None) -> bool:
    """Tell whether two fingerprints are of different commits; False if they cannot be compared."""
    if id_ is None or known is None:
        return False
    # guard: fingerprints-comparable
    return id_.partition(":")[0] == known.partition(":")[0] and id_ != known


def note_of(commit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note that Windrow leaves in a commit (`userMetadata`), empty if there is none."""
    try:
        note = json.loads(commit["userMetadata"])
    except (KeyError, TypeError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def rows_added(commit: Mapping[str, Any]) -> int | None:
    """Return how many rows a commit added, as its `operation, operationMetrics` say; None if unknown.

    If these do not say, `rows_in_files` counts, provided that the reader of the commit has looked at its files.
    """
    operation = str(commit.get("operation"))
    if operation in WITHOUT_ROWS:
        return 0
    metrics = dict(commit.get("operationMetrics") or {})
    for name in ROWS_ADDED:
        if operation in APPENDS and name in metrics:
            overwrites = any(int(metrics.get(removed) or 0) for removed in FILES_REMOVED)
            return int(metrics[name]) or (None if overwrites else 0)
    return commit.get("rows_in_files")


def rows_in_files(operation: str | None, added: Iterable[Mapping[str, Any]], removed: bool) -> int | None:
    """Return how many rows a commit added, from the statistics of the files that it added (`add` actions).

    None if a file has no statistics, or if the commit removed or restored rows: then its files also have old rows.
    """
    counts = [rows_in(file) for file in added if file.get("dataChange", True)]
    known = [count for count in counts if count is not None]
    return sum(known) if adds_only(operation, removed) and len(known) == len(counts) else None


def adds_only(operation: str | None, removed: bool) -> bool:
    """Tell whether all rows of a commit are new: it neither removed files nor brought some back."""
    return not removed and operation != "RESTORE"


def rows_in(file: Mapping[str, Any]) -> int | None:
    """Return how many rows a file has, from its `add` action; None if it does not say, or if rows are deleted."""
    try:
        count = json.loads(file.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return count if isinstance(count, int) and not file.get("deletionVector") else None


def changes_rows(commit: Mapping[str, Any]) -> bool:
    """Tell whether a commit (`operation, operationParameters, operationMetrics`) removed, changed or restored rows."""
    metrics = dict(commit.get("operationMetrics") or {})
    overwrites = dict(commit.get("operationParameters") or {}).get("mode") == "Overwrite"
    if not (overwrites or commit.get("operation") in CHANGES):
        return False
    return any(int(metrics.get(name) or 0) for name in (*FILES_REMOVED, *FILES_RESTORED, *ROWS_REMOVED))


def fingerprint(commit: Mapping[str, Any], notes: Sequence[str] = COMMIT_FIELDS, by: str = "log") -> str:
    """Return the fingerprint of a commit: its reader (`by`), and a digest of the fields that it read (`notes`)."""
    content = {name: commit.get(name) for name in notes}
    return f"{by}:{hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]}"
