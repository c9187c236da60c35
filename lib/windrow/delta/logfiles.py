"""Read the log files of a local Delta table. Nothing here changes a file.

An entry, `00000000000000000007.json`, is one commit, with one action per line. A checkpoint sums up the entries before
it, and `_last_checkpoint` (the hint) names the newest one. Hadoop keeps the checksums of a file in `.NAME.crc`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from windrow.model.commits import note_of

LOG, ASIDE, HINT = "_delta_log", "_set_aside", "_last_checkpoint"
ENTRY = re.compile(r"(\d{20})\.json")
KINDS = {  # of actions, as Delta's protocol names them
    "add", "cdc", "checkpointMetadata", "commitInfo", "domainMetadata", "metaData", "protocol", "remove", "sidecar",
    "txn",
}  # fmt: skip


def entry_path(version: int) -> str:
    """Return the path of a version's log entry in its table."""
    return f"{LOG}/{version:020}.json"


def entries(root: Path, after: int, last_version: int | None = None) -> Iterator[Path]:
    """Yield the log entries after version `after`, up to `last_version` or the first missing one."""
    version = after + 1
    while (last_version is None or version <= last_version) and (entry := root / entry_path(version)).exists():
        yield entry
        version += 1


def versions(files: Iterable[str]) -> list[int]:
    """Return, in order, the versions whose entries are among these sorted file names."""
    return [int(match[1]) for name in files if (match := ENTRY.fullmatch(name))]


def newest_version(root: Path) -> int:
    """Return the newest version of a table, -1 if there is none, counting from the last checkpoint on."""
    start = last_checkpoint(root) or 0
    if not (root / entry_path(start)).exists():
        return max(versions(names(root / LOG)), default=-1)
    return start + sum(1 for _ in entries(root, start))


def names(directory: Path) -> list[str]:
    """Return the names of the files in a directory, sorted; an empty list if it does not exist."""
    return sorted(os.listdir(directory)) if directory.is_dir() else []  # noqa: PTH208 - paths take thrice as long


class Condition(Enum):
    """The condition of an entry.

    TORN is what a power cut leaves: nothing, zeros from some byte on, or an end within an action where a block of the
    file system ends. An entry that is invalid in any other way, as after a flipped bit, is DAMAGED: it was synced, and
    somebody may have read it.
    """

    WHOLE = auto()
    TORN = auto()
    DAMAGED = auto()


def read_entry(entry: Path) -> tuple[Condition, list[dict[str, Any]]]:
    """Return the condition of an entry, and those of its actions that can be read."""
    content = entry.read_bytes()
    written = content.rstrip(b"\0")
    lines = [line for line in written.splitlines() if line.strip()]
    actions = [_action(line) for line in lines]
    readable = [
        {kind: of for kind, of in action.items() if isinstance(of, dict)} for action in actions if action is not None
    ]
    if actions and None not in actions:
        return Condition.WHOLE, readable
    ends_early = len(written) < len(content) or len(content) % os.statvfs(entry).f_frsize == 0
    # guard: torn-or-damaged
    is_cut = ends_early and None not in actions[:-1] and not written.endswith(b"\n")
    return Condition.TORN if is_cut or not written else Condition.DAMAGED, readable


def _action(line: bytes) -> dict[str, Any] | None:
    """Return the action in a line of an entry, None if it is not one: Delta's readers skip an unknown action."""
    try:
        action = json.loads(line)
    except ValueError:
        return None
    return action if isinstance(action, dict) and action.keys() <= KINDS else None


def actions(entry: Path) -> list[dict[str, Any]] | None:
    """Return the actions of an entry, None for one that is not whole."""
    condition, result = read_entry(entry)
    return result if condition is Condition.WHOLE else None


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
    """Return the note (user metadata) of a ledger's commit; empty if there is none or it cannot be read."""
    infos = (action["commitInfo"] for action in read_entry(root / entry_path(version))[1] if "commitInfo" in action)
    return note_of(next(infos, {}))


def last_checkpoint(root: Path) -> int | None:
    """Return the checkpoint version that `_last_checkpoint` names, None if there is none."""
    version = (json_object(root / LOG / HINT) or {}).get("version")
    return version if isinstance(version, int) else None


def json_text(text: object) -> dict[str, Any] | None:
    """Return the JSON object in a text, None if there is none."""
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def json_object(file: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if there is none."""
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, FileNotFoundError):
        return None
    return document if isinstance(document, dict) else None


def checksums(file: Path) -> Path:
    """Return the file in which Hadoop keeps the checksums of a file."""
    return file.with_name(f".{file.name}.crc")
