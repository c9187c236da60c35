"""A portion of a raw file: what one commit adds, and the transactions by which the depot's log recognises it.

A file of more than `commit_bytes` is committed in portions. Like a producer, each commit records the number of its last
chunk and whether the raw source has ended, so that a file and a producer cannot use a number twice. More transactions
record how far the raw source has come and the digest of these bytes, so that a later run can check that it continues
the same content.
"""

from __future__ import annotations

from dataclasses import dataclass

from windrow.producer.queue import ENDED
from windrow.producer.writer import application, marks


@dataclass(frozen=True, slots=True)
class Added:
    """A file that a commit adds: its path in the table, its size in bytes, its rows, and their statistics as JSON."""

    path: str
    byte_count: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class Portion:
    """A stretch of a file after its first `start` bytes; the file has `byte_count` bytes and `chunks` up to its end.

    `digest` covers all bytes so far, `begin` the first ones (None while there are too few to distinguish files). `size`
    is the size of the file on disk in bytes, set in the `last` portion. A portion without files was only hashed,
    because the depot has its raw source already.
    """

    name: str
    file: str
    raw_source: str
    start: int
    byte_count: int
    chunks: int
    digest: str
    begin: str | None
    last: bool
    size: int = 0
    added: tuple[Added, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of chunks it adds."""
        return sum(file.rows for file in self.added)

    def numbers(self, begin: str | None) -> dict[str, int]:
        """Return the application transactions of its commit; `begin` is the digest of the file's first bytes."""
        if self.last:
            reached = {content(self.digest): 0, raw_source(self.raw_source): self.size, marks(self.raw_source): ENDED}
        else:
            reached = {begun(self.raw_source): self.byte_count, prefix(self.digest, self.raw_source): self.chunks}
        reached[application(self.raw_source)] = self.chunks
        return reached if begin is None or self.start else reached | {beginning(begin): 0}


def content(digest: str) -> str:
    """Return the application of a file that the depot has completely."""
    return f"ingest:{digest}"


def raw_source(name: str) -> str:
    """Return the application of a raw source that the depot has completely; its number is the file's size in bytes."""
    return f"raw:{name}"


def begun(name: str) -> str:
    """Return the application of an incomplete raw source; its number is the bytes that the depot has."""
    return f"begun:{name}"


def prefix(digest: str, name: str) -> str:
    """Return the application of a raw source that begins with bytes of this digest; its number is their chunks."""
    return f"prefix:{digest}:{name}"


def beginning(digest: str) -> str:
    """Return the application of files whose first bytes have this digest."""
    return f"beginning:{digest}"
