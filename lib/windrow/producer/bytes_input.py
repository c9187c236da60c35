"""The input of `windrow produce --raw-source`: read bytes from a file or a pipe, and send them as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from windrow.producer.delivery import Ack
from windrow.producer.input import Descriptor, Stop
from windrow.producer.raw import RawProducer


@dataclass(frozen=True, slots=True)
class RawProduced:
    """The result: bytes and chunks sent, the number of the last chunk (0 for none), and whether it was `stopped`."""

    bytes: int
    chunks: int
    sequence: int
    ended: bool
    stopped: bool


class BytesInput(Descriptor):
    """The bytes of a file descriptor, in pieces of at most `most` bytes or of what came within some seconds."""

    def __init__(self, descriptor: int, stop: Stop, most: int, seconds: float) -> None:
        """Read until the end or a stop."""
        super().__init__(descriptor, stop)
        self._most, self._seconds = most, seconds

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces. Raises FileRefused."""
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
) -> RawProduced:
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
    return RawProduced(byte_count, chunks, sequence, ended, input_.stopped)
