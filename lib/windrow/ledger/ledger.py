"""The ledger: the one table that microbatches write, whichever engine reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from windrow.delta.log import TableInfo
from windrow.delta.maintenance import TableMaintenance
from windrow.delta.mending import mend_tables
from windrow.engine.engine import Engine, SideFiles
from windrow.errors import InternalError
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.row_writer import RowWriter
from windrow.ledger.versions import Fold
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from windrow.ledger.open_batches import SparkOpen

Views: TypeAlias = Callable[[str], Mapping[str, str]]  # the query of each view by name, over a reference


class Ledger(Protocol):
    """Reads the live rows of the ledger in the settings, and commits microbatches. It decides nothing."""

    engine: Engine  # which runs microbatches
    tables: Engine  # which reaches the ledger
    settings: Settings
    place: str
    _views: Views | None
    commit_mode: str  # how `commit` commits, as the history records it

    def __init__(self, engine: Engine, settings: Settings, views: Views | None = None) -> None:
        """Open nothing yet. Raises EngineUnavailableError for a location that the engine cannot reach.

        `views` gives the views of a topology over a ledger in a catalog; by default they are those of a batcher.
        """
        self.engine = self.tables = engine
        self.settings, self._views = settings, views
        self.place = engine.place(settings.ledger)

    @property
    def engine_name(self) -> str:
        """Return the name of the engine, as the history records it."""
        return self.engine.name

    def table(self) -> TableInfo | None:
        """Return the ledger's identity, None if there is no ledger. Raises IncompatibleTableError for another table."""
        return self.tables.log(self.place).table()

    @property
    def path(self) -> str | None:
        """Return the path of the ledger for commands without Spark, None if it does not exist."""
        return self.tables.path(self.place)

    @property
    def side_files(self) -> SideFiles:
        """Return the small texts beside the ledger. Raises TableMissingError."""
        return self.tables.side_files(self.place)

    def maintenance(self, other: str | None = None) -> TableMaintenance:
        """Return the maintenance of the ledger, or of an `other` one by its location."""
        return self.tables.maintenance(self.place if other is None else self.tables.place(other), "ledger")

    def reopen(self) -> None:
        """Leave open handles to a call that was cut off, and open the ledger again for the next call."""
        return

    def repair(self, depots: Iterable[str]) -> None:
        """Set aside what a power cut left torn in the ledger and in depots, which are given by their places.

        Raises TableUnreadableError, TableLockedError, TableUnwritableError.
        """
        mend_tables(depots, self.place)

    def create(self, first: pa.Table, retention: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists."""

    def create_views(self) -> list[str]:
        """Create or update the views over a catalog ledger, and return their names.

        A ledger by path has none. Raises IncompatibleTableError if a name is taken.
        """
        return []

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger; they are NULL in all existing rows."""

    def live(self) -> Live:
        """Read the live rows; the open batches are read later, on demand. Raises TableMissingError."""

    def commit(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int | None:
        """Commit the result in one transaction, unless the ledger changed since the live rows were read.

        `token` is the token that was read with them. `note` becomes the commit's user metadata, which DESCRIBE HISTORY
        shows. Returns how many rows were written, None in a dry run. Raises ConcurrentCommitError.
        """

    def open_on_executors(self, live: Live) -> SparkOpen:
        """Return the open batches and the states of topologies as Spark reads them."""
        raise InternalError("without Spark there are no executors")

    def row_writer(self, live: Live) -> RowWriter | None:
        """Return the writer of rows part by part, here or in Spark's tasks, to files that `commit` adds, or None."""
        return None

    def fold(self, live: Live, fold: Fold) -> None:
        """Drop versions that do not count, in a commit that changes nothing else. Raises ConcurrentCommitError."""

    def history_since(self, depot_version: int) -> pa.Table:
        """Return the history of the microbatches that read later depot versions (`tables.HISTORY`).

        Only needed with Spark Connect, which runs microbatches in another process.
        """
        raise InternalError(f"microbatches after depot version {depot_version} ran in this process")
