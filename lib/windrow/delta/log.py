"""Read a table's Delta log: its identity, its latest version, and how many rows each commit added.

The log of a local table is read with delta-rs in milliseconds. On other storage only Spark may have the credentials, so
Spark reads it (`engine/spark/log.py`) in a few hundred milliseconds. Both give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from windrow.columnar.arrow import to_plain_type
from windrow.delta.table import history, latest_table, shared_snapshot, translate_read_errors
from windrow.errors import DepotUnreadableError, IncompatibleTableError, TableMissingError
from windrow.model import chunks, tables
from windrow.model.commits import BYTES, COMMIT_FIELDS, FEED, Commit, adds_only, fingerprint, note_of, rows_added
from windrow.model.payload import of_column


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A Delta table: id, latest version, columns, the type of its payloads, whether its change feed is on.

    A `raw` depot holds chunks of bytes.
    """

    id: str
    version: int
    schema: pa.Schema
    payload: pa.DataType
    has_change_feed: bool
    raw: bool = False


class Log(Protocol):
    """The log of a table, whoever reads it."""

    def table(self) -> TableInfo | None:
        """Return the table's identity and latest version, None if there is no table."""

    def latest(self) -> tuple[int, str | None] | None:
        """Return the table's latest version and the note (user metadata) of its commit, None if there is no table."""

    def bytes_added(self, after: int, last_version: int) -> dict[int, int]:
        """Return how many bytes each version of a raw depot added, as far as the log says."""

    def commits(self, since: int | None = None, last_version: int | None = None) -> list[Commit]:
        """Return the commits in the log, in order, from version `since` on, up to `last_version` or later."""

    def history(self, since: int) -> Iterable[dict[str, Any]]:
        """Return the commits from a version on, newest first, as `windrow.delta.table.history` does."""

    def notes(self) -> list[tuple[dict[str, Any], int | None]]:
        """Return the notes of the commits, and how many rows each added, oldest first; none without a table."""

    def files_added(self, first: int, last: int) -> tuple[dict[str, int], set[int]]:
        """Return the names of the files that versions added, each with its version, and which versions removed rows."""


@dataclass(frozen=True, slots=True)
class DeltaRsLog:
    """The log of a table at a path, read without a JVM."""

    location: str

    def table(self) -> TableInfo | None:
        """Return the table's identity and latest version, None when there is no table."""
        try:
            return identity(latest_table(self.location, "table"))
        except TableMissingError:
            return None

    def latest(self) -> tuple[int, str | None] | None:
        """Return the table's latest version and the note (user metadata) of its commit, None when there is no table."""
        try:
            table = latest_table(self.location, "table")
        except TableMissingError:
            return None
        version = table.version()
        with translate_read_errors(self.location, "table"):
            return version, next((entry.get("userMetadata") for entry in history(table, version)), None)

    def bytes_added(self, after: int, last_version: int) -> dict[int, int]:
        """Return how many bytes each version added: as its writer recorded, or else its file sizes.

        Versions that changed rows are left out, unless their commits say how many they added.
        """
        table = latest_table(self.location, "depot")
        with translate_read_errors(self.location, "depot"):
            return {
                int(commit["version"]): int(commit.get(BYTES, sum(add["size"] for add in commit["added"])))
                for commit in history(table, after + 1, last_version, files=True)
                # guard: changes-read-apart
                if rows_added(commit) is not None or adds_only(commit.get("operation"), commit["removed"])
            }

    def commits(self, since: int | None = None, last_version: int | None = None) -> list[Commit]:
        """Return the commits in the log, in order, from version `since` on, up to `last_version` or later."""
        snapshot, start = shared_snapshot(self.location, "depot", last_version), max(since or 0, 0)
        for forgotten in [version for version in snapshot.commits if version < start]:
            del snapshot.commits[forgotten]
        with translate_read_errors(self.location, "depot"):
            result = history(snapshot.table, start, last_version, files=bool(start), known=snapshot if start else None)
            return commits(result, lambda stamp: int(stamp) * 1_000, COMMIT_FIELDS, "log")

    def history(self, since: int) -> Iterator[dict[str, Any]]:
        """Yield the commits from a version on, newest first, as `windrow.delta.table.history` does."""
        with translate_read_errors(self.location, "depot"):
            yield from history(latest_table(self.location, "depot"), since)

    def notes(self) -> list[tuple[dict[str, Any], int | None]]:
        """Return the notes of the commits, and how many rows each added, oldest first; none without a table."""
        commits = [] if self.table() is None else list(self.history(0))
        return [(note_of(commit), rows_added(commit)) for commit in reversed(commits)]

    def files_added(self, first: int, last: int) -> tuple[dict[str, int], set[int]]:
        """Return the names of the files that versions added, each with its version, and which versions removed rows."""
        table = latest_table(self.location, "depot")
        with translate_read_errors(self.location, "depot"):
            commits = list(history(table, first, last, files=True))
        names = {
            add["path"].rsplit("/", 1)[-1]: int(commit["version"])
            for commit in commits
            for add in commit["added"]
            if add["dataChange"]
        }
        return names, {int(commit["version"]) for commit in commits if commit["removed"]}


def fingerprint_at(log: Log, version: int) -> str | None:
    """Return the fingerprint of the commit of a table's version, None if the log does not have it."""
    return next((commit.fingerprint for commit in log.commits(version, version) if commit.version == version), None)


def number_after(location: str, application: str, least: int) -> int:
    """Return the first number from `least` on that the log of a table has not recorded for a transaction id."""
    try:
        recorded = latest_table(location, "depot").transaction_version(application)
    except TableMissingError:
        return least
    return least if recorded is None else max(least, recorded + 1)


def require_ledger(location: str, columns: Iterable[str], schema: pa.Schema) -> None:
    """Raise IncompatibleTableError for a table that lacks columns of a ledger."""
    absent = [name for name in schema.names if name not in set(columns)]
    if {"id", "state", "token"} & set(absent):
        raise IncompatibleTableError(f"{location} is a Delta table, but not a ledger", "Give the path of a ledger.")
    if absent:
        raise IncompatibleTableError(
            f"the ledger at {location} has no column {absent[0]}: it was created by another version of Windrow",
            "Use the version of Windrow that wrote it, or replay the depot into a new ledger.",
        )


def identity(table: DeltaTable) -> TableInfo:
    """Return a table's identity, its version and its columns."""
    schema = pa.schema(table.schema().to_arrow())
    metadata = table.metadata()
    return TableInfo(
        str(metadata.id),
        table.version(),
        schema,
        of_column(schema),
        metadata.configuration.get(FEED) == "true",
        chunks.is_raw(schema),
    )


def ledger_schema_of(columns: pa.Schema) -> pa.Schema:
    """Return the expected columns of a ledger, given its actual ones, which tell its payload type and kind.

    For a topology they are the actual columns, because its states declare them.
    """
    if tables.is_topology_ledger(columns.names):
        return pa.schema([pa.field(field.name, to_plain_type(field.type)) for field in columns])
    return tables.ledger_schema(of_column(columns), raw=tables.reads_raw_depot(columns.names))


def count_added_rows(commits: Iterable[Commit], after: int, last_version: int) -> dict[int, int | None]:
    """Return how many rows each version after `after` up to `last_version` added; None if its commit does not say.

    Raises DepotUnreadableError if a version is no longer in the log, because skipping it would lose data.
    """
    by_version = {commit.version: commit.rows for commit in commits}
    gone = set(range(after + 1, last_version + 1)) - by_version.keys()
    # guard: version-in-log
    if gone:
        raise DepotUnreadableError(
            f"depot version {min(gone)} must be read next, but is no longer in the depot's log",
            f'A new ledger can read the remaining versions: start_from = "version:{max(gone) + 1}".',
        )
    return {version: count for version, count in by_version.items() if after < version <= last_version}


def commits(
    history: Iterable[Mapping[str, Any]], microseconds: Callable[[Any], int], notes: Sequence[str], by: str
) -> list[Commit]:
    """Return commits (`version, timestamp, operation, operationMetrics`) in order.

    The fingerprint of a commit is the name of its reader (`by`) and a digest of the fields that it read (`notes`).
    """
    commits_read = [
        Commit(
            int(entry["version"]),
            microseconds(entry["timestamp"]),
            rows_added(entry),
            fingerprint(entry, notes, by),
            entry.get("operation") == "RESTORE",
        )
        for entry in history
    ]
    return sorted(commits_read, key=lambda commit: commit.version)
