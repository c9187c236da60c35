"""Recover: take a ledger on a local disk back to its last version that can be used.

Every batch follows from the depot. So the versions of a ledger that cannot be used are set aside, and the next run
makes their batches again from the depot. If no version can be used, the whole table is set aside, and the next run
begins anew. Nothing is deleted.

A version can be used if every log entry that it rests on is whole, its live rows can be read, and the depot still has
the commit that it read last.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from windrow.columnar.arrow import plain
from windrow.delta import logfiles, mending
from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.table import FAULTS, missing, writing
from windrow.engine.embedded.engine import EmbeddedEngine, embedded_schema
from windrow.errors import DepotChanged, EngineUnavailable, OtherDepot
from windrow.model import tables
from windrow.runtime.opening import require_depot
from windrow.runtime.progress import Reached
from windrow.settings.settings import Settings

OS_ERROR = re.compile(r"os error (\d+)")


@dataclass(frozen=True, slots=True)
class Recovered:
    """The `version` that a ledger goes on from (None: it begins anew), and the versions that were set aside.

    `first` and `last` are those versions, None if there were none. At least `closed` batches were closed in them: an
    entry that cannot be read does not say. `directory` has the log's files, None in a dry run or with nothing to do.
    """

    ledger: str
    version: int | None
    first: int | None
    last: int | None
    closed: int
    directory: str | None


def recover(
    settings: Settings, dry_run: bool = False, progress: Callable[[int], None] = lambda version: None
) -> Recovered:
    """Set aside the versions at the end of a ledger that cannot be used; in a dry run only say which.

    `progress` gets each version that is looked at. Raises EngineUnavailable for a ledger that is elsewhere,
    TableMissing, TableLocked, TableUnwritable.
    """
    root = local_path(settings.ledger)
    if root is None:
        raise EngineUnavailable(
            f"{settings.ledger} is on no disk of this machine, where its log could be mended",
            "RESTORE it to a version before the damage, or begin a new ledger (--ledger): the depot is the truth.",
        )
    if not (versions := logfiles.versions(root)):
        raise missing(settings.ledger, "ledger")
    with commit_lock(settings.ledger, keep=False), writing(settings.ledger, "ledger"):
        of_use = None
        for version in reversed(versions):
            progress(version)
            if _is_of_use(root, version, settings):
                of_use = version
                break
        left = [version for version in versions if of_use is None or version > of_use]
        if not left:
            return Recovered(settings.ledger, of_use, None, None, 0, None)
        closed = sum(_closed(root, version) for version in left)
        done = None if dry_run else mending.set_aside(settings.ledger, "ledger", left[0], whole=of_use is None)
    return Recovered(settings.ledger, of_use, left[0], left[-1], closed, str(done.directory) if done else None)


def _closed(root: Path, version: int) -> int:
    """Return how many batches a version closed, as far as it says so."""
    said = logfiles.note(root, version).get("closed")
    return said if isinstance(said, int) else 0


def _is_of_use(root: Path, version: int, settings: Settings) -> bool:
    """Tell whether a ledger can go on from a version."""
    if not mending.is_whole(root, version):
        return False
    try:
        table = DeltaTable(root, version=version)
        embedded_schema(settings.ledger, table)
        rows = plain(table.to_pyarrow_table(filters=[("state", "not in", list(tables.FINAL))]))
    except FAULTS as error:
        found = OS_ERROR.search(str(error))
        code = getattr(error, "errno", None) or (int(found[1]) if found else None)
        # guard: disk-fails
        if code not in (None, errno.ENOENT):
            raise  # no right to read it, or a failing disk: that says nothing about the version
        return False
    progress = [row for row in rows.to_pylist() if row["id"] == tables.PROGRESS]
    return len(progress) == 1 and _depot_has(progress[0], settings)


def _depot_has(progress: Mapping[str, Any], settings: Settings) -> bool:
    """Tell whether the depot has the commit that a ledger read last; a ledger of several depots does not say."""
    if local_path(settings.depot) is None or progress.get("depot_id") is None:
        return True
    reached = Reached(*(progress[name] for name in ("depot_id", "start_from", "depot_version", "commit_fingerprint")))
    try:
        require_depot(EmbeddedEngine(settings, rows=True), reached, settings)
    except (OtherDepot, DepotChanged):
        return False
    return True
