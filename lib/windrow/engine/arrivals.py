"""New versions of a depot, and how they are cut into slices of whole versions, one for each microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

import pyarrow as pa

from windrow.formats.raw.byte_counts import Volume
from windrow.model.commits import VERSION, Commit
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from windrow.engine.conversion import Conversion, ToMessages
    from windrow.engine.raw_slices import RawSlice
    from windrow.engine.spark.raw_executors import RawExecutorsSlice


class Slice:
    """The messages of whole depot versions: `expected` are those with rows, and how many rows each added by the log.

    The number is None if it is not to be checked. `path` says where the messages are: `driver` or `executors`.
    `volume` has the byte counts of a raw depot, None for a depot of messages.
    """

    __slots__ = ()
    path: str
    expected: Mapping[int, int | None]
    volume: Volume | None

    def parse(self, partial: pa.Table) -> Slice:
        """Return itself: these are messages."""
        return self

    def summarise(self, latest: int) -> pa.Table:
        """Return `messages.summarise` of all its rows."""
        raise NotImplementedError

    def streams(self) -> pa.Table | None:
        """Return the distinct `source, key` of its rows; None if only the executors know them, or there are none."""
        return None

    def table(self) -> pa.Table:
        """Return all messages, with `version`, as one Arrow table."""
        raise NotImplementedError

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return the other ledger rows that a raw depot gives, with `known`: rejects and partial rows."""
        return []


# Whole depot versions as the depot stores them. `parse` returns the messages, for a raw depot those of its chunks after
# the `partial` rows of the ledger. It raises ShortRead if the depot's log lists more chunks than were read.
Arrived: TypeAlias = Union[Slice, "RawSlice", "RawExecutorsSlice"]


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


@dataclass(frozen=True, slots=True)
class Arrivals:
    """New versions of the depot, from one read of the change feed; `listed` are the versions that it covers.

    `counts` has how many rows each version with rows added by the log (None: unknown), and `byte_count` how many bytes.
    All rows are here up to version `last` (None: unknown).
    """

    listed: Listed
    counts: Mapping[int, int | None]
    byte_count: Mapping[int, int]
    settings: Settings
    conversion: Conversion
    last: int | None

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Arrived | None:
        """Return the next slice after `version`: whole versions of at most `max_messages`, or one larger version.

        With `upto`, the slice ends at this version at the latest.
        """
        left = {at: count for at, count in self.counts.items() if upto is None or at <= upto}
        while versions := self.conversion.next_versions(left, self.byte_count, version, max_messages):
            arrived = self._slice({at: self.counts[at] for at in versions})
            if arrived is not None:
                return arrived
            version = versions[-1]
        return None

    def _slice(self, counts: Mapping[int, int | None]) -> Arrived | None:
        """Return the slice of some versions, None if they have no new rows."""
        raise NotImplementedError

    def _filled(self, rows: pa.Table, counts: Mapping[int, int | None], to_messages: ToMessages) -> Arrived | None:
        """Return the slice of the versions with rows; one that has rows by the log stays in, whatever was read."""
        present = set(version_of(rows).unique().to_pylist())
        filled = [at for at in counts if counts[at] or at in present]
        return self.conversion.cut(rows, counts, filled, to_messages) if filled else None


def version_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the depot version of each row, message or chunk."""
    return rows[VERSION if VERSION in rows.column_names else "version"]


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
