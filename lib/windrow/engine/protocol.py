"""What microbatches, ingest and maintenance need from an engine, and what both engines answer from Delta's log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import pyarrow as pa

from windrow.delta.lock import sync_read
from windrow.delta.log import Log, Table
from windrow.delta.maintenance import TableMaintenance
from windrow.delta.mending import follow, mend
from windrow.delta.table import missing
from windrow.engine.side_files import LocalSideFiles, StoredSideFiles
from windrow.errors import NotFound
from windrow.expressions import Mapping as ColumnMapping
from windrow.expressions import recorded_text
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Fold
from windrow.model.commits import Commit
from windrow.model.payload import parse
from windrow.settings.settings import Settings
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.depot_rows import StateChanges

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.parquet import ParquetFile
    from pyspark.sql import DataFrame, SparkSession

Views: TypeAlias = Callable[[str], Mapping[str, str]]  # the query of each view by name, over a reference
Source: TypeAlias = Union["DeltaTable", "ParquetFile", "DataFrame"]  # an input that an engine has opened to ingest
SideFiles: TypeAlias = LocalSideFiles | StoredSideFiles


@dataclass(frozen=True, slots=True)
class Input:
    """A file or Delta table to ingest: its columns, for a Delta table its identity, and the engine's handle on it."""

    file: str
    format: str
    schema: pa.Schema
    table: Table | None
    handle: Source


class Engine(Protocol):
    """Reads the depot's new versions and the ledger's live rows, and commits microbatches. It decides nothing.

    Each engine implements how to read a log; what Delta's log says is answered here, the same for both.
    """

    name: str
    _depot: str
    _ledger: str
    _settings: Settings
    _as_rows: bool | StateChanges

    def __init__(self, settings: Settings, rows: bool | StateChanges) -> None:
        """Remember the settings; with `rows`, a depot without messages is read as its rows, or as changes."""
        self._settings, self._as_rows = settings, rows

    def _log(self, location: str) -> Log:
        """Return the log of a table."""

    @property
    def settings(self) -> Settings:
        """Return the settings of the engine."""
        return self._settings

    def fingerprint(self, location: str, version: int) -> str | None:
        """Return the fingerprint of the commit that is a version of a table, None if its log has none."""
        found = self._log(location).commits(version, version)
        return next((commit.fingerprint for commit in found if commit.version == version), None)

    def notes(self, location: str) -> list[tuple[dict[str, Any], int | None]]:
        """Return the notes of a table's commits, and how many rows each added, oldest first; none without a table."""
        return self._log(location).notes()

    @property
    def session_at_work(self) -> SparkSession | None:
        """Return the Spark session that a microbatch works on, None without Spark."""
        return None

    @property
    def max_driver_messages(self) -> int:
        """Return how many messages a microbatch may have on the driver, new and open ones."""
        return self._settings.max_driver_messages

    def mend(self) -> None:
        """Set aside what a power cut left on a local disk. Raises TableUnreadable, TableLocked."""
        mend(self._depot, "depot")
        # guard: empty-entries
        mend(self._ledger, "ledger")
        # guard: ledger-follows-depot
        follow(self._ledger, self._depot)

    def _created_type(self, payload: pa.DataType | None) -> pa.DataType | None:
        """Return the type of payloads in a depot to create: the one that is set, unless an expression makes it."""
        given = self._settings.payload_type
        is_set = payload is not None and given and "payload" not in self._settings.depot_columns
        return parse(given) if is_set else payload

    def _keep_read(self, after: int, upto: int) -> None:
        """Sync the versions of the depot that are about to be read to the local disk."""
        if self._settings.durable:
            # guard: depot-durable
            sync_read(self._depot, after, upto)

    def _conversion(self) -> tuple[Conversion, Table]:
        """Return how the depot is converted, and the depot. Raises TableMissing."""
        table = self._log(self._depot).table()
        if table is None:
            raise missing(self._settings.depot, "depot")
        return Conversion.of(self._settings, table, self._as_rows), table

    def depot(self) -> Table:
        """Return the depot's identity, latest version and columns. Raises TableMissing."""
        conversion, table = self._conversion()
        return replace(table, payload=conversion.payload)

    def no_rows(self) -> pa.Table:
        """Return an empty table with the columns of what is read from the depot."""
        return self._conversion()[0].no_rows()

    def depot_commits(self, since: int | None = None, upto: int | None = None) -> list[Commit]:
        """Return the commits in the depot's log, all or from version `since` on, up to `upto` or later."""
        return self._log(self._depot).commits(since, upto)

    def commit_to_accept(self, version: int) -> Commit:
        """Return the commit of a depot version that deleted or rewrote rows. Raises NotFound for any other."""
        found = [commit for commit in self.depot_commits(version, version) if commit.version == version]
        # guard: only-changes-accepted
        if not found or not (found[0].restores or version in self._log(self._depot).files_added(version, version)[1]):
            raise NotFound(
                f"depot version {version} has deleted or rewritten no rows",
                "Only such a version can be accepted; `windrow status` and the error of the run that stopped name it.",
            )
        return found[0]

    def ledger(self) -> Table | None:
        """Return the ledger's identity, None if there is no ledger. Raises TableRefused for another table."""
        return self._log(self._ledger).table()

    @property
    def columns(self) -> str | None:
        """Return `[depot.columns]` as JSON, for the history; None for a depot that has the columns of a message."""
        return recorded_text(self._settings.depot_columns)

    @property
    def format(self) -> str | None:
        """Return `[format]` as JSON, for the history; None for a depot of messages."""
        return self._settings.format.recorded()

    def create_depot(self, payload: pa.DataType | None, keep: str) -> None:
        """Create an empty depot unless it exists: a raw one if there is no type of payloads.

        `keep` is its retention of log and removed files. Raises TableRefused if a depot of the other kind is there.
        """

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists."""

    def create_views(self, missing: bool = False) -> list[str]:
        """Create the views over a catalog ledger, all or only the `missing` ones, and return all names.

        A ledger by path has none. Raises TableRefused if a name is taken.
        """
        return []

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger; they are NULL in all existing rows."""

    def path_of(self, table: str) -> str | None:
        """Return the path of `depot` or `ledger`, None if the table does not exist."""

    def table_maintenance(self, table: str, location: str | None = None) -> TableMaintenance:
        """Return the maintenance of the engine's `depot` or `ledger`, or of such a table at another `location`."""

    @property
    def side_files(self) -> SideFiles:
        """Return the small texts beside the ledger."""

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file (`parquet`) or a Delta table (`delta`) to ingest. Raises FileRefused."""

    def transaction(self, application: str, upto: int) -> int | None:
        """Return the last version recorded in the depot's log for a transaction id, None if there is none.

        A version greater than `upto` may be returned as `upto`.
        """

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
        note: str,
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit and return their number.

        With `after`, append only the rows that a Delta table added after this version. `note` becomes the commit's user
        metadata.
        """

    def free_number(self, location: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the log of a table has not recorded for a transaction id."""

    def append_rows(
        self, location: str, rows: Sequence[pa.Table | DataFrame], transaction: tuple[str, int], note: str
    ) -> None:
        """Append rows to a table in one commit, unless its log has this transaction; create it if it is missing.

        `note` becomes the commit's user metadata.
        """

    def live(self) -> Live:
        """Read the live rows; the open batches are read later, on demand. Raises TableMissing."""

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> pa.Table | None:
        """Call `handle` with what the depot added after version `after`, up to `upto`.

        If `handle` ran in another process, returns the history of its commits (`tables.HISTORY`).
        """

    @property
    def commit_form(self) -> str:
        """Return how `commit_result` commits, as the history records it."""

    def commit_result(
        self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str
    ) -> int | None:
        """Commit the result in one transaction, unless the ledger changed since the live rows were read.

        `token` is the token that was read with them. `note` becomes the commit's user metadata, which DESCRIBE HISTORY
        shows. Returns how many rows were written, None in a dry run. Raises LedgerMoved.
        """

    def fold(self, live: Live, fold: Fold) -> None:
        """Drop versions that do not count, in a commit that changes nothing else. Raises LedgerMoved."""
