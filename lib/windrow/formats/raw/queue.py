"""The queue of a raw source: its chunks in the order of their numbers, each once, whatever order they arrived in.

Chunks are numbered from 1. One that comes too early is held until those before it are there. One that came before must
be equal to the first, which its length and checksum tell; then it is a repetition, else a conflict. Behind the last
chunk nothing may come. Where more is held back than `max_held_bytes`, what is missing is given up: framing goes on
behind the gap, and what comes for it later is refused.

All is decided version by version of the depot, so it does not matter which versions a microbatch has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from windrow.formats.raw.checksum import checksum
from windrow.model.chunks import FIRST

DIGEST = Struct(">QQ")  # what accidents leave different; a cryptographic one takes longer than to frame the chunk
DIGEST_BYTES = DIGEST.size
LOST = bytes(DIGEST_BYTES)  # what is remembered of a chunk that was given up


class Chunk(NamedTuple):
    """A chunk as it arrived; `received_at` in microseconds.

    `digest` tells it from others: its length and end, and a checksum. `ordinal` counts the chunks of a
    number in the depot version that brought them. `broken` says why it could not be decoded: it is then a gap.
    """

    number: int
    content: bytes | memoryview
    last: bool
    received_at: int
    version: int
    digest: bytes
    ordinal: int = 0
    broken: str = ""
    offset: int = 0  # in the chunk, of a part of it

    @classmethod
    def of(cls, number: int, content: bytes | memoryview, last: bool, received_at: int, version: int) -> Chunk:
        """Return a chunk with its digest."""
        digest = DIGEST.pack(2 * len(content) + last + 1, checksum(content))
        return cls(number, content, last, received_at, version, digest)

    @property
    def size(self) -> int:
        """Return how many bytes it has, also where they are not here."""
        return (int.from_bytes(self.digest[:8], "big") - 1) // 2


class Refused(NamedTuple):
    """A chunk that is not taken, why, and in which depot version that was decided."""

    chunk: Chunk
    reason: str
    detail: str
    version: int


class Missing(NamedTuple):
    """Chunks from `first` on, up to before `behind`, that were given up in a depot version."""

    first: int
    behind: int
    version: int


class Taken(NamedTuple):
    """A chunk whose turn it is, in the depot version that brought it or the last of those before it."""

    chunk: Chunk
    version: int


Step = Taken | Missing | Refused


@dataclass(slots=True)
class Queue:
    """What is held of a source, and what is remembered: `next` is the number of the chunk that is awaited."""

    next: int = FIRST
    ended: bool = False
    held: dict[int, Chunk] = field(default_factory=dict)
    digests: bytes = b""  # of the chunks before `next`, the latest last

    def take(self, arrived: Iterable[Chunk], max_held_bytes: int, remembered_chunks: int) -> Iterator[Step]:
        """Take the chunks of one depot version, and yield what becomes of chunks, in their order."""
        version, ordinals = -1, Counter[int]()
        for one in sorted(arrived, key=lambda one: (one.number, one.received_at, one.digest)):
            chunk, version = one._replace(ordinal=ordinals[one.number]), one.version
            ordinals[one.number] += 1
            why = self._refusal(chunk)
            if why is None:
                self.held[chunk.number] = chunk
            else:
                yield Refused(chunk, *why, version)
        yield from self._release(version)
        while sum(chunk.size for chunk in self.held.values()) > max_held_bytes:
            behind = min(self.held)
            yield Missing(self.next, behind, version)
            self.digests += LOST * min(behind - self.next, remembered_chunks)
            self.next = behind
            yield from self._release(version)
        self.digests = self.digests[-remembered_chunks * DIGEST_BYTES :]

    def _refusal(self, chunk: Chunk) -> tuple[str, str] | None:
        """Return why a chunk is not taken, None when it is."""
        if chunk.number in self.held:
            return _compared(chunk, self.held[chunk.number].digest)
        if chunk.number >= self.next:
            return ("format_conflict", self._behind_last) if self.ended else None
        begin = len(self.digests) - (self.next - chunk.number) * DIGEST_BYTES
        if begin < 0:
            return "format_conflict", "it came before, too long ago to be compared"
        return _compared(chunk, self.digests[begin : begin + DIGEST_BYTES])

    @property
    def _behind_last(self) -> str:
        return f"it comes behind the last chunk, {self.next - 1}"

    def _release(self, version: int) -> Iterator[Step]:
        """Yield the chunks whose turn it is; those behind the last one are refused."""
        while not self.ended and (chunk := self.held.pop(self.next, None)) is not None:
            self.next += 1
            self.digests += chunk.digest
            self.ended = chunk.last
            yield Taken(chunk, version)
        if self.ended:
            behind, self.held = self.held, {}
            for number in sorted(behind):
                yield Refused(behind[number], "format_conflict", self._behind_last, version)


def _compared(chunk: Chunk, digest: bytes) -> tuple[str, str]:
    if digest == LOST:
        return "format_gap", "it came after it was given up"
    if digest == chunk.digest:
        return "format_repeated", "it came before, and is equal"
    return "format_conflict", "it came before, and is another one"
