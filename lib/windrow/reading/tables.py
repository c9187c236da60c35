"""Open depot and ledger as Delta tables with delta-rs, check their kind, and query a ledger in DuckDB's SQL.

Inside `reading_through`, another reader opens tables that delta-rs cannot read. A query names the states of the rows
that it wants. The ledger is partitioned by state, so files of other states stay closed. Of live rows, a query sees only
those that count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.delta.log import TableInfo, identity
from windrow.delta.query import Relation, TableRows, execute, identifier
from windrow.delta.row_changes import changes
from windrow.delta.table import history, open_table
from windrow.errors import REPORT, DepotMismatchError, IncompatibleTableError, InternalError, NotFoundError
from windrow.model import tables
from windrow.model.commits import note_of
from windrow.model.payload import of_column
from windrow.model.timestamps import time_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

DAMAGED = "It was changed from outside. RESTORE it to an earlier version, or replay the depot into a new ledger."
# The messages of the open batches that have grown since their last whole version.
GROWN = """
SELECT {columns} FROM ({rows}) v LEFT JOIN (
    SELECT id, list(message ORDER BY message.event_time, message.type, revision, place) AS messages FROM (
        SELECT v.id, v.revision, unnest(v.messages) AS message, generate_subscripts(v.messages, 1) AS place
        FROM live_rows v JOIN (
            SELECT id, max(revision) AS newest, max(CASE WHEN whole THEN revision END) AS since
            FROM live_rows GROUP BY id
        ) c ON v.id = c.id AND v.revision >= c.since AND c.newest > c.since
        WHERE v.state = 'open'
    ) GROUP BY id
) j ON v.id = j.id"""
LEDGER_COLUMNS = {"id", "state", "messages_read", "token", "schema_version"}
SCHEMA_VERSIONS = "SELECT DISTINCT schema_version FROM {ledger} WHERE state = 'progress' AND id = 'progress'"
OF_VERSION = ("id", "state", "revision", tables.DELETED, tables.WHOLE)  # the columns that say which versions count
POSITION = ("depot_id", "start_from", "depot_version")


class SparkTable(Protocol):
    """The log of a table as Spark reads it; methods that it shares with a DeltaTable give the same answers."""

    def earliest(self) -> int:
        """Return the first version that is in the log."""

    def metadata(self) -> Any:
        """Return metadata with the `id` of the table, and its properties as `configuration`."""

    def history(self, since: int) -> list[dict[str, Any]]:
        """Return the commits from a version on, newest first."""


class SparkDepot(SparkTable, Protocol):
    """A depot whose changes Spark reads and maps to messages, or to raw chunks."""

    @property
    def table(self) -> TableInfo:
        """Return the depot's identity, version and columns."""

    @property
    def needs_feed(self) -> bool:
        """Tell whether only the change data feed says which version added a row."""

    def with_mappings(self, recorded: Mapping[int, str | None]) -> Self:
        """Return the depot with the mappings that the history of a ledger recorded."""

    def version(self) -> int:
        """Return the latest version."""

    def schema(self) -> Any:
        """Return the schema, with its `fields`, of the rows that `load_cdf` returns."""

    def frame(self, first: int, last: int) -> DataFrame:
        """Return the rows that versions added, with the columns of `schema`, on the executors."""

    def load_cdf(self, first: int, last: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that versions added, with the columns of a change feed."""


class TableReader(Protocol):
    """Opens depot and ledger for commands that would otherwise read them with delta-rs."""

    def ledger(self, location: str, version: int | None) -> tuple[DeltaTable, int]:
        """Return a plain table with the rows of a ledger at a version (default: the latest), and the version."""

    def ledger_rows(self, location: str, version: int) -> DataFrame:
        """Return the rows of a ledger at a version that count, on the executors."""

    def ledger_log(self) -> SparkTable:
        """Return what the log of the ledger says."""

    def version_after(self, microbatch: int) -> int:
        """Return the version of the ledger that a microbatch committed. Raises NotFoundError."""

    def depot(self, location: str) -> SparkDepot:
        """Return a depot."""


States: TypeAlias = str | tuple[str, ...]
TableLog: TypeAlias = DeltaTable | SparkTable
DepotTable: TypeAlias = DeltaTable | SparkDepot

_READER: ContextVar[TableReader | None] = ContextVar("reader", default=None)


@contextmanager
def reading_through(reader: TableReader) -> Iterator[None]:
    """Open depot and ledger with this reader inside the block."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


@dataclass(frozen=True, slots=True)
class Progress:
    """Which depot a ledger reads, from where and how far, and what else the `progress` row says.

    `rules` are those in force (JSON), or the settings of a topology. A depot not yet read by a topology has no id.
    """

    depot_id: str
    start_from: str
    depot_version: int
    schema_version: int
    microbatch: int
    paused: bool
    rules: str

    @property
    def max_delay_us(self) -> int:
        """Return the `max_delay` in force, in microseconds."""
        return int(recorded_rules(self.rules)["max_delay"])


@dataclass(frozen=True)
class Ledger:
    """One version of a ledger. `table` may be a reader's copy, which has another version and log."""

    table: DeltaTable
    location: str
    version: int

    def rows(self, states: States, columns: str, where: str = "true", rest: str = "", then: str = "true") -> pa.Table:
        """Return columns of the rows in some states; `where`, `rest` (GROUP BY, ORDER BY, LIMIT) and `then` are SQL.

        `then` is a condition on the result, such as on the elements of a list that `columns` unnests.
        """
        statement = f"SELECT {columns} FROM ledger WHERE ({where}) {rest}"  # noqa: S608 - our own SQL, as below
        if then != "true":
            statement = f"SELECT * FROM ({statement}) WHERE {then}"  # noqa: S608
        return self.query(statement, states, where)

    def pieces(self, states: States, columns: str, where: str = "true", rest: str = "") -> Iterator[pa.Table]:
        """Yield the same rows as `rows` in pieces, each read on demand, for results that may not fit in memory.

        The first piece is empty, so that there is always one.
        """
        statement = f"SELECT {columns} FROM ledger WHERE ({where}) {rest}"  # noqa: S608
        with self.connect(states, self._columns_in(statement), where) as connection:
            answer_rows = execute(connection, statement)
            yield answer_rows.schema.empty_table()
            for batch in answer_rows:
                yield pa.Table.from_batches([batch])

    def query(self, statement: str, states: States, where: str = "true") -> pa.Table:
        """Return the answer to a statement over the table `ledger`, which has the rows in some states.

        `ledger` may lack final rows that do not meet the condition `where`.
        """
        with self.connect(states, self._columns_in(statement), where) as connection:
            return execute(connection, statement).read_all()

    def connect(
        self, states: States, names: Sequence[str], where: str = "true"
    ) -> AbstractContextManager[DuckDBPyConnection]:
        """Return a context with a connection to the view `ledger`: named columns of the rows in some states.

        The view may lack final rows that do not meet the condition `where`. Raises TableUnreadableError, and
        TableUnwritableError where neither memory nor disk has room.
        """
        chosen = {states} if isinstance(states, str) else {*states}
        final, live = chosen.intersection(tables.FINAL), chosen.difference(tables.FINAL)
        relations, views = {}, list[str]()
        if final or not live:
            relations["final_rows"] = Relation(final, names, where)
            views.append(_select_list(names, "final_rows"))
        if live:
            relations["live_rows"] = Relation(live, {*names, *OF_VERSION})
            views.append(self._live(names, tables.OPEN in live))
        return self.all_rows.connect(relations, {"ledger": " UNION ALL ".join(views)})

    def _columns_in(self, statement: str) -> list[str]:
        """Return the columns that an SQL statement over the table `ledger` names; all of them for `*`."""
        words = {"id", "state", *re.findall(r"\w+", re.sub(r"\bAS \w+", "", statement))}
        return [name for name in self.names if name in words or "SELECT * FROM ledger" in statement]

    def _live(self, names: Collection[str], has_open: bool) -> str:
        """Return the query for the live rows that count, open batches with the messages of all their versions."""
        latest = tables.live_rows("live_rows", "true")
        if not has_open or "messages" not in names:
            return _select_list(names, f"({latest})")
        joined = {"messages": "coalesce(j.messages, v.messages)", tables.WHOLE: "(v.whole OR j.id IS NOT NULL)"}
        columns = ", ".join(f"{joined.get(name, f'v.{identifier(name)}')} AS {identifier(name)}" for name in names)
        return GROWN.format(rows=latest, columns=columns)

    @cached_property
    def all_rows(self) -> TableRows:
        """Return all rows of the version, including those that do not count."""
        return TableRows(self.table, self.location, "ledger")

    @cached_property
    def names(self) -> list[str]:
        """Return the names of its columns."""
        return [field.name for field in self.table.schema().fields]

    @property
    def raw(self) -> bool:
        """Tell whether its depot is a raw depot."""
        return tables.reads_raw_depot(self.names)

    @property
    def payload(self) -> pa.DataType:
        """Return the type of payloads."""
        return of_column(pa.schema(self.table.schema().to_arrow()))

    @property
    def of_topology(self) -> bool:
        """Tell whether this is the table of states of a topology."""
        return tables.is_topology_ledger(self.names)

    def progress(self, depot: str | None = None) -> Progress:
        """Return the progress in a batcher's depot, or in a `depot` of a topology.

        Raises IncompatibleTableError unless there is exactly one progress row.
        """
        columns = list(Progress.__dataclass_fields__)
        rows = self.rows("progress", ", ".join(columns), f"id = {quote_text(tables.PROGRESS)}").to_pylist()
        if len(rows) != 1:
            raise IncompatibleTableError(f"the ledger has {len(rows)} progress rows instead of one", DAMAGED)
        if depot is not None:
            of_depot = f"depot = {quote_text(depot)} AND source IS NULL"
            own = self.rows("progress", ", ".join(POSITION), of_depot).to_pylist()
            rows[0] |= own[0] if own else {"depot_id": "", "start_from": "", "depot_version": -1}
        if None in rows[0].values():
            empty = ", ".join(name for name, value in rows[0].items() if value is None)
            raise IncompatibleTableError(f"the progress row of the ledger has no {empty}", DAMAGED)
        return Progress(**rows[0])

    def of_known_schema(self) -> Self:
        """Return this ledger.

        Raises IncompatibleTableError if it has another schema version, whatever its other columns are.
        """
        progress = Relation([tables.PROGRESS], ["id", "state", "schema_version"])
        with self.all_rows.connect({"progress": progress}, {}) as connection:
            require_known_schema(execute(connection, SCHEMA_VERSIONS.format(ledger="progress")).read_all())
        return self


def require_known_schema(rows: pa.Table) -> None:
    """Raise IncompatibleTableError if the answer to `SCHEMA_VERSIONS` has a schema version other than this one."""
    for version in rows["schema_version"].to_pylist():
        if version not in (None, tables.SCHEMA_VERSION):
            raise IncompatibleTableError(
                f"the ledger has schema version {version}, but this Windrow reads {tables.SCHEMA_VERSION}",
                "Use the version of Windrow that wrote it, or replay the depot into a new ledger.",
            )


def _select_list(names: Collection[str], rows: str) -> str:
    return f"SELECT {', '.join(map(identifier, names))} FROM {rows}"  # noqa: S608 - all names are quoted


def open_ledger(location: str, version: int | None = None, of_topology: bool = False) -> Ledger:
    """Open a ledger, of a batcher or `of_topology`, at a version (default: the latest).

    The latest version must have this schema version; the files that say so may be missing in an earlier one. Raises
    TableMissingError, IncompatibleTableError or NotFoundError.
    """
    reader = _READER.get()
    table, copied = (open_table(location, "ledger"), None) if reader is None else reader.ledger(location, version)
    names = {field.name for field in table.schema().fields}
    is_ledger = "state" in table.metadata().partition_columns and names >= LEDGER_COLUMNS
    if not is_ledger or tables.is_topology_ledger(names) != of_topology:
        expected = "a table of states" if of_topology else "a ledger"
        raise IncompatibleTableError(
            f"{location} is a Delta table, but not {expected}", f"Give the path of {expected}."
        )
    latest = table.version() if copied is None else copied
    if copied is not None or version is None:
        return Ledger(table, location, latest).of_known_schema()
    unreadable = NotFoundError(
        f"ledger version {version} cannot be read", f"The latest is {latest}; `windrow status` shows the earliest."
    )
    if not 0 <= version <= latest:
        raise unreadable
    try:
        table.load_as_version(version)
    except DeltaError as error:
        raise unreadable from error
    return Ledger(table, location, version)


def ledger_log(ledger: Ledger) -> TableLog:
    """Return the log of a ledger."""
    reader = _READER.get()
    return ledger.table if reader is None else reader.ledger_log()


def versions_after(ledger: Ledger, microbatch: int) -> Iterator[int]:
    """Yield the ledger versions whose commits noted a microbatch, newest first; with Spark, the one it committed.

    A restored ledger may have several; a ledger whose log was cleaned up may have none.
    """
    reader = _READER.get()
    if reader is not None:
        with suppress(NotFoundError):
            yield reader.version_after(microbatch)
        return
    for commit in history(ledger.table):
        if note_of(commit).get("microbatch") == microbatch:
            yield int(commit["version"])


def ledger_frame(ledger: Ledger) -> DataFrame:
    """Return the rows of a ledger that count, on Spark's executors, if Spark reads the ledger."""
    reader = _READER.get()
    if reader is None:
        raise InternalError("Spark reads the ledger", REPORT)
    return reader.ledger_rows(ledger.location, ledger.version)


def depot_table(location: str) -> DepotTable:
    """Open a depot. Raises TableMissingError."""
    reader = _READER.get()
    return open_table(location, "depot") if reader is None else reader.depot(location)


def changes_of(
    depot: DepotTable,
    first: int,
    last: int | None = None,
    columns: Sequence[str] | None = None,
    skip_unknown: bool = False,
) -> pa.RecordBatchReader:
    """Return what changed in versions of a depot (None: to the latest), as `windrow.delta.row_changes.changes` does."""
    if isinstance(depot, DeltaTable):
        return changes(depot, first, last, columns, skip_unknown=skip_unknown)
    return pa.RecordBatchReader.from_stream(depot.load_cdf(first, last, columns))


def open_depot(location: str, ledger: Ledger, progress: Progress) -> DepotTable:
    """Open the depot of a ledger.

    Raises TableMissingError, or DepotMismatchError for a depot that the ledger does not read.
    """
    depot = depot_table(location)
    depot_id = str(depot.metadata().id)
    if progress.depot_id not in (depot_id, ""):
        raise DepotMismatchError(
            f"the ledger {ledger.location} belongs to depot {progress.depot_id}, but {location} is {depot_id}",
            "Name the depot that the ledger reads (--depot), or the ledger of this depot (--ledger).",
        )
    return depot


def column_names(depot: DepotTable) -> set[str]:
    """Return the column names of a depot's table, before any mapping."""
    table = identity(depot) if isinstance(depot, DeltaTable) else depot.table
    return set(table.schema.names)


def skipped_versions(ledger: Ledger, depot: str | None = None) -> tuple[int, ...]:
    """Return the depot versions that `windrow run --skip-version` skipped without reading them."""
    where = f"kind = 'skip' AND {equal({'depot': depot})}"
    rows = ledger.rows("microbatch", "depot_version", where, "ORDER BY depot_version")
    return tuple(rows["depot_version"].to_pylist())


def recorded_rules(rules: str | None) -> dict[str, Any]:
    """Return the rules that a ledger recorded, with durations in microseconds.

    Raises IncompatibleTableError if they are not valid.
    """
    try:
        recorded = json.loads(rules or "")
        durations = {name: int(recorded[name]) for name in ("window", "max_delay", "max_lead")}
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleTableError(f"the ledger recorded rules that are not valid: {rules}", DAMAGED) from error
    return {**recorded, **durations}


def overlap_condition(first: str, last: str, start: int | None, end: int | None) -> str:
    """Return the SQL condition that the time from one column to another, both included, overlaps [start, end)."""
    bounds = ((first, "<", end), (last, ">=", start))
    conditions = [f"{name} {compare} {time_literal(bound)}" for name, compare, bound in bounds if bound is not None]
    return f"({' AND '.join(conditions) or 'true'})"


def time_literal(microseconds: int) -> str:
    """Return a time as an SQL literal, one that delta-rs also understands if ISO 8601 can express the time."""
    text = time_text(microseconds)
    return quote_text(text) if text.endswith("Z") else f"make_timestamptz({microseconds:d})"


def equal(columns: Mapping[str, str | None]) -> str:
    """Return the SQL condition that columns have the given values; None means any value."""
    conditions = [f"{name} = {quote_text(value)}" for name, value in columns.items() if value is not None]
    return " AND ".join(conditions) or "true"


def quote_text(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
