"""What a disk of this machine keeps of a table when the power fails, and how the table is mended after that.

The operating system writes files to the device when it finds time, up to half a minute later. So a commit counts when
`keep` has returned: the data files that an entry of the log names, the entry, and the directories that name them have
reached the device. Who is cut off in the middle leaves one entry that nobody was told of.

`mend` looks at a table before anybody reads it. Delta's readers take an empty entry for a commit without content. So
entries at the end of the log that are empty or torn, or name files that are not whole, are set aside: they go into
`_set_aside` beside the log. Nobody was told of them, except by a writer that was told not to wait (`durable = false`).
Checkpoints and hints that are not whole go there as well. The table is then at its last whole version; where it would
have none, because its older entries were deleted, nothing is moved, and that is an error.

So is an entry that is torn before the end: whole ones rest on it, and `windrow recover` has to choose.

Nothing else in Windrow touches the files of a log. Tables on object stores are kept by their stores.
"""

from __future__ import annotations

import json
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
from urllib.parse import unquote

from windrow.errors import TableUnreadable
from windrow.locations import local_path

LOG, ASIDE, HINT = "_delta_log", "_set_aside", "_last_checkpoint"
ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:json|parquet)")
OF_A_VERSION = re.compile(r"\.?(\d{20})\..*")
STAMP = "%Y%m%dT%H%M%S.%fZ"  # of a directory, says when something was set aside
LOOK_BACK = 20  # whole entries behind which nothing torn is looked for
WRITTEN_AFTER = 120.0  # seconds; Linux waits for 35 unless told otherwise
SECOND_LOOK = 1.0  # seconds, in which a file that somebody still writes would change
TELL = logging.getLogger("windrow")


def keep(root: Path, after: int, upto: int | None = None) -> int:
    """Have the device keep the commits of a table after version `after`, up to `upto`; return the last of them.

    Raises OSError.
    """
    log = root / LOG
    entries = list(_entries(log, after, upto))
    if not entries:
        return after
    data = [root / name for entry in entries for name, _ in _written(_actions(entry) or [])]
    inside = {above for file in data for above in file.parents if above.is_relative_to(root)}
    made = {root, root.parent} if after < 0 else set()
    checkpoints = [log / f"{entry.stem}.checkpoint.parquet" for entry in entries]
    hint = [log / HINT] if any(checkpoint.exists() for checkpoint in checkpoints) else []
    _have_kept([*_checked(data), *sorted(inside | made, reverse=True)])
    _have_kept([*_checked([*entries, *checkpoints, *hint]), log])
    return after + len(entries)


def keep_checkpoint(root: Path, version: int) -> None:
    """Have the device keep the checkpoint of a version, before the entries behind it are deleted. Raises OSError."""
    log = root / LOG
    checkpoints = [log / name for name in _names(log) if name.startswith(f"{version:020}.checkpoint.")]
    _have_kept([*_checked([*checkpoints, log / HINT]), log])


def unwritten(root: Path, upto: int, kept: int) -> int:
    """Return the version up to which a table's commits are on the device for certain; `kept` is, as this process knows.

    What is older than `WRITTEN_AFTER` the system has written by itself.
    """
    log, since = root / LOG, time.time() - WRITTEN_AFTER
    for version in range(upto, min(kept, upto), -1):
        entry = _entry(log, version)
        if not entry.exists() or entry.stat().st_mtime < since:
            return version
    return min(kept, upto)


def newest(root: Path) -> int:
    """Return the newest version of a table, -1 without one: found from its last checkpoint on, not by a listing."""
    log = root / LOG
    begin = _hinted(log) or 0
    if not _entry(log, begin).exists():
        return max(versions(root), default=-1)
    return begin + sum(1 for _ in _entries(log, begin))


@dataclass(frozen=True, slots=True)
class SetAside:
    """What was taken out of a table's log: its versions, and where the log's files are now."""

    role: str
    location: str
    versions: range
    directory: Path

    def __str__(self) -> str:
        """Tell it in a sentence."""
        what = f"the {self.role} at {self.location}"
        if not self.versions:
            return f"a checkpoint of {what}, or the hint to it, is not whole; it is now in {self.directory}"
        last = f"goes on from version {self.versions.start - 1}" if self.versions.start else "begins anew"
        return f"{what} {last}: versions {self.versions.start} to {self.versions[-1]} are now in {self.directory}"


def is_torn(location: str, entries: bool = False) -> bool:
    """Tell whether the log of a local table has something at its end that is not whole; what it cannot read, is not.

    With `entries` files that only save time do not count.
    """
    root = local_path(location)
    try:
        torn = _torn(root) if root is not None and (root / LOG).is_dir() else None
    except OSError:
        return False
    return torn is not None and not (entries and torn.first is None)


def mend(location: str, role: str) -> SetAside | None:
    """Set aside what a power cut left at the end of a local table's log; None where nothing is torn.

    The caller holds the table's lock. Raises TableUnreadable for what is torn before the end, OSError.
    """
    root = local_path(location)
    if root is None or (torn := _torn(root)) is None:
        return None
    time.sleep(SECOND_LOOK)
    if (again := _torn(root)) != torn:
        return mend(location, role) if again else None
    if torn.first is None:
        return _moved(root, location, role, range(0), torn.hints)
    if torn.whole_behind is not None:
        raise TableUnreadable(
            f"version {torn.first} of the {role} at {location} is torn, and a later one, {torn.whole_behind}, is whole",
            "`windrow recover` takes a ledger back to the version before; bring a depot's entry back from a copy.",
        )
    return set_aside(location, role, torn.first, torn.hints)


def follow(ledger: str, depot: str) -> SetAside | None:
    """Set aside the versions of a local ledger that read versions of its depot which were set aside; None for none.

    They are there where `durable = false` let the ledger reach the device before the depot. The caller holds the
    ledger's lock. Raises OSError.
    """
    first = resting_on_lost(ledger, depot)
    return None if first is None else set_aside(ledger, "ledger", first)


def resting_on_lost(ledger: str, depot: str) -> int | None:
    """Return the first version of a local ledger that read what was set aside of its depot, None where none did."""
    log, root, first = local_path(ledger), local_path(depot), None
    try:
        lost = list(_lost(root / ASIDE)) if log is not None and root is not None else []
    except OSError:
        lost = []
    if log is None or not lost:
        return None
    with suppress(OSError):  # who reads the ledger says what is wrong with it
        for version in reversed(versions(log)):
            noted = note(log, version)
            reached = noted.get("depot_version")
            if not isinstance(reached, int) or noted.get("depot") is not None:
                continue
            written_at = _entry(log / LOG, version).stat().st_mtime
            if not any(reached >= since and written_at < at for at, since in lost):
                break
            first = version
    return first


def _lost(aside: Path) -> Iterator[tuple[float, int]]:
    """Yield when versions of a table were set aside, and from which one on."""
    for directory in aside.iterdir() if aside.is_dir() else ():
        with suppress(ValueError):  # what is no directory of ours
            at = datetime.strptime(directory.name, STAMP).replace(tzinfo=UTC).timestamp()
            if versions := _versions(directory):
                yield at, min(versions)


def set_aside(location: str, role: str, first: int, hints: Iterable[str] = (), whole: bool = False) -> SetAside:
    """Take versions from `first` on out of a table's log; `whole`, or from version 0 on, the table itself.

    Raises OSError, and TableUnreadable, before anything is moved, where what is left could not be read.
    """
    root = local_path(location) or Path(location)
    names, there = _names(root / LOG), versions(root)
    whole = whole or (first == 0 and not any(CHECKPOINT.fullmatch(name) for name in names))
    if not (whole or is_whole(root, first - 1)):
        raise TableUnreadable(
            f"version {first} of the {role} at {location} is torn, and the versions before it are not whole either",
            "Nothing was moved. Bring the log back from a copy; or begin a new ledger (--ledger) if it is one.",
        )
    behind = [name for name in names if (found := OF_A_VERSION.fullmatch(name)) and int(found[1]) >= first]
    hinted = _hinted(root / LOG)
    stale = [HINT] if hinted is None or hinted >= first else []
    moved = {*behind, *hints, *(name for name in stale if name in names)}
    return _moved(root, location, role, range(first, max(there) + 1), moved, whole)


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
    hints = _torn_hints(root / LOG, version)
    return Torn(first, behind, hints) if first is not None or hints else None


def is_whole(root: Path, version: int) -> bool:
    """Tell whether all entries that a version of a table rests on are whole, back to a checkpoint that is."""
    log = root / LOG
    checkpoints = [int(name[:20]) for name in _names(log) if CHECKPOINT.fullmatch(name) and _is_whole(log / name)]
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
        entry = _entry(root / LOG, version)
        actions = _actions(entry)
        whole = actions is not None and _has_its_files(root, actions, removed, entry.stat().st_mtime)
        if actions is not None and whole:
            removed |= {action["remove"].get("path", "") for action in actions if "remove" in action}
        yield version, whole


def _has_its_files(root: Path, actions: Iterable[Mapping[str, Any]], removed: set[str], by: float) -> bool:
    """Tell whether the files of an entry of time `by` are whole.

    One that is gone, or was changed later, was no power cut's doing: who reads it says what is wrong.
    """
    sizes = ((root / name, size) for name, size in _written(actions, removed))
    there = [(file, size) for file, size in sizes if file.exists() and file.stat().st_mtime <= by]
    return all(_is_of(file, size) and _is_checked(file) for file, size in there)


def _torn_hints(log: Path, since: int) -> tuple[str, ...]:
    """Return the files of a log that are not whole, and that nobody needs: checkpoints and what tells of others."""
    names = _names(log)
    checkpoints = [name for name in names if CHECKPOINT.fullmatch(name)]
    since = min(since, int(checkpoints[-1][:20])) if checkpoints else since
    lately = [name for name in names if (found := OF_A_VERSION.fullmatch(name)) and int(found[1]) >= since]
    known = [name for name in lately if CHECKPOINT.fullmatch(name) or name.endswith(".crc")]
    torn = [name for name in known if not _is_whole(log / name)]
    hinted = _hinted(log)
    pointed = any(int(name[:20]) == hinted for name in checkpoints if name not in torn)
    if HINT in names and not pointed:
        torn.append(HINT)
    beside = f".{HINT}.crc"
    return (*torn, *([beside] if beside in names and not _is_checked(log / HINT) else []))


def _is_whole(file: Path) -> bool:
    """Tell whether a checkpoint, or what is kept beside an entry or a checkpoint, is as it was written."""
    if file.name.startswith("."):
        return _is_checked(file.with_name(file.name[1:].removesuffix(".crc")))
    if file.suffix == ".crc":
        return _content(file) is not None
    if file.suffix == ".json":
        return _actions(file) is not None
    with file.open("rb") as opened:
        opened.seek(-min(4, file.stat().st_size), os.SEEK_END)
        return opened.read() == b"PAR1"


def _is_of(file: Path, size: int | None) -> bool:
    return size is None or file.stat().st_size == size


def _is_checked(file: Path) -> bool:
    """Tell whether Hadoop's checksums beside a file are of its length: a head says of how many bytes each one is."""
    beside = _checksums(file)
    if not (file.exists() and beside.exists()):
        return True
    of = int.from_bytes(beside.read_bytes()[4:8])
    return of > 0 and _is_of(beside, 8 + 4 * -(-file.stat().st_size // of))


def _moved(
    root: Path, location: str, role: str, versions: range, names: Iterable[str], whole: bool = False
) -> SetAside:
    """Move files of the log, the newest entry first: what is left of it is the begin of a log at any moment."""
    into = root / ASIDE / datetime.now(UTC).strftime(STAMP)
    into.mkdir(parents=True)
    for name in sorted(names, reverse=True):
        (root / LOG / name).replace(into / name)
    if whole:
        for path in root.iterdir():
            if path.name != ASIDE:
                path.replace(into / path.name)
    _have_kept([into, into.parent, root, *([] if whole else [root / LOG])])
    done = SetAside(role, location, versions, into)
    TELL.warning(str(done), extra={"table": role, "directory": str(into)})
    return done


def _entries(log: Path, after: int, upto: int | None = None) -> Iterator[Path]:
    version = after + 1
    while (upto is None or version <= upto) and (entry := _entry(log, version)).exists():
        yield entry
        version += 1


def _entry(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def versions(root: Path) -> list[int]:
    """Return the versions whose entries are in a table's log, in order."""
    return _versions(root / LOG)


def note(root: Path, version: int) -> dict[str, Any]:
    """Return what Windrow noted beside a commit of a ledger; nothing where it did not, or the entry is torn."""
    for action in _actions(_entry(root / LOG, version)) or ():
        with suppress(ValueError, TypeError):
            found = json.loads(action.get("commitInfo", {}).get("userMetadata"))
            return found if isinstance(found, dict) else {}
    return {}


def _versions(directory: Path) -> list[int]:
    return [int(found[1]) for name in _names(directory) if (found := ENTRY.fullmatch(name))]


def _names(log: Path) -> list[str]:
    return sorted(path.name for path in log.iterdir()) if log.is_dir() else []


def _actions(entry: Path) -> list[dict[str, Any]] | None:
    """Return the actions of an entry, None for one that is torn: empty, cut off, or zeros from somewhere on.

    What looks otherwise nobody began to write: it has none, and who reads it says what is wrong.
    """
    content = entry.read_bytes().rstrip(b"\0")
    lines = [line for line in content.splitlines() if line.strip()]
    try:
        actions = [json.loads(line) for line in lines]
    except ValueError:
        return None if content.startswith(b"{") else []
    told = [action for action in actions if isinstance(action, dict)]
    return [{kind: said for kind, said in one.items() if isinstance(said, dict)} for one in told] if actions else None


def _hinted(log: Path) -> int | None:
    """Return the version of the checkpoint that a log's hint names, None where it names none."""
    found = (_content(log / HINT) or {}).get("version")
    return found if isinstance(found, int) else None


def _content(file: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None where there is none."""
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, FileNotFoundError):
        return None
    return found if isinstance(found, dict) else None


def _written(actions: Iterable[Mapping[str, Any]], removed: Iterable[str] = ()) -> Iterator[tuple[str, int | None]]:
    """Yield the files in the table's directory that an entry adds, with their sizes, but for those removed since."""
    for action in actions:
        for kind in ("add", "cdc"):
            path = action.get(kind, {}).get("path")
            if path is not None and path not in removed and ":" not in path.split("/")[0]:
                yield unquote(path), action[kind].get("size")


def _have_kept(paths: Iterable[Path]) -> None:
    """Have the device keep files and directories, in this order."""
    for path in dict.fromkeys(paths):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):  # it was removed, or is another's: who reads it says so
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checked(files: Iterable[Path]) -> Iterator[Path]:
    for file in files:
        yield from (file, _checksums(file))


def _checksums(file: Path) -> Path:
    """Return the file in which Hadoop keeps the checksums of another one."""
    return file.with_name(f".{file.name}.crc")
