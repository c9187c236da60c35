"""The queue of a raw source: puts chunks into the order of their numbers, each once, whatever order they arrive in.

Chunks are numbered from 1. A chunk that arrives early is held until the ones before it have arrived. A chunk that
arrives again is a repetition if it equals the first one in length and checksum, otherwise a conflict. Nothing may
follow the last chunk. If more than `max_pending_bytes` are held, the missing chunks are given up: framing continues
after the gap, and missing chunks that arrive later are refused.

All decisions are made depot version by depot version, so it does not matter which versions a microbatch reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from windrow.formats.raw.checksum import checksum
from windrow.model.chunks import FIRST

DIGEST = Struct(">QQ")  # detects accidents; a cryptographic digest would take longer than framing the chunk
DIGEST_BYTES = DIGEST.size
REMEMBERED_CHUNKS = 1_024  # per source; a guess: a producer that resends has fewer in flight
LOST = bytes(DIGEST_BYTES)  # the digest that stands for a chunk that was given up


class QueuedChunk(NamedTuple):
    """A chunk as it arrived; `received_at` is in microseconds.

    `digest` identifies the content: its length, whether it is the last chunk, and a checksum. `ordinal` numbers the
    chunks with the same number in one depot version. `offset` is where the content begins in the chunk, if it is only a
    part of it.
    """

    number: int
    content: bytes | memoryview
    last: bool
    received_at: int
    version: int
    digest: bytes
    ordinal: int = 0
    offset: int = 0

    @classmethod
    def of(cls, number: int, content: bytes | memoryview, last: bool, received_at: int, version: int) -> QueuedChunk:
        """Return a chunk with its digest."""
        digest = DIGEST.pack(2 * len(content) + last + 1, checksum(content))
        return cls(number, content, last, received_at, version, digest)

    @property
    def size(self) -> int:
        """Return the number of bytes in the chunk, even if its content is not here."""
        return (int.from_bytes(self.digest[:8], "big") - 1) // 2


class RejectedChunk(NamedTuple):
    """A refused chunk, why, and the depot version in which that was decided."""

    chunk: QueuedChunk
    reason: str
    detail: str
    version: int


class ChunkGap(NamedTuple):
    """Chunks before the next one that were given up in a depot version."""

    version: int


class ReleasedChunk(NamedTuple):
    """The next chunk in order, and the depot version that brought it or the last missing chunk before it."""

    chunk: QueuedChunk
    version: int


Step = ReleasedChunk | ChunkGap | RejectedChunk


@dataclass(slots=True)
class Queue:
    """The held chunks of a source and the digests of earlier ones; `next` is the number of the next chunk in order."""

    next: int = FIRST
    ended: bool = False
    waiting: dict[int, QueuedChunk] = field(default_factory=dict)
    digests: bytes = b""  # of the chunks before `next`, the latest last

    def take(self, arrived: Iterable[QueuedChunk], max_pending_bytes: int) -> Iterator[Step]:
        """Take chunks version by version, and yield in order what becomes of them and of the held ones."""
        in_order = sorted(arrived, key=lambda chunk: (chunk.version, chunk.number, chunk.received_at, chunk.digest))
        for version, chunks in groupby(in_order, attrgetter("version")):
            yield from self._take(version, chunks, max_pending_bytes)
            self.digests = self.digests[-REMEMBERED_CHUNKS * DIGEST_BYTES :]

    def _take(self, version: int, arrived: Iterable[QueuedChunk], max_pending_bytes: int) -> Iterator[Step]:
        ordinals = Counter[int]()
        for sent in arrived:
            chunk = sent._replace(ordinal=ordinals[sent.number])
            ordinals[sent.number] += 1
            why = self._refusal(chunk)
            if why is None:
                self.waiting[chunk.number] = chunk
            else:
                yield RejectedChunk(chunk, *why, version)
        yield from self._release(version)
        while sum(chunk.size for chunk in self.waiting.values()) > max_pending_bytes:
            behind = min(self.waiting)
            yield ChunkGap(version)
            self.digests += LOST * min(behind - self.next, REMEMBERED_CHUNKS)
            self.next = behind
            yield from self._release(version)

    def take_run(self, first: int, count: int, last: bool, digests: bytes) -> bool:
        """Take consecutive chunks from number `first` on; return False if the queue must look at each of them.

        `digests` are those of the last `REMEMBERED_CHUNKS` chunks.
        """
        if first != self.next or self.waiting or self.ended:
            return False
        self.next, self.ended = first + count, last
        self.digests = (self.digests + digests)[-REMEMBERED_CHUNKS * DIGEST_BYTES :]
        return True

    def _refusal(self, chunk: QueuedChunk) -> tuple[str, str] | None:
        """Return why a chunk is refused, None if it is not."""
        if chunk.number in self.waiting:
            return _compare(chunk, self.waiting[chunk.number].digest)
        if chunk.number >= self.next:
            return ("format_conflict", self._behind_last) if self.ended else None
        start = len(self.digests) - (self.next - chunk.number) * DIGEST_BYTES
        if start < 0:
            return "format_conflict", "it came before, too long ago to be compared"
        return _compare(chunk, self.digests[start : start + DIGEST_BYTES])

    @property
    def _behind_last(self) -> str:
        return f"it comes after the last chunk, {self.next - 1}"

    def _release(self, version: int) -> Iterator[Step]:
        """Yield the held chunks that are next in order; refuse those after the last chunk."""
        while not self.ended and (chunk := self.waiting.pop(self.next, None)) is not None:
            self.next += 1
            self.digests += chunk.digest
            self.ended = chunk.last
            yield ReleasedChunk(chunk, version)
        if self.ended:
            behind, self.waiting = self.waiting, {}
            for number in sorted(behind):
                yield RejectedChunk(behind[number], "format_conflict", self._behind_last, version)


def _compare(chunk: QueuedChunk, digest: bytes) -> tuple[str, str]:
    if digest == LOST:
        return "format_gap", "it came after it was given up"
    if digest == chunk.digest:
        return "format_repeated", "it came before with the same content"
    return "format_conflict", "it came before with other content"
