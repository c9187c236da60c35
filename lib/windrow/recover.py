"""Recover: a ledger on a disk of this machine goes back to its last version that can be used.

Every batch follows from the depot. So of a ledger that cannot be read, or that has read versions which its depot no
longer has, the versions that are of no use are set aside, and the next run makes again what was in them. Where no
version is of use, all of it is set aside, and the next run begins anew. Nothing is deleted.

A version is of use if each entry of the log behind its checkpoint is whole, its live rows can be read, and the depot
still has the commit that it read last.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from windrow import durable, tables
from windrow.arrow import plain
from windrow.engine.files import beyond_files
from windrow.engine.lock import commit_lock
from windrow.engine.log import DeltaRsLog
from windrow.errors import EngineUnavailable, TableRefused
from windrow.locations import local_path
from windrow.settings import Settings
from windrow.storage import FAULTS, missing, writing

LEDGER = {"id", "state", "token"}
OS_ERROR = re.compile(r"os error (\d+)")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a ledger: the `version` it goes on from (None: it begins anew), and what was set aside.

    `closed` counts the batches that were closed in it and come again, as far as its entries can be read; `directory`
    holds the log's files, None where nothing was to be done or in a dry run.
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
    """Set aside what is of no use at the end of a ledger; in a dry run say what that would be.

    `progress` is told each version that is looked at. Raises EngineUnavailable for a ledger that is elsewhere,
    TableMissing, TableLocked, TableUnwritable.
    """
    root = local_path(settings.ledger)
    if root is None:
        raise EngineUnavailable(
            f"{settings.ledger} is on no disk of this machine, where its log could be mended",
            "RESTORE it to a version before the damage, or begin a new ledger (--ledger): the depot is the truth.",
        )
    if not (versions := durable.versions(root)):
        raise missing(settings.ledger, "ledger")
    if local_path(settings.depot) is not None and DeltaRsLog(settings.depot).table() is None:
        raise missing(settings.depot, "depot")  # against a wrong path all would seem to be of no use
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
        done = None if dry_run else durable.set_aside(settings.ledger, "ledger", left[0], whole=of_use is None)
    return Recovered(settings.ledger, of_use, left[0], left[-1], closed, str(done.directory) if done else None)


def _closed(root: Path, version: int) -> int:
    """Return how many batches a version closed, as far as it says so."""
    said = durable.note(root, version).get("closed")
    return said if isinstance(said, int) else 0


def _is_of_use(root: Path, version: int, settings: Settings) -> bool:
    """Tell whether a ledger can go on from a version."""
    if not durable.is_whole(root, version):
        return False
    try:
        table = DeltaTable(root, version=version)
        if not {field.name for field in table.schema().fields} >= LEDGER:
            raise TableRefused(f"{root} is a Delta table, but no ledger", "Give the path of a ledger.")
        if beyond := beyond_files(table):
            raise EngineUnavailable(f"only Spark can read a ledger with {beyond}", "RESTORE it, or begin a new ledger.")
        rows = plain(table.to_pyarrow_table(filters=[("state", "not in", list(tables.FINAL))]))
    except FAULTS as error:
        found = OS_ERROR.search(str(error))
        code = getattr(error, "errno", None) or (int(found[1]) if found else None)
        if code not in (None, errno.ENOENT):
            raise  # no right to read it, a disk that fails: that says nothing of the version
        return False
    progress = [row for row in rows.to_pylist() if row["id"] == tables.PROGRESS]
    return len(progress) == 1 and _has_read_of(settings.depot, progress[0])


def _has_read_of(depot: str, progress: dict[str, object]) -> bool:
    """Tell whether a depot still has the commit that a ledger read last; one of several depots is not asked."""
    version, mark, id_ = (progress.get(name) for name in ("depot_version", "depot_mark", "depot_id"))
    begins_later = isinstance(version, int) and progress.get("start_from") == f"version:{version + 1}"
    if local_path(depot) is None or not isinstance(version, int) or version < 0 or begins_later:
        return True
    log = DeltaRsLog(depot)
    found = log.table()
    if found is None or found.id != id_ or found.version < version:
        return False
    marks = [commit.mark for commit in log.commits(version) if commit.version == version]
    return not marks or mark is None or not str(mark).startswith("log:") or marks[0] == mark
