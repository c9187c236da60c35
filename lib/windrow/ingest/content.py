"""Read a file once, piece by piece, and count its bytes: to ingest it raw, or to check its format."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import nullcontext
from pathlib import Path
from threading import Event, Lock
from typing import BinaryIO

from windrow.errors import FileUnreadableError, InputFileError
from windrow.formats.codecs import CodecError, stream
from windrow.formats.settings import FormatSettings

STANDARD_INPUT = "-"
PIECE_BYTES = 1_048_576
Progress = Callable[[int, int | None], None]


class ByteCounter:
    """Adds up the bytes that several threads read, and stops them."""

    def __init__(self, sizes: Iterable[int | None], progress: Progress) -> None:
        """Call `progress` with the bytes read so far and the total, None if one of the sizes is unknown."""
        known = list(sizes)
        self._total = None if None in known else sum(size or 0 for size in known)
        self._progress, self._lock, self._done = progress, Lock(), 0
        self.stop = Event()

    def __call__(self, byte_count: int) -> None:
        """Count bytes. Raises CancelledError once `stop` is set."""
        if self.stop.is_set():
            raise CancelledError
        with self._lock:
            self._done += byte_count
            self._progress(self._done, self._total)


class Content:
    """The bytes of a file, or of standard input for `-`; `byte_count` is the number of bytes read so far.

    `broken` says why decompression ended early.
    """

    refused: type[InputFileError | FileUnreadableError] = FileUnreadableError
    hint = "Check the disk and the permissions."

    def __init__(self, file: str, piece_bytes: int, passed: ByteCounter) -> None:
        """Read `piece_bytes` at a time, and count them in `passed`."""
        self._file, self._size, self._passed = file, piece_bytes, passed
        self.byte_count = 0
        self.broken: CodecError | None = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the file. Raises `refused` if it cannot be read to its end."""
        try:
            standard = self._file == STANDARD_INPUT
            with nullcontext(sys.stdin.buffer) if standard else Path(self._file).open("rb") as stream:
                yield from self._read(stream)
        except OSError as error:
            raise self.refused(f"{self._file} cannot be read to its end: {error.strerror}", self.hint) from error

    def decode(self, part: FormatSettings) -> Iterator[bytes]:
        """Yield the bytes, decompressed as the format says, up to a frame that is damaged or oversize."""
        try:
            yield from stream(self.pieces(), part.compression, part.max_decoded_bytes)
        except CodecError as error:
            self.broken = error

    def _read(self, stream: BinaryIO) -> Iterator[bytes]:
        while piece := stream.read(self._size):
            self.byte_count += len(piece)
            self._passed(len(piece))
            yield piece


class UnchangedContent(Content):
    """All bytes of a file that is ingested; the file is refused if it changes while it is read."""

    refused = InputFileError
    hint = "The depot has only part of it. Ingest it again."

    def decode(self, part: FormatSettings) -> Iterator[bytes]:
        """Yield the bytes, decompressed as the format says. Raises InputFileError for damaged or oversize frames."""
        yield from super().decode(part)
        if self.broken is not None:
            raise InputFileError(
                f"{self._file}: {self.broken}",
                "The depot has only part of it. Check [format] compression and max_decoded_bytes.",
            ) from self.broken

    def _read(self, stream: BinaryIO) -> Iterator[bytes]:
        before = _state(stream)
        for piece in super()._read(stream):
            self._require(before == _state(stream))
            yield piece
        self._require(before == _state(stream) and (before is None or before[0] == self.byte_count))

    def _require(self, unchanged: bool) -> None:
        # guard: raw-file-unchanged
        if not unchanged:
            raise InputFileError(
                f"{self._file} changed while it was read",
                "The depot has only part of it. Ingest it again when nothing writes to it.",
            )


def file_size(file: str, refused: type[InputFileError | FileUnreadableError]) -> int | None:
    """Return the size of a file in bytes, None if it is only known after reading. Raises `refused`."""
    if file == STANDARD_INPUT:
        if sys.stdin is None:  # another file may have its descriptor by now
            raise refused("standard input is closed", "Name a file, or pipe one in.")
        return None
    try:
        result = Path(file).stat()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "Check the path; it is relative to the current directory."
        raise refused(f"{file} cannot be read: {why}", hint) from None
    if stat.S_ISDIR(result.st_mode):
        raise refused(f"{file} is a directory", f"Name its files: {file}/*.")
    if not os.access(file, os.R_OK):
        raise refused(f"{file} cannot be read: permission denied", "Change its permissions, or copy the file.")
    return result.st_size if stat.S_ISREG(result.st_mode) else None


def _state(stream: BinaryIO) -> tuple[int, int] | None:
    """Return what changes when a file is written to (size, time in nanoseconds); None for a pipe or a device."""
    result = os.fstat(stream.fileno())
    return (result.st_size, result.st_mtime_ns) if stat.S_ISREG(result.st_mode) else None
