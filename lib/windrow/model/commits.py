"""Commits of a Delta log: how many rows each added, as Spark and delta-rs write it down, and what names its feed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FEED = "delta.enableChangeDataFeed"
FEED_COLUMNS = CHANGE, VERSION, COMMITTED_AT = ("_change_type", "_commit_version", "_commit_timestamp")
BYTES = "windrow.bytes"  # how many bytes of chunks a commit to a raw depot added, as Windrow writes it down
ROWS_ADDED = ("numOutputRows", "num_added_rows")
FILES_REMOVED = ("numRemovedFiles", "num_removed_files")
SAID = ("timestamp", "operation", "operationMetrics", "engineInfo", "txnId")
APPENDS = ("WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT", "COPY INTO")
WITHOUT_ROWS = ("OPTIMIZE", "CREATE TABLE", "SET TBLPROPERTIES", "VACUUM START", "VACUUM END", "ADD CONSTRAINT")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the depot's log: its version, when (microseconds), and how many rows it added (None: not said).

    `mark` tells it from another commit that took the same number, for who looks in the same way: `log:...` is what
    the log itself says, `spark:...` what Spark tells of it.
    """

    version: int
    committed_at: int
    rows: int | None
    mark: str = ""


def is_other(found: str | None, known: str | None) -> bool:
    """Tell whether two marks are of different commits; those that were found in different ways cannot be compared."""
    if found is None or known is None:
        return False
    # guard: fingerprints-comparable
    return found.partition(":")[0] == known.partition(":")[0] and found != known


def rows_added(commit: Mapping[str, Any]) -> int | None:
    """Return how many rows a commit (`operation, operationMetrics`) added; None where it does not say."""
    operation = str(commit.get("operation"))
    if operation in WITHOUT_ROWS:
        return 0
    metrics = dict(commit.get("operationMetrics") or {})
    for name in ROWS_ADDED:
        if operation in APPENDS and name in metrics:
            return int(metrics[name]) or (None if _removed(metrics) else 0)
    return None


def fingerprint(commit: Mapping[str, Any], said: Sequence[str] = SAID, by: str = "log") -> str:
    """Return the mark of a commit: who looked (`by`), and a digest of what that reader was told (`said`)."""
    content = {name: commit.get(name) for name in said}
    return f"{by}:{hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]}"


def _removed(metrics: Mapping[str, Any]) -> bool:
    """Tell whether a commit that added nothing took something away: overwritten with no rows."""
    return any(int(metrics.get(name) or 0) for name in FILES_REMOVED)
