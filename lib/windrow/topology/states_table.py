"""The table of states of a topology, at one version: read with delta-rs at a path, otherwise with Spark."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from windrow.columnar.arrow import to_plain_types
from windrow.delta.locations import is_catalog_name, reference
from windrow.delta.log import ledger_schema_of
from windrow.delta.table import history, open_table, read_filtered, table_files, translate_read_errors
from windrow.errors import NotFoundError
from windrow.model.commits import note_of
from windrow.model.id_filter import IdFilter
from windrow.model.tables import PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windrow.engine.spark.engine import SparkEngine
    from windrow.ledger import Ledger

ROWS_AT_ONCE = 32_768
HINT = "`windrow status --history 20` lists the microbatches; the setting retention says how far back the log reaches."


class StatesTable(Protocol):
    """The rows of a table of states."""

    @property
    def schema(self) -> pa.Schema:
        """Return its columns."""

    def rows(
        self, states: Collection[str], columns: Collection[str] | None = None, under: IdFilter | None = None
    ) -> pa.Table:
        """Return rows of some states, in those `columns` that exist.

        Beside the rows `under` some ids it may return others.
        """

    def pieces(self, state: str, columns: Collection[str]) -> Iterator[pa.Table]:
        """Yield all rows of a state in pieces, at least one, in those `columns` that exist."""
        yield self.rows([state], columns)


@dataclass(frozen=True, slots=True)
class DeltaRsStates(StatesTable):
    """Rows that delta-rs reads."""

    table: DeltaTable

    @property
    def schema(self) -> pa.Schema:
        """Return its columns."""
        return ledger_schema_of(pa.schema(self.table.schema().to_arrow()))

    def rows(
        self, states: Collection[str], columns: Collection[str] | None = None, under: IdFilter | None = None
    ) -> pa.Table:
        """Return them."""
        own: tuple[str, str, Any] = ("state", "in", list(states))
        spans = [[]] if under is None else _conditions(under)
        there = pa.schema(self.table.schema().to_arrow()).names
        names = None if columns is None else [name for name in columns if name in there]
        with translate_read_errors(self.table.table_uri, "ledger"):
            return to_plain_types(read_filtered(self.table, [[own, *span] for span in spans], names))

    def pieces(self, state: str, columns: Collection[str]) -> Iterator[pa.Table]:
        """Yield them file by file, at most ROWS_AT_ONCE rows at a time."""
        dataset = self.table.to_pyarrow_dataset(filesystem=table_files(self.table.table_uri, self.table))
        names = [name for name in columns if name in dataset.schema.names]
        yield to_plain_types(dataset.schema.empty_table().select(names))
        with translate_read_errors(self.table.table_uri, "ledger"):
            for file in dataset.get_fragments(ds.field("state") == state):
                rows = file.scanner(dataset.schema, columns=names, batch_size=ROWS_AT_ONCE, batch_readahead=1)
                yield from (to_plain_types(pa.Table.from_batches([batch])) for batch in rows.to_batches())


def _conditions(under: IdFilter) -> list[list[tuple[str, str, Any]]]:
    """Return filters; a row under the ids passes one of them."""
    if under.components is None:
        return [[("id", "in", under.ids.to_pylist() or [""])]]  # Arrow knows no type of an empty list
    return [[("id", ">=", first), ("id", "<", stop)] for first, stop in under.spans()]


@dataclass(frozen=True, slots=True)
class SparkStates(StatesTable):
    """Rows that Spark reads, at a version or as they are."""

    session: SparkSession
    location: str
    version: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return its columns."""
        from windrow.rows.frame import schema_of

        return ledger_schema_of(schema_of(self._frame()))

    def _frame(self) -> DataFrame:
        at = "" if self.version is None else f" VERSION AS OF {self.version:d}"
        return self.session.sql(f"SELECT * FROM {reference(self.location)}{at}")  # noqa: S608 - a quoted name

    def rows(
        self, states: Collection[str], columns: Collection[str] | None = None, under: IdFilter | None = None
    ) -> pa.Table:
        """Return them."""
        from pyspark.sql import functions as F

        from windrow.ledger.open_batches import matching

        frame = self._frame()
        names = frame.columns if columns is None else [name for name in columns if name in frame.columns]
        frame = frame.where(F.col("state").isin(list(states)))
        if under is not None:
            frame = matching(frame, under)
        return to_plain_types(frame.select(names).toArrow())

    def version_after(self, microbatch: int) -> int:
        """Return the version that a microbatch committed, the last one if the table was restored since.

        If a session accepts no settings, commits have no note; then the progress rows tell. Raises NotFoundError.
        """
        query = f"DESCRIBE HISTORY {reference(self.location)}"
        commits = [row.asDict() for row in self.session.sql(query).collect()]
        noted = _find_note(commits, microbatch)
        stop = commits[0]["version"] + 1
        for commit in commits:
            if noted is None and (commit["operation"] == "RESTORE" or commit is commits[-1]):
                noted = self._find_recorded(microbatch, range(commit["version"], stop))
                stop = commit["version"]
        return _require_version(noted, microbatch)

    def _find_recorded(self, microbatch: int, versions: range) -> int | None:
        """Return the first of versions, none of which restored an earlier one, that has a microbatch and no later one.

        The first version may be a RESTORE, and so have an earlier microbatch.
        """

        def reached(version: int) -> int:
            progress = SparkStates(self.session, self.location, version).rows(["progress"], ["id", "microbatch"])
            return int(pc.max(progress.filter(pc.equal(progress["id"], PROGRESS))["microbatch"]).as_py())

        at = bisect_left(versions, microbatch, key=reached)
        is_new = at > 0 or versions[0] == 0
        return versions[at] if at < len(versions) and is_new and reached(versions[at]) == microbatch else None


def states_table(location: str, at: int | None = None, session: SparkSession | None = None) -> StatesTable:
    """Return the table of states as it is, or as it was after a microbatch; 0 is the new table.

    Spark reads a table in a catalog. Raises NotFoundError, TableMissingError.
    """
    if is_catalog_name(location):
        from windrow.engine.spark.session import find_session

        states = SparkStates(session or find_session(location, location), location)
        return states if at is None else SparkStates(states.session, location, states.version_after(at))
    table = open_table(location, "ledger")
    if at is None:
        return DeltaRsStates(table)
    with translate_read_errors(location, "ledger"):
        version = _require_version(_find_note(history(table), at), at)
        return DeltaRsStates(DeltaTable(location, version=version))


def states_of(ledger: Ledger, at: int | None = None) -> StatesTable:
    """Return a ledger as a table of states, read with delta-rs if possible."""
    path = ledger.path
    if path is not None:
        return states_table(path, at)
    return states_table(ledger.place, at, cast("SparkEngine", ledger.engine).session)


def _find_note(commits: Iterable[Mapping[str, Any]], microbatch: int) -> int | None:
    """Return the version of the commit that notes a microbatch."""
    versions = (int(commit["version"]) for commit in commits if note_of(commit).get("microbatch") == microbatch)
    return 0 if microbatch == 0 else max(versions, default=None)


def _require_version(version: int | None, microbatch: int) -> int:
    if version is None:
        raise NotFoundError(f"the log of the states has no commit of microbatch {microbatch}", HINT)
    return version
