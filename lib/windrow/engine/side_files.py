"""Small texts beside the ledger, in a directory that Delta ignores; topologies keep the plan of a microbatch there.

Of several writers that `create` a text, exactly one succeeds, even on an object store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from windrow.delta.durable import fsync
from windrow.delta.table import history, latest_table, translate_read_errors, translate_write_errors
from windrow.errors import TableMissingError
from windrow.model.commits import note_of

DIRECTORY = "_windrow"  # VACUUM ignores names that begin with an underscore
COLUMNS = pa.schema([("name", pa.string())])
ATTEMPTS = 10  # in each round, one of the writers that commit at the same time succeeds
LATEST = 100  # notes that are read; a name is used for minutes, and each attempt at a microbatch writes one or two
# The notes of a journal matter only as long as their microbatch runs.
BRIEF = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",  # Spark requires it to be at most that of the log
    "delta.checkpointInterval": "100",
}


class LocalSideFiles:
    """Texts in a directory on a local disk."""

    def __init__(self, table: Path, synced: bool) -> None:
        """Keep texts in the directory of a table; if `synced`, they survive a power cut."""
        self._directory, self._synced = table / DIRECTORY, synced

    def read(self, name: str) -> str | None:
        """Return a text, None if there is none."""
        with suppress(FileNotFoundError):
            return (self._directory / name).read_text("utf-8")
        return None

    def create(self, name: str, text: str) -> bool:
        """Write a text, at once or not at all, unless there is one with this name; return whether it was written."""
        return self._write(name, text, Path.hardlink_to)

    def replace(self, name: str, text: str) -> None:
        """Write a text at once or not at all, in place of the one with this name."""
        self._write(name, text, lambda place, new: new.replace(place))

    def _write(self, name: str, text: str, put: Callable[[Path, Path], object]) -> bool:
        self._directory.mkdir(exist_ok=True)
        new = self._directory / f".{name}-{uuid4().hex}"
        try:
            with new.open("x", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            try:
                put(self._directory / name, new)
            except FileExistsError:
                return False
            finally:
                if self._synced:  # even if another writer created the name
                    fsync([self._directory, self._directory.parent])
        finally:
            new.unlink(missing_ok=True)
        return True

    def delete(self, name: str) -> None:
        """Delete a text, if there is one."""
        (self._directory / name).unlink(missing_ok=True)


class StoredSideFiles:
    """Texts in the log of a small Delta table, for storage that cannot create a file only if it is absent.

    Each text is the note of a commit, and the log has one order for all writers: the first commit with a name decides.
    A text is never deleted; its name is not used again.
    """

    def __init__(self, journal: Journal) -> None:
        """Read nothing yet."""
        self._journal = journal

    def read(self, name: str) -> str | None:
        """Return a text, None if there is none."""
        same = [note for note in self._journal.notes() if note.get("name") == name]
        replaced = (note for note in same if note["replaces"])
        return str(next(replaced, same[-1])["text"]) if same else None

    def create(self, name: str, text: str) -> bool:
        """Write a text unless there is one with this name; return whether it was written."""
        own = uuid4().hex
        self._journal.write({"name": name, "text": text, "id": own, "replaces": False})
        same = [note["id"] for note in self._journal.notes() if note.get("name") == name]
        # guard: first-in-the-log
        return same[-1] == own

    def replace(self, name: str, text: str) -> None:
        """Write a text in place of the one with this name."""
        self._journal.write({"name": name, "text": text, "id": uuid4().hex, "replaces": True})

    def delete(self, name: str) -> None:
        """Leave a text where it is."""


class Journal(Protocol):
    """The notes in the log of a Delta table."""

    def write(self, note: Mapping[str, Any]) -> None:
        """Commit a note; other writers may commit theirs at the same time. Creates the table if it is missing."""

    def notes(self) -> Iterable[Mapping[str, Any]]:
        """Return the latest notes, newest first."""


@dataclass(frozen=True, slots=True)
class DeltaRsJournal(Journal):
    """Notes in commits without files, by delta-rs."""

    location: str

    @classmethod
    def beside(cls, table: str) -> DeltaRsJournal:
        """Return the journal beside a table."""
        return cls(f"{table.rstrip('/')}/{DIRECTORY}/plans")

    def write(self, note: Mapping[str, Any]) -> None:
        """Commit a note. Raises TableUnwritableError."""
        noted = CommitProperties(custom_metadata={"userMetadata": json.dumps(note)})
        with translate_write_errors(self.location, "ledger"):
            for attempts_left in reversed(range(ATTEMPTS)):
                try:
                    table = DeltaTable.create(self.location, COLUMNS, mode="ignore", configuration=BRIEF)
                    table.create_write_transaction([], "append", table.schema(), commit_properties=noted)
                except CommitFailedError:  # when two writers create the table
                    if not attempts_left:
                        raise
                else:
                    return

    def notes(self) -> Iterable[Mapping[str, Any]]:
        """Return the latest notes, newest first. Raises TableUnreadableError."""
        try:
            table = latest_table(self.location, "ledger")
        except TableMissingError:
            return []
        with translate_read_errors(self.location, "ledger"):
            return [note_of(commit) for commit in history(table, max(0, table.version() - LATEST))]
