"""The content of a file, read once, and counted while it passes."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from windrow.errors import FileRefused

STANDARD_INPUT = "-"
PIECE_BYTES = 1_048_576


class Content:
    """The bytes of a file, or of standard input for `-`; `bytes` counts what has passed."""

    def __init__(self, file: str, piece_bytes: int, passed: Callable[[int], None]) -> None:
        """Read at least `piece_bytes` at a time, and tell `passed` of each piece how many bytes it has."""
        self._file, self._size, self._passed = file, max(piece_bytes, PIECE_BYTES), passed
        self.byte_count = 0

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes. Raises FileRefused for a file that cannot be read, or changes meanwhile."""
        try:
            with _opened(self._file) as stream:
                before = _state(stream)
                while piece := stream.read(self._size):
                    self._require(before == _state(stream))
                    self.byte_count += len(piece)
                    self._passed(len(piece))
                    yield piece
                self._require(before == _state(stream) and (before is None or before[0] == self.byte_count))
        except OSError as error:
            raise FileRefused(
                f"{self._file} cannot be read to its end: {error.strerror}",
                "It is not whole in the depot. Ingest it again.",
            ) from error

    def _require(self, unchanged: bool) -> None:
        # guard: raw-file-unchanged
        if not unchanged:
            raise FileRefused(
                f"{self._file} was written to while it was read",
                "It is not whole in the depot. Ingest it again when nobody writes to it.",
            )


def size_of(file: str) -> int | None:
    """Return the bytes of a file, None where only reading tells. Raises FileRefused for what is no file."""
    if file == STANDARD_INPUT:
        return None
    if "://" in file:
        raise FileRefused(f"{file} is no file on this machine", "Pipe it in: windrow ingest - --raw-source NAME.")
    path = Path(file)
    try:
        found = path.stat()
    except OSError as error:
        said = f"there is no {file}" if isinstance(error, FileNotFoundError) else f"{file}: {error.strerror}"
        raise FileRefused(said, "Check the path; it is relative to where you are.") from error
    if stat.S_ISDIR(found.st_mode):
        raise FileRefused(f"{file} is a directory", f"Name its files: {file}/*.")
    if not os.access(path, os.R_OK):
        raise FileRefused(f"{file} cannot be read: no right to", "Nothing was ingested.")
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else Path(file).open("rb")


def _state(stream: BinaryIO) -> tuple[int, int] | None:
    """Return what changes when somebody writes to a file; None for what is no file."""
    found = os.fstat(stream.fileno())
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
