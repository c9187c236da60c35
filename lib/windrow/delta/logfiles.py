"""Read the log files of a local Delta table. Nothing here changes a file.

An entry, `00000000000000000007.json`, is one commit, with one action per line. A checkpoint sums up the entries before
it, and `_last_checkpoint` (the hint) names the newest one. Hadoop keeps the checksums of a file in `.NAME.crc`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from windrow.model.commits import note_of

LOG, ASIDE, HINT = "_delta_log", "_set_aside", "_last_checkpoint"
ENTRY = re.compile(r"(\d{20})\.json")


def entry_path(version: int) -> str:
    """Return the path of a version's log entry in its table."""
    return f"{LOG}/{version:020}.json"


def entries(root: Path, after: int, upto: int | None = None) -> Iterator[Path]:
    """Yield the log entries after version `after`, up to `upto` or the first missing one."""
    version = after + 1
    while (upto is None or version <= upto) and (entry := root / entry_path(version)).exists():
        yield entry
        version += 1


def versions(files: Iterable[str]) -> list[int]:
    """Return the versions whose entries are among sorted names of files, in order."""
    return [int(found[1]) for name in files if (found := ENTRY.fullmatch(name))]


def newest(root: Path) -> int:
    """Return the newest version of a table, -1 if there is none, counting from the last checkpoint on."""
    begin = hinted(root) or 0
    if not (root / entry_path(begin)).exists():
        return max(versions(names(root / LOG)), default=-1)
    return begin + sum(1 for _ in entries(root, begin))


def names(directory: Path) -> list[str]:
    """Return the names of the files in a directory, sorted; an empty list if it does not exist."""
    return sorted(os.listdir(directory)) if directory.is_dir() else []  # noqa: PTH208 - paths take thrice as long


def actions(entry: Path) -> list[dict[str, Any]] | None:
    """Return the actions of an entry, None for a torn one: empty, cut off, or zeros from some byte on.

    A file that does not begin like an entry is not torn but has no actions: the table's reader reports it.
    """
    content = entry.read_bytes().rstrip(b"\0")
    lines = [line for line in content.splitlines() if line.strip()]
    try:
        found = [json.loads(line) for line in lines]
    except ValueError:
        return None if content.startswith(b"{") else []
    objects = [action for action in found if isinstance(action, dict)]
    return [{kind: of for kind, of in one.items() if isinstance(of, dict)} for one in objects] if found else None


def added_files(
    root: Path, actions: Iterable[Mapping[str, Any]], removed: Iterable[str] = ()
) -> Iterator[tuple[Path, int | None]]:
    """Yield the local files that an entry adds, with their sizes in bytes, except those in `removed`."""
    for action in actions:
        for kind in ("add", "cdc"):
            path = action.get(kind, {}).get("path")
            if path is None or path in removed:
                continue
            path = unquote(path.removeprefix("file:"))
            if ":" not in path.split("/")[0]:  # not on another file system
                yield root / path, action[kind].get("size")


def note(root: Path, version: int) -> dict[str, Any]:
    """Return the note (user metadata) of a ledger's commit; empty if there is none or the entry is torn."""
    said = (action["commitInfo"] for action in actions(root / entry_path(version)) or () if "commitInfo" in action)
    return note_of(next(said, {}))


def hinted(root: Path) -> int | None:
    """Return the checkpoint version that `_last_checkpoint` names, None if there is none."""
    found = (json_object(root / LOG / HINT) or {}).get("version")
    return found if isinstance(found, int) else None


def json_object(file: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if there is none."""
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, FileNotFoundError):
        return None
    return found if isinstance(found, dict) else None


def checksums(file: Path) -> Path:
    """Return the file in which Hadoop keeps the checksums of a file."""
    return file.with_name(f".{file.name}.crc")
