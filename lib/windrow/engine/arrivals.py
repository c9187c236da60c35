"""What a depot added, as an engine read it: cut into slices of whole versions, each for one microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from windrow.formats.raw.byte_counts import Volume
from windrow.model.commits import Commit


class Arrived(Protocol):
    """Whole depot versions, to be processed in one microbatch."""

    @property
    def expected(self) -> Mapping[int, int | None]:
        """Return the versions with rows, and how many each added by the depot's log (None: not said, or known)."""

    def formatted(self, partial: pa.Table) -> Slice:
        """Make messages of what a raw depot holds, with what is left of it in the ledger (`partial`); else itself.

        Raises ShortRead when chunks are missing that the depot's log says it has.
        """


class Slice(Arrived, Protocol):
    """The messages of whole depot versions."""

    @property
    def path(self) -> str:
        """Return where its messages are: `driver` or `executors`."""

    @property
    def volume(self) -> Volume | None:
        """Return how many bytes of a raw depot it has, None where the depot holds messages."""

    def summarise(self, latest: int) -> pa.Table:
        """Return `messages.summarise` of all its rows."""

    def streams(self) -> pa.Table | None:
        """Return `source, key` of its rows, each once; None where only the executors know."""

    def table(self) -> pa.Table:
        """Return all its messages with `version` as one Arrow table."""

    def beside(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return the ledger rows that come of a raw depot beside messages, with `known`: rejects, partial rows."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Versions of a table, from `begin` on: its id, the marks of their commits and of the one before them."""

    depot_id: str
    begin: int
    marks: Mapping[int, str]

    @classmethod
    def of(cls, depot_id: str, begin: int, commits: Iterable[Commit]) -> Listed:
        """Return what the log has of versions."""
        return cls(depot_id, begin, {commit.version: commit.mark for commit in commits})


class Arrivals(Protocol):
    """New versions of the depot as one read of the change feed gave them."""

    @property
    def listed(self) -> Listed:
        """Return the versions that the read covers."""

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Arrived | None:
        """Return the next slice after `version`: whole versions of at most `max_messages`, or one larger version.

        With `upto` nothing of what came behind this version.
        """


def next_versions(counts: Mapping[int, int | None], after: int, max_messages: int) -> list[int]:
    """Choose the versions of the next slice: whole ones, together at most `max_messages`, at least one.

    A version whose count is not known makes a slice of its own.
    """
    chosen: list[int] = []
    total = 0
    for version in sorted(version for version in counts if version > after):
        count = counts[version]
        total += max_messages if count is None else count
        # guard: version-whole
        if chosen and total > max_messages:
            break
        chosen.append(version)
    return chosen
