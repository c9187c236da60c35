"""Small texts beside the ledger, in a directory that Delta ignores; topologies keep the plan of a microbatch there.

A text that is there is not written again until it is deleted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyarrow.fs import FileSystem, FileType

from windrow.delta.durable import fsync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "_windrow"  # VACUUM leaves what begins with an underscore alone
BUFFER_BYTES = 1_000_000
NOTE = "name STRING, content STRING"


class LocalSideFiles:
    """Texts in a directory on a local disk."""

    def __init__(self, table: Path, durable: bool) -> None:
        """Keep them in the directory of a table; if `durable`, also through a power cut."""
        self._directory, self._durable = table / DIRECTORY, durable

    def read(self, name: str) -> str | None:
        """Return a text, None if there is none."""
        with suppress(FileNotFoundError):
            return (self._directory / name).read_text("utf-8")
        return None

    def write(self, name: str, text: str) -> None:
        """Write a text at once or not at all; of two writers the first one wins."""
        self._directory.mkdir(exist_ok=True)
        new = self._directory / f".{name}-{uuid4().hex}"
        try:
            with new.open("x", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            with suppress(FileExistsError):
                (self._directory / name).hardlink_to(new)
            if self._durable:
                fsync([self._directory, self._directory.parent])
        finally:
            new.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete a text, if there is one."""
        (self._directory / name).unlink(missing_ok=True)


class StoredSideFiles:
    """Texts in an object store, through delta-rs; of two writers at the same moment the last one may win."""

    def __init__(self, files: FileSystem) -> None:
        """Keep them among the files of a table."""
        self._files = files

    def read(self, name: str) -> str | None:
        """Return a text, None if there is none."""
        path = f"{DIRECTORY}/{name}"
        if self._files.get_file_info(path).type != FileType.File:
            return None
        with self._files.open_input_file(path) as opened:
            return str(opened.read().decode("utf-8"))

    def write(self, name: str, text: str) -> None:
        """Write a text, unless there is one with this name."""
        if self.read(name) is None:
            # buffered, because delta-rs takes no buffer of Arrow
            with self._files.open_output_stream(f"{DIRECTORY}/{name}", buffer_size=BUFFER_BYTES) as opened:
                opened.write(text.encode("utf-8"))

    def delete(self, name: str) -> None:
        """Delete a text, if there is one."""
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{DIRECTORY}/{name}")


class SparkSideFiles:
    """One text at a time, in storage that only Spark reaches: a new one takes the place of the one before.

    Spark has no command that deletes a file, so texts by name would stay for ever.
    """

    def __init__(self, session: SparkSession, table: str) -> None:
        """Keep it in the directory of a table."""
        self._session, self._place = session, f"{table}/{DIRECTORY}/note"

    def read(self, name: str) -> str | None:
        """Return a text, None if there is none."""
        from pyspark.errors import AnalysisException

        try:
            rows = self._session.read.schema(NOTE).json(self._place).collect()
        except AnalysisException:  # nothing was ever written
            return None
        return next((row["content"] for row in rows if row["name"] == name), None)

    def write(self, name: str, text: str) -> None:
        """Write a text, unless there is one with this name."""
        if self.read(name) is None:
            self._replace([(name, text)])

    def delete(self, name: str) -> None:
        """Delete a text, if there is one."""
        if self.read(name) is not None:
            self._replace([])

    def _replace(self, rows: list[tuple[str, str]]) -> None:
        self._session.createDataFrame(rows, NOTE).coalesce(1).write.mode("overwrite").json(self._place)
