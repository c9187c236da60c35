"""Mend a local table after a power cut: set torn log entries aside, which leaves the table at its last whole version.

Delta's readers take an empty entry for a commit without content. So `repair_log` checks a table before a run, a
producer, an ingest or maintenance reads it; a depot that Windrow did not create is left to its owner. It moves entries
at the end of the log that are empty or torn, or that name files which are too short, to `_set_aside/TIME/` next to the
log, and also checkpoints and hints that are not whole. With `fsync`, these commits were never reported as successful.

Three cases are errors, and nothing is moved: an entry that is damaged in a way that no power cut leaves, because its
commit was reported as successful; a torn entry that is followed by whole ones (`windrow recover` handles both for a
ledger); and a log that would have no whole version left because its older entries were deleted.

An entry that is cut exactly after a line looks whole. This was never seen: a disk writes the file length last.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.delta.durable import fsync
from windrow.delta.locations import local_path
from windrow.delta.lock import SYNCED, commit_lock
from windrow.delta.logfiles import (
    ASIDE,
    HINT,
    LOG,
    Condition,
    actions,
    added_files,
    checksums,
    entry_path,
    json_object,
    last_checkpoint,
    names,
    newest_version,
    note,
    read_entry,
    versions,
)
from windrow.delta.table import translate_write_errors
from windrow.errors import TableUnreadableError, TableUnwritableError
from windrow.model import chunks
from windrow.model.tables import DEPOT_COMMENT

CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:json|parquet)")
VERSION = re.compile(r"(?<!\d)\d{20}(?!\d)")
LOOK_BACK = 20  # whole entries; older ones are not checked
SECOND_LOOK = 1.0  # seconds; a file that is still being written changes in this time
TELL = logging.getLogger("windrow")


@dataclass(frozen=True, slots=True)
class QuarantinedVersions:
    """The versions that were taken out of a table's log, and the directory where their files are now."""

    role: str
    location: str
    versions: range
    directory: Path

    def __str__(self) -> str:
        """Return a sentence for the log."""
        table = f"the {self.role} at {self.location}"
        if not self.versions:
            return f"a checkpoint of {table}, or its hint, is not intact; it was moved to {self.directory}"
        last = f"continues from version {self.versions.start - 1}" if self.versions.start else "starts again"
        first, end = self.versions[0], self.versions[-1]
        which = f"version {first} is" if first == end else f"versions {first} to {end} are"
        return f"{table} {last}: {which} now in {self.directory}"


def mend_tables(depots: Iterable[str], ledger: str) -> None:
    """Set aside what a power cut left at the ends of local tables, and ledger versions that have read what is lost.

    Raises TableUnreadableError, TableLockedError, TableUnwritableError.
    """
    moved = [repair_log(depot, "depot") for depot in depots]
    # guard: empty-entries
    repair_log(ledger, "ledger")
    for lost in moved:
        # guard: ledger-follows-depot
        drop_unreadable_versions(ledger, lost)


def repair_log(location: str, role: str) -> QuarantinedVersions | None:
    """Set aside what a power cut left at the end of a local table's log; None if nothing is torn.

    Raises TableUnreadableError for a torn entry before the end, TableLockedError, TableUnwritableError.
    """
    root = local_path(location)
    torn = None
    with suppress(OSError):  # the table's reader reports what is wrong with it
        torn = None if root is None else _torn(root)
    if root is None or torn is None:
        return None
    quarantined = None
    try:
        with commit_lock(location, sync=False), translate_write_errors(location, role):
            quarantined = _quarantine_torn(root, location, role)
    except TableUnwritableError:
        if torn.first is not None or torn.damaged is not None:
            raise  # a checkpoint that is not whole may stay if we may not move it
    SYNCED.clear()
    return quarantined


def _quarantine_torn(root: Path, location: str, role: str) -> QuarantinedVersions | None:
    torn = None
    # guard: still-written
    while (torn_now := _torn(root)) != torn:  # until two looks agree: a writer may be active
        torn = torn_now
        time.sleep(SECOND_LOOK)
    if torn is None:
        return None
    version = newest_version(root) + 1 if torn.first is None else torn.first
    if role == "depot" and not _is_own(root, version):
        return None
    # guard: damaged-stays
    if torn.damaged is not None:
        raise TableUnreadableError(
            f"version {torn.damaged} of the {role} at {location} is damaged: {entry_path(torn.damaged)}, or the size "
            "of a file that it names, differs from what was written",
            "Nothing was moved. Restore the file from a copy; or, for a ledger, run `windrow recover`.",
        )
    if torn.first is None:
        return _move_files(root, location, role, range(0), torn.hints)
    # guard: torn-before-end
    if torn.whole_behind is not None:
        raise TableUnreadableError(
            f"version {torn.first} of the {role} at {location} is torn, but {torn.whole_behind} after it is intact",
            "For a ledger, run `windrow recover`; for a depot, restore the log entry from a copy.",
        )
    return quarantine_versions(location, role, torn.first, torn.hints)


def drop_unreadable_versions(ledger: str, lost: QuarantinedVersions | None) -> None:
    """Set aside the versions of a local ledger that have read depot versions which were just set aside.

    With `fsync = false`, the ledger may reach the disk before the depot does. Raises TableLockedError,
    TableUnwritableError.
    """
    root = local_path(ledger)
    if root is None or lost is None or not lost.versions:
        return
    with commit_lock(ledger, sync=False), translate_write_errors(ledger, "ledger"):
        first = None
        for version in reversed(versions(names(root / LOG))):
            noted = note(root, version)
            if noted.get("depot") is not None or "depot_version" not in noted:
                continue  # of a topology, or no microbatch
            if noted["depot_version"] < lost.versions.start:
                break
            first = version
        if first is not None:
            quarantine_versions(ledger, "ledger", first)
    SYNCED.clear()


def quarantine_versions(
    location: str, role: str, first: int, hints: Iterable[str] = (), whole: bool = False
) -> QuarantinedVersions:
    """Move the versions from `first` on out of a local table's log; with `whole` or from version 0 on, the whole table.

    The caller holds the table's lock. Raises OSError. Raises TableUnreadableError, before anything is moved, if the
    rest of the log could not be read.
    """
    root = local_path(location) or Path(location)
    log_names = names(root / LOG)
    whole = whole or (first == 0 and not any(CHECKPOINT.fullmatch(name) for name in log_names))
    # guard: set-aside-readable
    if not (whole or is_intact(root, first - 1)):
        raise TableUnreadableError(
            f"version {first} of the {role} at {location} is torn, and the versions before it are not intact either",
            "Nothing was moved. Restore the log from a copy; or, for a ledger, begin a new one (--ledger).",
        )
    later = [name for name in log_names if max((int(n) for n in VERSION.findall(name)), default=-1) >= first]
    hint = last_checkpoint(root)
    stale = [HINT] if HINT in log_names and (hint is None or hint >= first) else []
    return _move_files(
        root, location, role, range(first, max(versions(log_names)) + 1), {*later, *hints, *stale}, whole
    )


def _is_own(root: Path, version: int) -> bool:
    """Tell whether Windrow created a depot: the version before says so; without one, it was about to create it."""
    if version > 0:
        with suppress(DeltaError):  # the versions before are not whole either, which `quarantine_versions` reports
            comment = DeltaTable(root, version=version - 1).metadata().description
            # guard: only-own-tables
            return comment in (DEPOT_COMMENT, chunks.COMMENT)
    return True


class TornLog(NamedTuple):
    """What is wrong in a log: the first torn entry, a whole one after it, and torn files that only save time.

    `damaged` is the newest entry that is neither whole nor torn.
    """

    first: int | None
    whole_behind: int | None
    hints: tuple[str, ...]
    damaged: int | None


def _torn(root: Path) -> TornLog | None:
    """Check the end of a log, the newest entry first."""
    first = behind = seen = damaged = None
    version = whole_ones = 0
    log_names = names(root / LOG)
    for version, condition in _judge_entries(root, log_names):
        if condition is Condition.DAMAGED:
            damaged = version if damaged is None else damaged
        elif condition is Condition.WHOLE:
            seen, whole_ones = version if seen is None else seen, whole_ones + 1
        else:
            first, behind, whole_ones = version, seen, 0
        if whole_ones > LOOK_BACK:
            break
    hints = _torn_hints(root / LOG, log_names, version)
    wrong = first is not None or damaged is not None or hints
    return TornLog(first, behind, hints, damaged) if wrong else None


def is_intact(root: Path, version: int) -> bool:
    """Tell whether all entries that a version needs are whole, back to a whole checkpoint."""
    log, all_files = root / LOG, names(root / LOG)
    checkpoints = [int(name[:20]) for name in all_files if CHECKPOINT.fullmatch(name) and _is_whole(log / name)]
    base = max((checkpoint for checkpoint in checkpoints if checkpoint <= version), default=-1)
    expected = version
    for checkpoint, condition in _judge_entries(root, all_files, version):
        if checkpoint <= base or checkpoint != expected or condition is not Condition.WHOLE:
            break
        expected -= 1
    return expected == base


def _judge_entries(
    root: Path, files: Sequence[str], last_version: int | None = None
) -> Iterator[tuple[int, Condition]]:
    """Yield the versions in the files of a log, newest first, and the condition of each entry with its files."""
    removed: set[str] = set()
    for version in (version for name in reversed(files) for version in versions([name])):
        if last_version is not None and version > last_version:
            continue
        entry = root / entry_path(version)
        condition, actions = read_entry(entry)
        if condition is Condition.WHOLE:
            condition = _condition_of_files(root, actions, removed, entry.stat().st_mtime)
        if condition is Condition.WHOLE:
            removed |= {action["remove"].get("path", "") for action in actions if "remove" in action}
        yield version, condition


def _condition_of_files(root: Path, entry: Iterable[Mapping[str, Any]], removed: set[str], by: float) -> Condition:
    """Tell whether the files of an entry that was written at time `by` (seconds) are whole.

    Files that are missing or were changed later do not count: no power cut does that, and the reader reports them. A
    file that has its end, but not the size in the entry, was written that way: the entry is damaged.
    """
    added = added_files(root, entry, removed)
    there = [(file, size) for file, size in added if file.exists() and file.stat().st_mtime <= by]
    wrong = [file for file, size in there if not _has_size(file, size)]
    if any(_ends_as_parquet(file) for file in wrong):
        return Condition.DAMAGED
    is_torn = wrong or not all(_has_its_checksums(file) for file, _ in there)
    return Condition.TORN if is_torn else Condition.WHOLE


def _torn_hints(log: Path, files: Sequence[str], since: int) -> tuple[str, ...]:
    """Return torn files of the log that only save time: checkpoints, checksums, the hint.

    Those before version `since` and before the last checkpoint do not count, so that a long log is not read again.
    """
    checkpoints = [name for name in files if CHECKPOINT.fullmatch(name)]
    oldest = min([f"{since:020}", *checkpoints[-1:]])[:20]
    known = [*checkpoints, *(name for name in files if name.endswith(".crc"))]
    torn = [name for name in known if name.removeprefix(".") >= oldest and not _is_whole(log / name)]
    if HINT in files and last_checkpoint(log.parent) not in [
        int(name[:20]) for name in checkpoints if name not in torn
    ]:
        torn.append(HINT)
    return tuple(torn)


def _is_whole(file: Path) -> bool:
    """Tell whether a checkpoint, or the checksums of an entry or checkpoint, is whole."""
    if file.name.startswith("."):
        return _has_its_checksums(file.with_name(file.name[1:].removesuffix(".crc")))
    if file.suffix == ".crc":
        return json_object(file) is not None
    if file.suffix == ".json":
        return actions(file) is not None
    return _ends_as_parquet(file)


def _ends_as_parquet(file: Path) -> bool:
    with file.open("rb") as opened:
        opened.seek(-min(4, file.stat().st_size), os.SEEK_END)
        return opened.read() == b"PAR1"


def _has_size(file: Path, size: int | None) -> bool:
    return size is None or file.stat().st_size == size


def _has_its_checksums(file: Path) -> bool:
    """Tell whether a file has as many checksums as its length needs; their header has the block size."""
    sums = checksums(file)
    if not (file.exists() and sums.exists()):
        return True
    block = int.from_bytes(sums.read_bytes()[4:8])
    return block > 0 and _has_size(sums, 8 + 4 * -(-file.stat().st_size // block))


def _move_files(
    root: Path, location: str, role: str, versions: range, moved: Iterable[str], whole: bool = False
) -> QuarantinedVersions:
    """Move files of the log, the newest entry first, so that an interruption leaves a log without gaps."""
    into = root / ASIDE / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    into.mkdir(parents=True)
    for name in sorted(moved, reverse=True):
        (root / LOG / name).replace(into / name)
    if whole:
        for path in root.iterdir():
            if path.name != ASIDE:
                path.replace(into / path.name)
    fsync([into, into.parent, root, *([] if whole else [root / LOG])])
    quarantined = QuarantinedVersions(role, location, versions, into)
    TELL.warning(str(quarantined), extra={"table": role, "directory": str(into)})
    return quarantined
