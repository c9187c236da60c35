"""The files of a ledger in which live rows lie: those that it had when it was opened, and what its log says since."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from windrow import tables
from windrow.arrow import counted
from windrow.engine.pruning import SAID, Extent
from windrow.entries import Action, Entry
from windrow.errors import SettingsError
from windrow.moments import microseconds

BY = "state"
STATE = f"partition.{BY}"  # in what delta-rs says of a file
BOUNDS = {"min": "minValues", "max": "maxValues", "null_count": "nullCount"}  # as delta-rs says it, and as the log does


@dataclass(frozen=True, slots=True)
class File:
    """A file of the table as the log has it: its size in octets, and what it can hold."""

    path: str
    state: str
    size: int
    extent: Extent


def files_after(known: Iterable[File], entries: Iterable[Entry], columns: Sequence[str]) -> list[File]:
    """Return the files of live rows after some entries of the log, with those that were known before them.

    `columns` are those of the ledger, which say what is live in it.
    """
    files: dict[str, File | Action] = {file.path: file for file in known}
    for entry in entries:
        for removed in entry.of("remove"):
            files.pop(unquote(removed["path"]), None)
        for added in entry.of("add"):
            if tables.is_live(added["partitionValues"].get(BY), columns):
                files[unquote(added["path"])] = added
    return [file if isinstance(file, File) else _file(path, file) for path, file in files.items()]


def files_of(table: DeltaTable, columns: Sequence[str]) -> Iterator[File]:
    """Yield the files of live rows of a table as it was opened."""
    added = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    live = added.filter(tables.are_live(added[STATE], columns))
    wanted = [name for name in ("path", STATE, "size_bytes", *SAID) if name in live.column_names]
    for said in counted(live.select(wanted)).to_pylist():
        yield File(said["path"], said[STATE], said["size_bytes"], Extent.of(said))


def _file(path: str, added: Action) -> File:
    return File(path, added["partitionValues"][BY], added["size"], Extent.of(_said(added)))


def _said(added: Action) -> Mapping[str, Any]:
    """Return what an action says of its file, as delta-rs says it."""
    stats = json.loads(added.get("stats") or "{}")
    said = {"num_records": stats.get("numRecords")}
    for name in SAID[1:]:
        bound, column = name.split(".")
        value = (stats.get(BOUNDS[bound]) or {}).get(column)
        said[name] = _counted(value) if column == "window_end" else value
    return said


def _counted(moment: str | None) -> int | None:
    """Return a time in microseconds, None for one in no year that ISO 8601 knows."""
    try:
        return None if moment is None else microseconds(moment, "window_end")
    except SettingsError:
        return None
