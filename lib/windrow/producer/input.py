"""The input of `windrow produce`: lines from a file or a pipe, as they come, and a stop that may come in between."""

from __future__ import annotations

import hashlib
import os
import select
import time
from collections.abc import Sequence

from windrow.errors import FileRefused
from windrow.producer.lines import KEPT_BYTES

BLOCK_BYTES = 1_048_576
BEGIN = b"\xef\xbb\xbf"  # what some programs put before the first line


class Stop:
    """Asks for the end of reading, from a signal handler or another thread."""

    def __init__(self) -> None:
        """Make the pipe that wakes who waits."""
        self.woken, self._wake = os.pipe()

    def stop(self) -> None:
        """Ask for it."""
        os.write(self._wake, b".")

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self.woken)
        os.close(self._wake)


class Input:
    """The lines of a file descriptor.

    `unfinished` tells that the last line that was taken has no end: it may be one that is still being written.
    """

    def __init__(self, descriptor: int, stop: Stop, most_bytes: int) -> None:
        """Read until the end or a stop; of a line with more than `most_bytes` only the beginning is kept."""
        self._descriptor, self._stop = descriptor, stop
        self._longest = max(most_bytes, KEPT_BYTES) + 1
        self._lines: list[bytes] = []
        self._rest = b""
        self._begun = self._ended = False
        self.stopped = self.unfinished = False

    def ready(self) -> bool:
        """Tell whether `take` would not wait, for a line or for the end."""
        while not self._lines and self._read(0):
            pass
        return bool(self._lines) or self._ended

    def take(self, rows: int, byte_count: int, seconds: float) -> list[bytes]:
        """Wait for lines, and return them when so many are there, or so long after the first; none at the end."""
        found: list[bytes] = []
        held, until = 0, None
        while len(found) < rows and held < byte_count:
            if not self._lines and not self._read(None if until is None else max(until - time.monotonic(), 0)):
                break
            taken = self._lines[: rows - len(found)]
            del self._lines[: len(taken)]
            found += taken
            held += sum(map(len, taken))
            if until is None and found:
                until = time.monotonic() + seconds
        return found

    def _read(self, seconds: float | None) -> bool:
        """Read a block when there is one, or wait for it so long; False at the end, or after the time."""
        if self._ended:
            return False
        ready = select.select([self._descriptor, self._stop.woken], [], [], seconds)[0]
        if self._stop.woken in ready:
            self.stopped = self._ended = True
        if self._ended or not ready:
            return False
        try:
            block = os.read(self._descriptor, BLOCK_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            raise FileRefused(f"the input cannot be read: {error.strerror}", "See what is wrong with it.") from error
        if block:
            whole, end, rest = (self._rest + block).rpartition(b"\n")
            self._rest = rest[: self._longest]
            return not end or self._give(whole.split(b"\n"))
        self._ended, self.unfinished = True, bool(self._rest)
        return self.unfinished and self._give([self._rest])

    def _give(self, lines: list[bytes]) -> bool:
        if not self._begun:
            lines[0] = lines[0].removeprefix(BEGIN)
        self._lines, self._begun = lines, True
        return True


class Fingerprint:
    """Tells inputs apart by the beginnings of their lines so far, so that nobody goes on in another one."""

    def __init__(self) -> None:
        """Begin at the first line."""
        self._digest = hashlib.blake2b(digest_size=8)

    def add(self, lines: Sequence[bytes]) -> int:
        """Go on by some lines, and return what tells all of them: a positive number of 63 bits."""
        self._digest.update(b"".join([line[:KEPT_BYTES].rstrip() + b"\n" for line in lines]))
        return int.from_bytes(self._digest.digest()) >> 1
