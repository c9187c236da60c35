"""Open depot and ledger as Delta tables with delta-rs, check what they are, and query them in SQL.

Inside `reading_through`, another reader opens them, for tables that delta-rs cannot read. A query names the states of
the rows it wants. The ledger is partitioned by state, so files of other states stay closed. Of live rows it gets those
that count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from windrow.delta.log import identity
from windrow.delta.row_changes import changes
from windrow.delta.table import open_table, reading
from windrow.errors import NotFound, OtherDepot, TableRefused
from windrow.model import tables
from windrow.model.payload import of_column

DAMAGED = "Something else changed it. RESTORE it to an earlier version, or replay the depot into a new ledger."
OF_MESSAGES = re.compile(r"\bmessages\b|SELECT \*")  # another statement asks for no messages of batches
BATCHES_AT_ONCE = 1024  # with their messages, which may be hundreds each: less than DataFusion's 8192 rows
GROWN = """
SELECT * FROM {ledger} WHERE NOT ({live})
UNION ALL SELECT {columns} FROM ({rows}) v LEFT JOIN (
    SELECT id, array_agg(message ORDER BY message['event_time'], message['type'], revision, place) AS messages FROM (
        SELECT v.id, v.revision, unnest(v.messages) AS message,
            unnest(range(1, CAST(cardinality(v.messages) AS BIGINT) + 1)) AS place
        FROM {ledger} v JOIN (
            SELECT id, max(revision) AS newest, max(CASE WHEN whole THEN revision END) AS since
            FROM {ledger} WHERE {open} GROUP BY id
        ) c ON v.id = c.id AND v.revision >= c.since AND c.newest > c.since
        WHERE v.{open} AND cardinality(v.messages) > 0
    ) GROUP BY id
) j ON v.id = j.id"""
LEDGER_COLUMNS = {"id", "state", "messages_read", "token", "schema_version"}
SCHEMA_VERSIONS = "SELECT DISTINCT schema_version FROM {ledger} WHERE state = 'progress' AND id = 'progress'"
POSITION = ("depot_id", "start_from", "depot_version")


class SparkTable(Protocol):
    """What the log of a table says, as Spark reads it; what it shares with a DeltaTable gives the same answers."""

    def earliest(self) -> int:
        """Return the first version that is in the log."""

    def metadata(self) -> Any:
        """Return the `id` of the table, and its properties as `configuration`."""

    def history(self, since: int) -> list[dict[str, Any]]:
        """Return the commits from a version on, newest first."""


class SparkDepot(SparkTable, Protocol):
    """A depot whose changes Spark reads and maps to messages, or to raw chunks."""

    def mapped_as(self, recorded: Mapping[int, str | None]) -> Self:
        """Return the depot with the mappings that the history of a ledger recorded."""

    @property
    def names(self) -> list[str]:
        """Return the names of the columns of the table, before they are mapped."""

    def version(self) -> int:
        """Return the latest version."""

    def schema(self) -> Any:
        """Return the `fields` of the rows that `load_cdf` gives."""

    def load_cdf(self, first: int, last: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that versions added, with the columns of a change feed."""


class TableReader(Protocol):
    """Opens depot and ledger for commands that otherwise read them with delta-rs."""

    def ledger(self, location: str, version: int | None) -> tuple[DeltaTable, int]:
        """Return a plain table with the rows of a ledger at a version (default: the latest), and the version."""

    def ledger_log(self) -> SparkTable:
        """Return what the log of the ledger says."""

    def depot(self, location: str) -> SparkDepot:
        """Return a depot."""


TableLog: TypeAlias = DeltaTable | SparkTable
DepotTable: TypeAlias = DeltaTable | SparkDepot

_READER: ContextVar[TableReader | None] = ContextVar("reader", default=None)


@contextmanager
def reading_through(reader: TableReader) -> Iterator[None]:
    """Open depot and ledger with this reader while the block runs."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


@dataclass(frozen=True, slots=True)
class Progress:
    """Which depot a ledger reads, from where and how far, and what the `progress` row says besides.

    `rules` are those in force (JSON), of a topology its settings. A depot that a topology has not read yet has no id.
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


@dataclass(frozen=True, slots=True)
class Ledger:
    """One version of a ledger. A reader may give a copy as `table`, which has another version and log."""

    table: DeltaTable
    location: str
    version: int

    def rows(
        self, states: str | tuple[str, ...], columns: str, where: str = "true", rest: str = "", then: str = "true"
    ) -> pa.Table:
        """Return columns of the rows in some states; `where`, `rest` (GROUP BY, ORDER BY, LIMIT) and `then` are SQL.

        `then` is a condition on the result, such as on the elements of a list that `columns` unnests.
        """
        with reading(self.location, "ledger"):
            return self._stream(states, columns, where, rest, then).read_all()

    def pieces(
        self, states: str | tuple[str, ...], columns: str, where: str = "true", rest: str = ""
    ) -> Iterator[pa.Table]:
        """Yield the same rows piece by piece, each read on demand; the first piece is empty, and has the columns."""
        with reading(self.location, "ledger"):
            stream = self._stream(states, columns, where, rest)
            yield stream.schema.empty_table()
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def ask(self, statement: str) -> pa.Table:
        """Return the answer to a statement over the table `ledger`."""
        with reading(self.location, "ledger"):
            return self._execute(statement).read_all()

    def everything(self, without: str) -> pa.RecordBatchReader:
        """Return a reader over the rows of all states, without one column; it reads piece by piece on demand."""
        return self._execute(f"SELECT * EXCEPT ({without}) FROM ledger")  # noqa: S608 - a column that we name

    def _stream(
        self, states: str | tuple[str, ...], columns: str, where: str, rest: str = "", then: str = "true"
    ) -> pa.RecordBatchReader:
        wanted = (states,) if isinstance(states, str) else states
        among = ", ".join(quoted(state) for state in wanted)
        statement = ["SELECT", columns, "FROM ledger WHERE state IN (", among, ") AND (", where, ")", rest]
        if then != "true":
            statement = ["SELECT * FROM (", *statement, ") WHERE", then]
        return self._execute(" ".join(statement))

    def _execute(self, statement: str) -> pa.RecordBatchReader:
        query = QueryBuilder().register("versions", self.table)
        names = [field.name for field in self.table.schema().fields]
        view = tables.rows_that_count("versions")
        if "messages" in names and OF_MESSAGES.search(statement):
            view = grown_rows("versions", names)
            query.execute(f"SET datafusion.execution.batch_size = {BATCHES_AT_ONCE}").read_all()
        query.execute(f"CREATE VIEW ledger AS {view}").read_all()
        return pa.RecordBatchReader.from_stream(query.execute(statement))

    @property
    def raw(self) -> bool:
        """Tell whether its depot is a raw depot."""
        return tables.is_over_raw(field.name for field in self.table.schema().fields)

    @property
    def payload(self) -> pa.DataType:
        """Return the type of payloads."""
        return of_column(pa.schema(self.table.schema().to_arrow()))

    @property
    def of_topology(self) -> bool:
        """Tell whether it is the table of states of a topology."""
        return tables.is_of_topology(field.name for field in self.table.schema().fields)

    def progress(self, depot: str | None = None) -> Progress:
        """Return the progress in the depot of a batcher, or in a `depot` of a topology.

        Raises TableRefused unless there is exactly one progress row.
        """
        columns = list(Progress.__dataclass_fields__)
        found = self.rows("progress", ", ".join(columns), f"id = {quoted(tables.PROGRESS)}").to_pylist()
        if len(found) != 1:
            raise TableRefused(f"the ledger has {len(found)} progress rows instead of one", DAMAGED)
        if depot is not None:
            own = self.rows("progress", ", ".join(POSITION), f"depot = {quoted(depot)} AND source IS NULL").to_pylist()
            found[0] |= own[0] if own else {"depot_id": "", "start_from": "", "depot_version": -1}
        if None in found[0].values():
            empty = ", ".join(name for name, value in found[0].items() if value is None)
            raise TableRefused(f"the progress row of the ledger has no {empty}", DAMAGED)
        return Progress(**found[0])

    def of_known_schema(self) -> Self:
        """Return this ledger. Raises TableRefused for one of another schema version, whatever its other columns are."""
        with reading(self.location, "ledger"):
            query = QueryBuilder().register("ledger", self.table).execute(SCHEMA_VERSIONS.format(ledger="ledger"))
            require_known_schema(pa.RecordBatchReader.from_stream(query).read_all())
        return self


def require_known_schema(found: pa.Table) -> None:
    """Raise TableRefused if the answer to `SCHEMA_VERSIONS` has another schema version than this one."""
    for version in found["schema_version"].to_pylist():
        if version not in (None, tables.SCHEMA_VERSION):
            raise TableRefused(
                f"the ledger has schema version {version}, this Windrow knows {tables.SCHEMA_VERSION}",
                "Use the Windrow that wrote it, or replay the depot into a new ledger.",
            )


def grown_rows(ledger: str, names: Sequence[str]) -> str:
    """Return DataFusion's query for the rows that count, open batches with the messages of all their versions.

    `names` are the columns of the table. Only batches that have grown since their last whole version are put together.
    """
    own = 'v."{}"'
    joined = {"messages": "coalesce(j.messages, v.messages)", tables.WHOLE: "(v.whole OR j.id IS NOT NULL)"}
    columns = ", ".join(f'{joined.get(name, own.format(name))} AS "{name}"' for name in names)
    return GROWN.format(
        ledger=ledger,
        live=tables.ARE_LIVE,
        rows=tables.live_rows(ledger),
        columns=columns,
        open=f"state = '{tables.OPEN}'",
    )


def open_ledger(location: str, version: int | None = None, of_topology: bool = False) -> Ledger:
    """Open a ledger, of a batcher or `of_topology`, at a version (default: the latest).

    The latest version must be of this schema version; an earlier one may lack the files that say so. Raises
    TableMissing, TableRefused or NotFound.
    """
    reader = _READER.get()
    table, copied = (open_table(location, "ledger"), None) if reader is None else reader.ledger(location, version)
    names = {field.name for field in table.schema().fields}
    is_ledger = "state" in table.metadata().partition_columns and names >= LEDGER_COLUMNS
    if not is_ledger or tables.is_of_topology(names) != of_topology:
        wanted = "a table of states" if of_topology else "a ledger"
        raise TableRefused(f"{location} is a Delta table, but not {wanted}", f"Give the path of {wanted}.")
    if copied is not None:
        return Ledger(table, location, copied).of_known_schema()
    if version is None:
        return Ledger(table, location, table.version()).of_known_schema()
    latest = table.version()
    unreadable = NotFound(
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
    """Return what the log of a ledger says."""
    reader = _READER.get()
    return ledger.table if reader is None else reader.ledger_log()


def depot_table(location: str) -> DepotTable:
    """Open a depot. Raises TableMissing."""
    reader = _READER.get()
    return open_table(location, "depot") if reader is None else reader.depot(location)


def changes_of(
    depot: DepotTable,
    first: int,
    last: int | None = None,
    columns: Sequence[str] | None = None,
    skip_unknown: bool = False,
) -> pa.RecordBatchReader:
    """Return what versions of a depot changed (None: up to the latest), as `windrow.delta.row_changes.changes` does."""
    if isinstance(depot, DeltaTable):
        return changes(depot, first, last, columns, skip_unknown=skip_unknown)
    return pa.RecordBatchReader.from_stream(depot.load_cdf(first, last, columns))


def open_depot(location: str, ledger: Ledger, progress: Progress) -> DepotTable:
    """Open the depot of a ledger. Raises TableMissing, or OtherDepot for a depot that the ledger does not read."""
    depot = depot_table(location)
    found = str(depot.metadata().id)
    if progress.depot_id not in (found, ""):
        raise OtherDepot(
            f"the ledger {ledger.location} belongs to depot {progress.depot_id}, {location} is {found}",
            "Name the depot that the ledger was made from (--depot), or the ledger of this depot (--ledger).",
        )
    return depot


def column_names(depot: DepotTable) -> set[str]:
    """Return the names of the columns of the table of a depot, before they are mapped."""
    return set(identity(depot).schema.names if isinstance(depot, DeltaTable) else depot.names)


def accepted_versions(ledger: Ledger, depot: str | None = None) -> tuple[int, ...]:
    """Return the depot versions that `windrow run --accept` went past without reading them."""
    where = f"kind = 'accept' AND {equal({'depot': depot})}"
    rows = ledger.rows("microbatch", "depot_version", where, "ORDER BY depot_version")
    return tuple(rows["depot_version"].to_pylist())


def recorded_rules(rules: str | None) -> dict[str, Any]:
    """Return the rules that a ledger recorded, durations in microseconds. Raises TableRefused if they are not valid."""
    try:
        found = json.loads(rules or "")
        durations = {name: int(found[name]) for name in ("window", "max_delay", "max_leap")}
    except (ValueError, KeyError, TypeError) as error:
        raise TableRefused(f"the ledger recorded rules that are not valid: {rules}", DAMAGED) from error
    return {**found, **durations}


def within(first: str, last: str, begin: int | None, end: int | None) -> str:
    """Return the SQL condition that the time from one column to another, both included, overlaps [begin, end)."""
    bounds = ((first, "<", end), (last, ">=", begin))
    conditions = [f"CAST({name} AS BIGINT) {compare} {bound:d}" for name, compare, bound in bounds if bound is not None]
    return f"({' AND '.join(conditions) or 'true'})"


def equal(columns: Mapping[str, str | None]) -> str:
    """Return the SQL condition that columns have the given values; None: any value."""
    return " AND ".join(f"{name} = {quoted(value)}" for name, value in columns.items() if value is not None) or "true"


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
