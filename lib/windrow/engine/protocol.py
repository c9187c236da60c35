"""What a microbatch needs from an engine. Both engines write the same ledger; neither decides anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import from_numpy, text, texts
from windrow.delta.log import Table
from windrow.delta.maintenance import Compacted
from windrow.engine.arrivals import Arrivals
from windrow.expressions import Mapping as ColumnMapping
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.commits import Commit
from windrow.model.floors import Floors
from windrow.model.messages import microseconds
from windrow.model.open_batches import OpenBatches
from windrow.model.soundness import require_batches
from windrow.model.step import BatchFilter, Task

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.parquet import ParquetFile
    from pyspark.sql import DataFrame, SparkSession

    from windrow.engine.arrivals import Slice
    from windrow.engine.result import MicrobatchResult

Source: TypeAlias = Union["DeltaTable", "ParquetFile", "DataFrame"]  # what an engine has opened to ingest


class OpenRows(Protocol):
    """What is open in the ledger at one version, batches or the states of a topology, read when it is asked for."""

    def wanted(self, wanted: BatchFilter | None) -> pa.Table:
        """Return what is wanted, all for None; others may come along."""

    def ended(self, passed: Floors) -> Floors:
        """Return the last end of a window that a clock has passed, of the sources that have one."""

    def of_state(self, state: str) -> pa.Table:
        """Return the rows of one state."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is open, in memory already."""

    rows: pa.Table

    def wanted(self, wanted: BatchFilter | None) -> pa.Table:
        """Return all of them."""
        return self.rows

    def of_state(self, state: str) -> pa.Table:
        """Return the rows of one state."""
        return self.rows.filter(pc.equal(self.rows["state"], text(state)))

    def ended(self, passed: Floors) -> Floors:
        """Return the last end of a window that a clock has passed, of the sources that have one."""
        return ended_in(self.rows, passed)


def ended_in(batches: pa.Table, passed: Floors) -> Floors:
    """Return of open batches the last end of a window that a clock has passed, by source."""
    source, end = batches["source"].combine_chunks(), microseconds(batches["window_end"])
    rows = np.flatnonzero(end <= passed.of(source))
    return Floors.empty().raised(source.take(from_numpy(rows)), end[rows])


@dataclass(frozen=True, slots=True)
class Live:
    """The live rows of the ledger, all of one table version.

    `rows` are those that every microbatch needs, all but what is open.
    """

    rows: pa.Table
    open: OpenRows
    table_version: int

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the ledger."""
        return self.rows.schema

    @property
    def totals(self) -> OpenBatches:
        """Return how much is open of each source; in the ledger of a topology nothing is."""
        if tables.is_of_topology(self.schema.names):
            return OpenBatches.none()
        state, id_ = self.rows["state"], self.rows["id"]
        is_source = pc.and_(pc.equal(state, text("progress")), pc.not_equal(id_, text(tables.PROGRESS)))
        return OpenBatches.of(self.rows.filter(is_source))

    def wanted(self, wanted: BatchFilter | None) -> pa.Table:
        """Read the open batches that are wanted, all for None. Raises TableRefused for damaged ones."""
        rows = self.open.wanted(wanted)
        require_batches(rows)
        return rows

    @classmethod
    def held(cls, rows: pa.Table, table_version: int) -> Live:
        """Return live rows that are all in memory already."""
        control = pc.is_in(rows["state"], texts(tables.CONTROL))
        return cls(rows.filter(control), Held(rows.filter(pc.invert(control))), table_version)


def no_messages(schema: pa.Schema) -> pa.Table:
    """Return an empty table of messages with their version, in the types of a ledger."""
    columns = message_columns.schema(schema.field("payload").type)
    return columns.append(pa.field("version", pa.int64())).empty_table()


@dataclass(frozen=True, slots=True)
class Merged:
    """What a commit says it did."""

    updated: int
    deleted: int
    inserted: int


@dataclass(frozen=True, slots=True)
class Input:
    """A file or Delta table to ingest: its columns, for a Delta table its identity, and the engine's handle on it."""

    file: str
    format: str
    schema: pa.Schema
    table: Table | None
    handle: Source


class Engine(Protocol):
    """Reads the depot's new versions and the ledger's live rows, and commits one MERGE."""

    name: str

    @property
    def session_at_work(self) -> SparkSession | None:
        """Return the Spark session that a microbatch is to work on, None where there is no Spark."""

    def mend(self) -> None:
        """Set aside what a power cut left behind on a disk of this machine. Raises TableUnreadable, TableLocked."""

    def depot(self) -> Table:
        """Return the depot's identity. Raises TableMissing."""

    def depot_commits(self, since: int | None = None, upto: int | None = None) -> list[Commit]:
        """Return the commits of the depot's log, as far as it goes back, or from `since` on, up to `upto` or later."""

    def ledger(self) -> Table | None:
        """Return the ledger's identity, None when there is none yet. Raises TableRefused for a foreign table."""

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists."""

    @property
    def columns(self) -> str | None:
        """Return `[depot.columns]` as JSON, for the history; None for a depot that has the columns of a message."""

    @property
    def format(self) -> str | None:
        """Return `[format]` as JSON, for the history; None for a depot of messages."""

    def create_views(self, missing: bool = False) -> list[str]:
        """Create the views over a ledger in a catalog, or only those `missing`, and return the names of all.

        Raises TableRefused for a taken name.
        """

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger, NULL in all rows that there are."""

    def path_of(self, table: str) -> str | None:
        """Return where the files of `depot` or `ledger` lie, None when there is no such table."""

    def live(self) -> Live:
        """Read the live rows, the open batches when they are asked for. Raises TableMissing."""

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> pa.Table | None:
        """Give `handle` what the depot added in the versions after `after`, up to `upto` or later.

        Where `handle` had to run in another process, returns the history of what it committed (`tables.HISTORY`).
        """

    def process(self, task: Task, arrived: Slice | None, live: Live) -> MicrobatchResult:
        """Run a task over the messages that arrived (None: a tick) and the open batches that it needs."""

    def commit_form(self, processed: MicrobatchResult) -> str:
        """Return how `merge` will commit what was processed, as the history records it."""

    def merge(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Commit what was processed in one transaction, unless the live rows changed since they were read.

        `token` is the one that was read with them. `note` becomes the commit's user metadata, which DESCRIBE HISTORY
        shows. Returns None when the table does not say how many rows it replaced. Raises LedgerMoved.
        """


class Intake(Protocol):
    """What ingest needs from an engine: files in, and a depot to append them to."""

    def mend(self) -> None:
        """Set aside what a power cut left behind on a disk of this machine. Raises TableUnreadable, TableLocked."""

    def depot(self) -> Table:
        """Return the depot's identity and latest version. Raises TableMissing."""

    def create_depot(self, payload: pa.DataType, keep: str) -> None:
        """Create an empty depot unless it exists; `keep` is how long its log and removed files stay.

        Raises TableRefused for a raw depot.
        """

    def create_raw_depot(self, keep: str) -> None:
        """Create an empty raw depot unless it exists. Raises TableRefused for a depot of something else."""

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file (`parquet`) or a Delta table (`delta`) to ingest. Raises FileRefused."""

    def transaction(self, application: str, upto: int) -> int | None:
        """Return the version that the depot's log recorded for a transaction id, None when it never did.

        A greater one than `upto` may be returned as `upto`.
        """

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit and return how many there were.

        Of a Delta table only what came after its version `after`, when that is given.
        """


class TableMaintenance(Protocol):
    """Looks after the files of one table. No row ever changes by it."""

    def obstacle(self) -> str | None:
        """Say why the table must be left alone, None when it need not."""

    def reached(self, before: int, depot_id: str) -> int:
        """Return up to which version of a depot a ledger had read it at a time (microseconds), -1 for not at all."""

    def description(self) -> str:
        """Return the table's comment, which says who made it."""

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties in a commit of its own."""

    def compact(self, state: str | None, dry_run: bool, below: int | None = None) -> Compacted | None:
        """Make large files of small ones, in one partition `state` or in all; None: a dry run cannot tell.

        With `below` only files of fewer bytes are taken, and those that are made are about that large.
        """

    def compacted_at(self, since: int) -> int | None:
        """Return when files were last put together, None when not since then (microseconds)."""

    def vacuum(self, dry_run: bool) -> int:
        """Delete files that no version within the table's retention needs, and return how many."""

    def logged_at(self, version: int) -> int | None:
        """Return when the log got the file of a version (microseconds), by which it is trimmed; None: not told."""

    def trim_log(self) -> None:
        """Write a checkpoint, and delete what of the log is older than the table's retention."""


class WholeEngine(Engine, Intake, Protocol):
    """What Spark and the embedded engine are: all that microbatches, ingest and maintenance need."""

    def table_maintenance(self, table: str, location: str | None = None) -> TableMaintenance:
        """Return what looks after the files of `depot` or `ledger`, of the engine's own or of one at another place."""
