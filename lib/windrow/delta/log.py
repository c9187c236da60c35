"""What Delta's own log says of a table: its identity, latest version, and how many rows each commit added.

A local table's log is read with delta-rs, in milliseconds; elsewhere, where only Spark may have the credentials, Spark
is asked (`engine/spark_log.py`), which takes a few hundred. Both give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from windrow.columnar.arrow import plain_type
from windrow.delta.table import history, latest_table, reading
from windrow.errors import DepotUnreadable, TableMissing, TableRefused
from windrow.model import chunks, tables
from windrow.model.commits import BYTES, FEED, SAID, Commit, fingerprint, rows_added


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table: identity, latest version, columns, the type its payload has as a message, its change feed.

    A `raw` depot holds chunks of bytes.
    """

    id: str
    version: int
    schema: pa.Schema
    payload: pa.DataType
    feed: bool
    raw: bool = False


class Log(Protocol):
    """The log of one table."""

    def table(self) -> Table | None:
        """Return the table's identity and latest version, None when there is no table."""

    def latest(self) -> tuple[int, str | None] | None:
        """Return the table's latest version and the note (user metadata) of its commit, None when there is no table."""

    def bytes_added(self, after: int, upto: int) -> dict[int, int]:
        """Return for versions of a raw depot how many bytes of chunks each added, where that can be told."""

    def commits(self, since: int | None = None, upto: int | None = None) -> list[Commit]:
        """Return what the log says of its commits in order, from version `since` on, up to `upto` or later."""


@dataclass(frozen=True, slots=True)
class DeltaRsLog:
    """The log of a table at a path, read without a JVM."""

    location: str

    def table(self) -> Table | None:
        """Return the table's identity and latest version, None when there is no table."""
        try:
            return identity(latest_table(self.location, "table"))
        except TableMissing:
            return None

    def latest(self) -> tuple[int, str | None] | None:
        """Return the table's latest version and the note (user metadata) of its commit, None when there is no table."""
        try:
            table = latest_table(self.location, "table")
        except TableMissing:
            return None
        version = table.version()
        with reading(self.location, "table"):
            return version, next((one.get("userMetadata") for one in history(table, version)), None)

    def bytes_added(self, after: int, upto: int) -> dict[int, int]:
        """Return for versions of a raw depot how many bytes each added: as its writer says, or as its files have."""
        table = latest_table(self.location, "depot")
        with reading(self.location, "depot"):
            return {
                int(commit["version"]): int(commit.get(BYTES, sum(add["size"] for add in commit["added"])))
                for commit in history(table, after + 1, upto, files=True)
            }

    def commits(self, since: int | None = None, upto: int | None = None) -> list[Commit]:
        """Return what the log says of its commits in order, from version `since` on, up to `upto` or later."""
        table = latest_table(self.location, "depot")
        with reading(self.location, "depot"):
            return commits(history(table, max(since or 0, 0), upto), lambda stamp: int(stamp) * 1_000, SAID, "log")


def require_ledger(location: str, columns: Iterable[str], schema: pa.Schema) -> None:
    """Raise TableRefused for a table without the columns of a ledger, all or some."""
    absent = [name for name in schema.names if name not in set(columns)]
    if {"id", "state", "token"} & set(absent):
        raise TableRefused(f"{location} is a Delta table, but no ledger", "Give the path of a ledger.")
    if absent:
        raise TableRefused(
            f"the ledger at {location} has no column {absent[0]}: it was made by another version of Windrow",
            "Use the Windrow that wrote it, or replay the depot into a new ledger.",
        )


def identity(table: DeltaTable) -> Table:
    """Return a table's identity, its version and its columns."""
    schema = pa.schema(table.schema().to_arrow())
    metadata = table.metadata()
    return Table(
        str(metadata.id),
        table.version(),
        schema,
        payload_type(schema),
        metadata.configuration.get(FEED) == "true",
        chunks.is_raw(schema),
    )


def ledger_schema_of(columns: pa.Schema) -> pa.Schema:
    """Return the columns that a ledger with some of them must have: its payload's type, and those of a raw one.

    Those of a topology are what its states declare.
    """
    if tables.is_of_topology(columns.names):
        return pa.schema([pa.field(field.name, plain_type(field.type)) for field in columns])
    return tables.ledger_schema(payload_type(columns), raw=tables.is_over_raw(columns.names))


def payload_type(schema: pa.Schema) -> pa.DataType:
    """Return the payload's type as a message has it: binary where the table says so, else text of what there is."""
    binary = "payload" in schema.names and plain_type(schema.field("payload").type) == pa.binary()
    return pa.binary() if binary else pa.string()


def added(commits: Iterable[Commit], after: int, upto: int) -> dict[int, int | None]:
    """Return for the versions after `after` up to `upto` how many rows each added; None where it does not say.

    Raises DepotUnreadable when one of these versions is not in the log any more: to pass it over would lose data.
    """
    by_version = {commit.version: commit.rows for commit in commits}
    gone = set(range(after + 1, upto + 1)) - by_version.keys()
    # guard: version-in-log
    if gone:
        raise DepotUnreadable(
            f"depot version {min(gone)} must be read next, and is no longer in the depot's log",
            f'What is left can go into a new ledger: start_from = "version:{max(gone) + 1}".',
        )
    return {version: count for version, count in by_version.items() if after < version <= upto}


def commits(
    history: Iterable[Mapping[str, Any]], microseconds: Callable[[Any], int], said: Sequence[str], by: str
) -> list[Commit]:
    """Return commits (`version, timestamp, operation, operationMetrics`) in order.

    A commit's mark begins with the reader that found it (`by`) and is a digest of what that reader was told (`said`).
    """
    found = [
        Commit(int(one["version"]), microseconds(one["timestamp"]), rows_added(one), fingerprint(one, said, by))
        for one in history
    ]
    return sorted(found, key=lambda commit: commit.version)
