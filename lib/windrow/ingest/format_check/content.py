"""Read a file piece by piece, and decompress it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Literal, cast

from windrow.errors import FileUnreadable
from windrow.formats.codecs import CodecError, stream

STANDARD_INPUT = "-"
PIECE_BYTES = 262_144  # small, because bad records take much more memory than their bytes
Codec = Literal["none", "gzip", "zstd"]


class Content:
    """The decompressed bytes of a file, or of standard input for `-`; `broken` says why decompression ended early."""

    def __init__(self, file: str, codec: Codec, most_bytes: int, passed: Callable[[int], None]) -> None:
        """Call `passed` with the number of bytes of each piece that is read."""
        self._file, self._codec, self._most_bytes, self._passed = file, codec, most_bytes, passed
        self.broken: CodecError | None = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes. Raises FileUnreadable."""
        try:
            with _opened(self._file) as opened:
                reader = _Reader(opened, self._passed)
                if self._codec == "none":
                    yield from iter(lambda: reader.read(PIECE_BYTES), b"")
                else:
                    yield from self._decoded(reader, self._codec)
                if reader.error is not None:
                    raise reader.error
        except OSError as error:
            raise FileUnreadable(
                f"{self._file} cannot be read to its end: {error.strerror}", "Check the disk and the permissions."
            ) from error

    def _decoded(self, reader: _Reader, codec: Literal["gzip", "zstd"]) -> Iterator[bytes]:
        try:
            yield from stream(cast("BinaryIO", reader), codec, self._most_bytes)
        except CodecError as error:
            self.broken = error


def size_of(file: str) -> int | None:
    """Return the size of a file in bytes, None if it is only known after reading. Raises FileUnreadable."""
    if file == STANDARD_INPUT:
        if sys.stdin is None:  # another file may have its descriptor by now
            raise FileUnreadable("standard input is closed", "Name a file, or pipe one in.")
        return None
    try:
        found = Path(file).stat()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise FileUnreadable(
            f"{file} cannot be read: {why}", "Check the path; it is relative to the current directory."
        ) from None
    if stat.S_ISDIR(found.st_mode):
        raise FileUnreadable(f"{file} is a directory", f"Name its files: {file}/*.")
    if not os.access(file, os.R_OK):
        raise FileUnreadable(f"{file} cannot be read: permission denied", "Change its permissions, or copy the file.")
    return found.st_size if stat.S_ISREG(found.st_mode) else None


class _Reader:
    """Counts what it reads, and keeps the disk's errors, which a decoder would report as damaged frames."""

    def __init__(self, opened: BinaryIO, passed: Callable[[int], None]) -> None:
        self._opened, self._passed = opened, passed
        self.error: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            piece = self._opened.read(size)
        except OSError as error:
            self.error = error
            return b""
        self._passed(len(piece))
        return piece


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else Path(file).open("rb")
