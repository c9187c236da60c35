"""Recover a damaged ledger on a local disk: take it back to its last usable version.

Every batch follows from the depot. So the unusable versions at the end of a ledger are set aside, and the next run
rebuilds their batches from the depot. If no version is usable, the whole table is set aside, and the next run starts a
new ledger. Nothing is deleted.

A version is usable if every log entry that it depends on is intact, its live rows can be read, and the depot still has
the commit that the ledger read last.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from windrow.columnar.arrow import to_plain_types
from windrow.delta import logfiles, mending
from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.table import READ_ERRORS, missing_error, read_filtered, translate_write_errors
from windrow.engine.embedded import EmbeddedEngine
from windrow.errors import DepotChangedError, DepotMismatchError, EngineUnavailableError
from windrow.ledger.files_ledger import embedded_schema
from windrow.ledger.versions import latest
from windrow.model import tables
from windrow.model.commits import rows_in
from windrow.runtime.ledger_state import DepotPosition
from windrow.runtime.opening import require_depot
from windrow.settings.settings import Settings
from windrow.source.embedded import EmbeddedSource

OS_ERROR = re.compile(r"os error (\d+)")


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The `version` from which a ledger continues (None: it starts again), and the versions that were set aside.

    `first` and `last` are those versions, None if there were none. They closed at least `closed_batches_lost` batches;
    of `unknown` versions not even that is known. `directory` holds the log's files, None in a dry run or if there was
    nothing to do.
    """

    ledger: str
    version: int | None
    first: int | None
    last: int | None
    closed_batches_lost: int
    unknown: int
    directory: str | None


def recover(
    settings: Settings, dry_run: bool = False, progress: Callable[[int], None] = lambda version: None
) -> RecoveryResult:
    """Set aside the unusable versions at the end of a ledger; a dry run only returns them.

    `progress` is called with each version that is checked. Raises EngineUnavailableError for a ledger that is not on a
    local disk, TableMissingError, TableLockedError, TableUnwritableError.
    """
    root = local_path(settings.ledger)
    if root is None:
        raise EngineUnavailableError(
            f"the ledger {settings.ledger} is not on a local disk, where its log could be repaired",
            "RESTORE it to a version before the damage, or begin a new ledger (--ledger) from the depot.",
        )
    if not (versions := logfiles.versions(logfiles.names(root / logfiles.LOG))):
        raise missing_error(settings.ledger, "ledger")
    with commit_lock(settings.ledger, sync=False), translate_write_errors(settings.ledger, "ledger"):
        usable = None
        for version in reversed(versions):
            progress(version)
            if _is_usable(root, version, settings):
                usable = version
                break
        left = [version for version in versions if usable is None or version > usable]
        if not left:
            return RecoveryResult(settings.ledger, usable, None, None, 0, 0, None)
        closed = [_count_closed(root, version) for version in left]
        quarantined = (
            None if dry_run else mending.quarantine_versions(settings.ledger, "ledger", left[0], whole=usable is None)
        )
    known = [count for count in closed if count is not None]
    directory = str(quarantined.directory) if quarantined else None
    return RecoveryResult(settings.ledger, usable, left[0], left[-1], sum(known), len(left) - len(known), directory)


def _count_closed(root: Path, version: int) -> int | None:
    """Return how many batches a version closed, by its note or the files that it added; None if neither says."""
    noted = logfiles.note(root, version).get("closed")
    if isinstance(noted, int):
        return noted
    condition, actions = logfiles.read_entry(root / logfiles.entry_path(version))
    added = [action["add"] for action in actions if _state_of(action) == "closed"]
    counts = [rows_in(add) for add in added]
    if condition is logfiles.Condition.TORN or (not added and condition is not logfiles.Condition.WHOLE):
        return None
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _state_of(action: Mapping[str, Any]) -> object:
    """Return the state of the rows that an action of a log adds, None for another action."""
    values = action.get("add", {}).get("partitionValues")
    return values.get("state") if isinstance(values, dict) else None


def _is_usable(root: Path, version: int, settings: Settings) -> bool:
    if not mending.is_intact(root, version):
        return False
    try:
        table = DeltaTable(root, version=version)
        embedded_schema(settings.ledger, table)
        rows = to_plain_types(read_filtered(table, [("state", "not in", list(tables.FINAL))], None))
    except READ_ERRORS as error:
        match = OS_ERROR.search(str(error))
        code = getattr(error, "errno", None) or (int(match[1]) if match else None)
        # guard: disk-fails
        if code not in (None, errno.ENOENT):
            raise  # a missing permission or a failing disk does not mean that the version is damaged
        return False
    progress = [row for row in latest(rows, keep_doubles=True).to_pylist() if row["id"] == tables.PROGRESS]
    return len(progress) == 1 and _depot_has(progress[0], settings)


def _depot_has(progress: Mapping[str, Any], settings: Settings) -> bool:
    """Tell whether the depot has the commit that a ledger read last; True for a ledger of several depots."""
    if local_path(settings.depot) is None or progress.get("depot_id") is None:
        return True
    try:
        require_depot(EmbeddedSource(EmbeddedEngine(settings), settings, rows=True), DepotPosition.of(progress))
    except (DepotMismatchError, DepotChangedError):
        return False
    return True
