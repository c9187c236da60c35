"""New versions of a depot, and how they are cut into slices of whole versions, one for each microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from windrow.formats.raw.byte_counts import Volume
from windrow.model.commits import Commit


class Arrived(Protocol):
    """Whole depot versions for one microbatch, as the depot stores them."""

    @property
    def expected(self) -> Mapping[int, int | None]:
        """Return the versions with rows, and how many rows each added by the depot's log (None: not to be checked)."""

    def parse(self, partial: pa.Table) -> Slice:
        """Parse the chunks of a raw depot, after the `partial` rows of the ledger; a slice of messages returns itself.

        Raises ShortRead if the depot's log lists more chunks than were read.
        """


class Slice(Arrived, Protocol):
    """The messages of whole depot versions."""

    @property
    def path(self) -> str:
        """Return where the messages are: `driver` or `executors`."""

    @property
    def volume(self) -> Volume | None:
        """Return the byte counts of a raw depot, None for a depot of messages."""

    def summarise(self, latest: int) -> pa.Table:
        """Return `messages.summarise` of all its rows."""

    def streams(self) -> pa.Table | None:
        """Return the distinct `source, key` of its rows; None if only the executors know them."""

    def table(self) -> pa.Table:
        """Return all messages, with `version`, as one Arrow table."""

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return the other ledger rows that a raw depot gives, with `known`: rejects and partial rows."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Versions of a table from `begin` on: its id, and the fingerprints of their commits and of the one before.

    Those in `restored` are a RESTORE.
    """

    depot_id: str
    begin: int
    fingerprints: Mapping[int, str]
    restored: frozenset[int] = frozenset()

    @classmethod
    def of(cls, depot_id: str, begin: int, commits: Iterable[Commit]) -> Listed:
        """Return the versions of these commits of the log."""
        listed = list(commits)
        restored = frozenset(commit.version for commit in listed if commit.restores)
        return cls(depot_id, begin, {commit.version: commit.fingerprint for commit in listed}, restored)


class Arrivals(Protocol):
    """New versions of the depot, from one read of the change feed."""

    @property
    def listed(self) -> Listed:
        """Return the versions that the read covers."""

    @property
    def last(self) -> int | None:
        """Return the last version up to which all rows are here, None if that is unknown."""

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Arrived | None:
        """Return the next slice after `version`: whole versions of at most `max_messages`, or one larger version.

        With `upto`, the slice ends at this version at the latest.
        """


def next_versions(counts: Mapping[int, int | None], after: int, max_messages: int) -> list[int]:
    """Choose the versions of the next slice: whole ones, together at most `max_messages`, at least one.

    A version whose count is unknown gets a separate slice.
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
