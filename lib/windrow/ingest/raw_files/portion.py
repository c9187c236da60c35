"""A portion of a raw file: what one commit adds of it, and how the log of the depot knows it again.

A file of more than `commit_bytes` comes in portions. Each commit says what that of a producer says: the number of its
last chunk, and whether it ends its raw source, so that a file and a producer do not give one number twice. More of
these numbers say how far the raw source has come, and of which content that was: who goes on later compares the digest
of as many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from windrow.producer.queue import ENDED
from windrow.producer.writer import application, marks


@dataclass(frozen=True, slots=True)
class Added:
    """A file that a commit adds: its path in the table, its bytes, its rows, what the log says of them."""

    path: str
    byte_count: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class Portion:
    """What was read of a file: `start` bytes were before it, and with it they are `bytes` in `chunks`.

    `digest` is of all bytes so far, `begin` of the first ones, None while there are too few to tell files apart.
    `size` are the bytes of the file as it lies there, known with the `last` portion. A portion without files was only
    looked at, because the depot has its raw source already.
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
        """Return how many chunks it adds."""
        return sum(file.rows for file in self.added)

    def numbers(self, begin: str | None) -> dict[str, int]:
        """Return the number of each application in its commit; `begin` is what is known of the file by then."""
        if self.last:
            reached = {content(self.digest): 0, raw_source(self.raw_source): self.size, marks(self.raw_source): ENDED}
        else:
            reached = {begun(self.raw_source): self.byte_count, prefix(self.digest, self.raw_source): self.chunks}
        reached[application(self.raw_source)] = self.chunks
        return reached if begin is None or self.start else reached | {beginning(begin): 0}


def content(digest: str) -> str:
    """Return the application of a file that is whole in the depot."""
    return f"ingest:{digest}"


def raw_source(name: str) -> str:
    """Return the application of a raw source that is whole in the depot; its number are the bytes of the file."""
    return f"raw:{name}"


def begun(name: str) -> str:
    """Return the application of a raw source that has come in as far as its number."""
    return f"begun:{name}"


def prefix(digest: str, name: str) -> str:
    """Return the application of a raw source of which bytes with this digest are there, in so many chunks."""
    return f"prefix:{digest}:{name}"


def beginning(digest: str) -> str:
    """Return the application of files that begin with bytes of this digest."""
    return f"beginning:{digest}"
