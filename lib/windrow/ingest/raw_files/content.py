"""Read a file once, count its bytes, and detect changes while it is read."""

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
    """The bytes of a file, or of standard input for `-`; `byte_count` is the number of bytes read so far."""

    def __init__(self, file: str, piece_bytes: int, passed: Callable[[int], None]) -> None:
        """Read at least `piece_bytes` at a time, and call `passed` with the number of bytes of each piece."""
        self._file, self._size, self._passed = file, max(piece_bytes, PIECE_BYTES), passed
        self.byte_count = 0

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes. Raises FileRefused for a file that cannot be read or changes during reading."""
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
                "The depot does not have all of it. Ingest it again.",
            ) from error

    def _require(self, unchanged: bool) -> None:
        # guard: raw-file-unchanged
        if not unchanged:
            raise FileRefused(
                f"{self._file} changed while it was read",
                "The depot does not have all of it. Ingest it again when nothing writes to it.",
            )


def size_of(file: str) -> int | None:
    """Return the size of a file in bytes, None if it is only known after reading. Raises FileRefused."""
    if file == STANDARD_INPUT:
        return None
    if "://" in file:
        raise FileRefused(f"{file} is not a local file", "Pipe it in: windrow ingest - --raw-source NAME.")
    path = Path(file)
    try:
        found = path.stat()
    except OSError as error:
        why = f"{file} does not exist" if isinstance(error, FileNotFoundError) else f"{file}: {error.strerror}"
        raise FileRefused(why, "Check the path; it is relative to the current directory.") from error
    if stat.S_ISDIR(found.st_mode):
        raise FileRefused(f"{file} is a directory", f"Name its files: {file}/*.")
    if not os.access(path, os.R_OK):
        raise FileRefused(f"{file} cannot be read: permission denied", "Nothing was ingested. Change its permissions.")
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else Path(file).open("rb")


def _state(stream: BinaryIO) -> tuple[int, int] | None:
    """Return what changes when a file is written to (size, time in nanoseconds); None for a pipe or a device."""
    found = os.fstat(stream.fileno())
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
