"""What a power cut left of a local table: torn log entries are set aside, and the table is at its last whole version.

Delta's readers take an empty entry for a commit without content. So `mend` looks at a table before a run, a producer,
an ingest or maintenance reads it. Entries at the end of the log that are empty or torn, or that name files which are
too short, go into `_set_aside/TIME/` beside the log; so do checkpoints and hints that are not whole. With `durable` no
writer was told that these commits count.

Two things are errors, and nothing is moved: a torn entry with whole ones behind it (`windrow recover` decides), and a
log that would have no whole version left, because its older entries were deleted.

An entry that is cut exactly behind a line looks whole. No such cut was seen: the disk has the length of a file last.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from windrow.delta.durable import fsync
from windrow.delta.locations import local_path
from windrow.delta.lock import KEPT, commit_lock
from windrow.delta.logfiles import (
    ASIDE,
    HINT,
    LOG,
    actions,
    added_files,
    checksums,
    entry_path,
    hinted,
    json_object,
    names,
    note,
    versions,
    versions_in,
)
from windrow.delta.table import writing
from windrow.errors import TableUnreadable, TableUnwritable

CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:json|parquet)")
PART = re.compile(r"(\d{20}\.checkpoint\.)\d{10}\.(\d{10})\.parquet")
VERSION = re.compile(r"(?<!\d)\d{20}(?!\d)")
STAMP = "%Y%m%dT%H%M%S.%fZ"  # names the directory, and says when something was set aside
LOOK_BACK = 20  # whole entries; behind so many of them no torn one is looked for
SECOND_LOOK = 1.0  # seconds, in which a file that somebody still writes would change
TELL = logging.getLogger("windrow")


@dataclass(frozen=True, slots=True)
class SetAside:
    """The versions that were taken out of a table's log, and the directory where their files are now."""

    role: str
    location: str
    versions: range
    directory: Path

    def __str__(self) -> str:
        """Tell it in a sentence."""
        table = f"the {self.role} at {self.location}"
        if not self.versions:
            return f"a checkpoint of {table}, or the hint to it, is not whole; it is now in {self.directory}"
        last = f"goes on from version {self.versions.start - 1}" if self.versions.start else "begins anew"
        return f"{table} {last}: {counted_versions(self.versions)} now in {self.directory}"


def counted_versions(versions: range) -> str:
    """Return `version 6 is` or `versions 6 to 8 are`."""
    first, last = versions[0], versions[-1]
    return f"version {first} is" if first == last else f"versions {first} to {last} are"


def mend(location: str, role: str) -> SetAside | None:
    """Set aside what a power cut left at the end of a local table's log; None where nothing is torn.

    Raises TableUnreadable for what is torn before the end, TableLocked, TableUnwritable.
    """
    root = local_path(location)
    torn = None
    with suppress(OSError):  # the table's reader says what is wrong with it
        torn = None if root is None else _torn(root)
    if root is None or torn is None:
        return None
    done = None
    try:
        with commit_lock(location, keep=False), writing(location, role):
            done = _mended(root, location, role)
    except TableUnwritable:
        if torn.first is not None:
            raise  # a checkpoint that is not whole may stay where nobody may move it
    KEPT.clear()
    return done


def _mended(root: Path, location: str, role: str) -> SetAside | None:
    torn = None
    # guard: still-written
    while (found := _torn(root)) != torn:  # until two looks agree: somebody may still write
        torn = found
        time.sleep(SECOND_LOOK)
    if torn is None:
        return None
    if torn.first is None:
        return _moved(root, location, role, range(0), torn.hints)
    # guard: torn-before-end
    if torn.whole_behind is not None:
        raise TableUnreadable(
            f"version {torn.first} of the {role} at {location} is torn, and a later one, {torn.whole_behind}, is whole",
            "`windrow recover` takes a ledger back to the version before; bring a depot's entry back from a copy.",
        )
    return set_aside(location, role, torn.first, torn.hints)


def follow(ledger: str, depot: str) -> SetAside | None:
    """Set aside the versions of a local ledger that have read versions which were set aside of its depot.

    With `durable = false` the ledger may reach the device before the depot does. Raises TableLocked, TableUnwritable.
    """
    if _resting_on_lost(ledger, depot) is None:
        return None
    with commit_lock(ledger, keep=False), writing(ledger, "ledger"):
        first = _resting_on_lost(ledger, depot)
        done = None if first is None else set_aside(ledger, "ledger", first)
    KEPT.clear()
    return done


def _resting_on_lost(ledger: str, depot: str) -> int | None:
    """Return the first version of a local ledger that read what was set aside of its depot, None where none did."""
    log, root, first = local_path(ledger), local_path(depot), None
    if log is None or root is None:
        return None
    with suppress(OSError):  # the ledger's reader says what is wrong with it
        lost = list(_lost(root / ASIDE))
        for version in reversed(versions(log) if lost else []):
            noted = note(log, version)
            reached = noted.get("depot_version")
            if not isinstance(reached, int) or noted.get("depot") is not None:
                continue
            written_at = (log / entry_path(version)).stat().st_mtime
            if not any(reached >= since and written_at < at for at, since in lost):
                break
            first = version
    return first


def _lost(aside: Path) -> Iterator[tuple[float, int]]:
    """Yield when versions of a table were set aside (seconds), and the first of them."""
    for directory in aside.iterdir() if aside.is_dir() else ():
        with suppress(ValueError):  # not a directory of ours
            at = datetime.strptime(directory.name, STAMP).replace(tzinfo=UTC).timestamp()
            if found := versions_in(directory):
                yield at, min(found)


def set_aside(location: str, role: str, first: int, hints: Iterable[str] = (), whole: bool = False) -> SetAside:
    """Take the versions from `first` on out of a local table's log; `whole`, or from version 0 on, the whole table.

    The caller holds the table's lock. Raises OSError, and TableUnreadable, before anything is moved, where what is left
    could not be read.
    """
    root = local_path(location) or Path(location)
    there, found = versions(root), names(root / LOG)
    whole = whole or (first == 0 and not any(CHECKPOINT.fullmatch(name) for name in found))
    # guard: set-aside-readable
    if not (whole or is_whole(root, first - 1)):
        raise TableUnreadable(
            f"version {first} of the {role} at {location} is torn, and the versions before it are not whole either",
            "Nothing was moved. Bring the log back from a copy; or begin a new ledger (--ledger) if it is one.",
        )
    later = [name for name in found if max((int(n) for n in VERSION.findall(name)), default=-1) >= first]
    hint = hinted(root)
    stale = [HINT] if HINT in found and (hint is None or hint >= first) else []
    return _moved(root, location, role, range(first, max(there) + 1), {*later, *hints, *stale}, whole)


class Torn(NamedTuple):
    """What is not whole in a log: the first such entry, a whole one behind it, and files that only save time."""

    first: int | None
    whole_behind: int | None
    hints: tuple[str, ...]


def _torn(root: Path) -> Torn | None:
    """Look through the end of a log, the newest entry first."""
    first = behind = seen = None
    version = whole_ones = 0
    for version, whole in _judged(root):
        if whole:
            seen, whole_ones = version if seen is None else seen, whole_ones + 1
        else:
            first, behind, whole_ones = version, seen, 0
        if whole_ones > LOOK_BACK:
            break
    hints = _torn_hints(root, version)
    return Torn(first, behind, hints) if first is not None or hints else None


def is_whole(root: Path, version: int) -> bool:
    """Tell whether all entries that a version of a table rests on are whole, back to a checkpoint that is."""
    log = root / LOG
    checkpoints = [int(name[:20]) for name in names(log) if CHECKPOINT.fullmatch(name) and _is_whole(log / name)]
    base = max((found for found in checkpoints if found <= version), default=-1)
    expected = version
    for found, whole in _judged(root, version):
        if found <= base or found != expected or not whole:
            break
        expected -= 1
    return expected == base


def _judged(root: Path, upto: int | None = None) -> Iterator[tuple[int, bool]]:
    """Yield the entries of a log, the newest first, and whether each is whole, with the files that it names."""
    removed: set[str] = set()
    for version in reversed(versions(root)):
        if upto is not None and version > upto:
            continue
        entry = root / entry_path(version)
        said = actions(entry)
        whole = said is not None and _has_its_files(root, said, removed, entry.stat().st_mtime)
        if said is not None and whole:
            removed |= {action["remove"].get("path", "") for action in said if "remove" in action}
        yield version, whole


def _has_its_files(root: Path, said: Iterable[Mapping[str, Any]], removed: set[str], by: float) -> bool:
    """Tell whether the files of an entry that was written at time `by` (seconds) are whole.

    No power cut removes a file or changes it later: for such a file the table's reader says what is wrong.
    """
    added = added_files(root, said, removed)
    there = [(file, size) for file, size in added if file.exists() and file.stat().st_mtime <= by]
    return all(_is_of(file, size) and _has_its_checksums(file) for file, size in there)


def _torn_hints(root: Path, since: int) -> tuple[str, ...]:
    """Return files of the log that are not whole and that only save time: checkpoints, checksums, the hint."""
    log, found = root / LOG, names(root / LOG)
    checkpoints = [name for name in found if CHECKPOINT.fullmatch(name)]
    since = min(since, int(checkpoints[-1][:20])) if checkpoints else since
    lately = [name for name in found if name.lstrip(".")[:20].isdigit() and int(name.lstrip(".")[:20]) >= since]
    known = [name for name in lately if CHECKPOINT.fullmatch(name) or name.endswith(".crc")]
    torn = [name for name in known if not _is_whole(log / name)]
    hint = hinted(root)
    if HINT in found and not any(int(name[:20]) == hint for name in checkpoints if name not in torn):
        torn.append(HINT)
    beside = checksums(Path(HINT)).name
    return (*torn, *([beside] if beside in found and not _has_its_checksums(log / HINT) else []))


def _is_whole(file: Path) -> bool:
    """Tell whether a checkpoint, or what is kept beside an entry or a checkpoint, is as it was written."""
    if file.name.startswith("."):
        return _has_its_checksums(file.with_name(file.name[1:].removesuffix(".crc")))
    if file.suffix == ".crc":
        return json_object(file) is not None
    if file.suffix == ".json":
        return actions(file) is not None
    part = PART.fullmatch(file.name)
    if part and len(list(file.parent.glob(f"{part[1]}*.{part[2]}.parquet"))) < int(part[2]):
        return False
    with file.open("rb") as opened:
        opened.seek(-min(4, file.stat().st_size), os.SEEK_END)
        return opened.read() == b"PAR1"


def _is_of(file: Path, size: int | None) -> bool:
    return size is None or file.stat().st_size == size


def _has_its_checksums(file: Path) -> bool:
    """Tell whether the checksums beside a file are as many as its length needs; their head says for how many bytes."""
    beside = checksums(file)
    if not (file.exists() and beside.exists()):
        return True
    of = int.from_bytes(beside.read_bytes()[4:8])
    return of > 0 and _is_of(beside, 8 + 4 * -(-file.stat().st_size // of))


def _moved(
    root: Path, location: str, role: str, versions: range, moved: Iterable[str], whole: bool = False
) -> SetAside:
    """Move files of the log, the newest entry first: whenever this is cut off, what is left is the start of a log."""
    into = root / ASIDE / datetime.now(UTC).strftime(STAMP)
    into.mkdir(parents=True)
    for name in sorted(moved, reverse=True):
        (root / LOG / name).replace(into / name)
    if whole:
        for path in root.iterdir():
            if path.name != ASIDE:
                path.replace(into / path.name)
    fsync([into, into.parent, root, *([] if whole else [root / LOG])])
    done = SetAside(role, location, versions, into)
    TELL.warning(str(done), extra={"table": role, "directory": str(into)})
    return done
