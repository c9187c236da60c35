"""The input of `windrow produce`: read lines or bytes from a file or a pipe as they come, until the end or a stop."""

from __future__ import annotations

import hashlib
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from windrow.errors import InputFileError
from windrow.producer.delivery import Ack
from windrow.producer.lines import KEPT_BYTES
from windrow.producer.producer import RawProducer

BLOCK_BYTES = 1_048_576
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some programs write it before the first line


class StopSignal:
    """Ends reading from a signal handler or another thread."""

    def __init__(self) -> None:
        """Create the pipe that wakes a waiting reader."""
        self.woken, self._wake = os.pipe()

    def stop(self) -> None:
        """Ask for the end."""
        os.write(self._wake, b".")

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.woken)
        os.close(self._wake)


class FdReader:
    """A file descriptor that is read until its end or a stop."""

    def __init__(self, descriptor: int, stop: StopSignal) -> None:
        """Read nothing yet."""
        self._descriptor, self._stop = descriptor, stop
        self.ended = self.stopped = False

    def read(self, most: int, seconds: float | None) -> bytes:
        """Return up to `most` bytes once some are there; none at the end, or after `seconds`. Raises InputFileError."""
        while not self.ended:
            ready = select.select([self._descriptor, self._stop.woken], [], [], seconds)[0]
            if self._stop.woken in ready:
                self.stopped = self.ended = True
            elif ready:
                try:
                    block = os.read(self._descriptor, min(most, BLOCK_BYTES))
                except BlockingIOError:  # another reader of the pipe was faster
                    continue
                except OSError as error:
                    why = f"the input cannot be read: {error.strerror}"
                    raise InputFileError(why, "Check the file or the pipe.") from error
                self.ended = not block
                return block
            else:
                break
        return b""


class LineInput(FdReader):
    """The lines of a file descriptor.

    `unfinished` says that the last line has no newline: it may still be being written.
    """

    def __init__(self, descriptor: int, stop: StopSignal, most_bytes: int) -> None:
        """Read until the end or a stop; only the beginning of a line of more than `most_bytes` is kept."""
        super().__init__(descriptor, stop)
        self._longest = max(most_bytes, KEPT_BYTES) + 1
        self._lines: list[bytes] = []
        self._rest = b""
        self._begun = self.unfinished = False

    def ready(self) -> bool:
        """Tell whether `take` would return at once."""
        while not self._lines and self._read(0):
            pass
        return bool(self._lines) or self.ended

    def take(self, rows: int, byte_count: int, seconds: float) -> list[bytes]:
        """Wait for lines; return them once there are enough, or `seconds` after the first one; none at the end."""
        lines: list[bytes] = []
        size, until = 0, None
        while len(lines) < rows and size < byte_count:
            if not self._lines and not self._read(None if until is None else max(until - time.monotonic(), 0)):
                break
            taken = self._lines[: rows - len(lines)]
            del self._lines[: len(taken)]
            lines += taken
            size += sum(map(len, taken))
            if until is None and lines:
                until = time.monotonic() + seconds
        return lines

    def _read(self, seconds: float | None) -> bool:
        """Read a block, or wait up to `seconds` for one; return False at the end or after that time."""
        if block := self.read(BLOCK_BYTES, seconds):
            whole, end, rest = (self._rest + block).rpartition(b"\n")
            self._rest = rest[: self._longest]
            return not end or self._give(whole.split(b"\n"))
        if not self.ended or self.stopped or not self._rest:
            return False
        last, self._rest, self.unfinished = self._rest, b"", True
        return self._give([last])

    def _give(self, lines: list[bytes]) -> bool:
        if not self._begun:
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        self._lines, self._begun = lines, True
        return True


class Fingerprint:
    """A digest of the beginnings of all lines so far, so that a run does not resume in another input."""

    def __init__(self) -> None:
        """Start before the first line."""
        self._digest = hashlib.blake2b(digest_size=8)

    def add(self, lines: Sequence[bytes]) -> int:
        """Add lines, and return the digest of all lines so far: a positive number of 63 bits."""
        self._digest.update(b"".join([line[:KEPT_BYTES].rstrip() + b"\n" for line in lines]))
        return int.from_bytes(self._digest.digest()) >> 1


@dataclass(frozen=True, slots=True)
class RawProduceResult:
    """The result: bytes and chunks sent, the number of the last chunk (0 for none), and whether it was `stopped`."""

    byte_count: int
    chunk_count: int
    sequence: int
    is_source_ended: bool
    stopped: bool


class BytesInput(FdReader):
    """The bytes of a file descriptor, in pieces of at most `most` bytes, each read within some seconds."""

    def __init__(self, descriptor: int, stop: StopSignal, most: int, seconds: float) -> None:
        """Read until the end or a stop."""
        super().__init__(descriptor, stop)
        self._most, self._seconds = most, seconds

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces. Raises InputFileError."""
        while not self.ended:
            piece, until = bytearray(), float("inf")
            while len(piece) < self._most:
                wait = max(until - time.monotonic(), 0) if piece else None
                block = self.read(self._most - len(piece), wait)
                if not block:
                    break
                piece += block
                until = min(until, time.monotonic() + self._seconds)
            if piece:
                yield bytes(piece)


def send_bytes(
    producer: RawProducer, input_: BytesInput, last: bool, committed: Callable[[int], None] = lambda byte_count: None
) -> RawProduceResult:
    """Send the bytes of an input, and wait until the depot has them; `last` ends the source where the input ends.

    `committed` is called with the number of bytes of each committed chunk. Raises the error of a chunk that failed.
    """
    sent: deque[tuple[Future[Ack], int]] = deque()
    byte_count = chunks = sequence = 0

    def settle(least: int) -> None:
        nonlocal sequence
        while len(sent) > least:
            future, size = sent.popleft()
            sequence = future.result().sequence
            committed(size)

    for piece in input_.pieces():
        sent.append((producer.send(piece), len(piece)))
        byte_count, chunks = byte_count + len(piece), chunks + 1
        while sent and sent[0][0].done():
            settle(len(sent) - 1)
    ended = last and not input_.stopped
    if ended:
        sent.append((producer.finish(), 0))
        chunks += 1
    producer.flush()
    settle(0)
    return RawProduceResult(byte_count, chunks, sequence, ended, input_.stopped)
