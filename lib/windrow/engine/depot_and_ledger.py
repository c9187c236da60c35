"""The depot and the ledger of an engine: what both engines answer from Delta's log alone."""

from __future__ import annotations

import pyarrow as pa

from windrow.delta.lock import keep_read
from windrow.delta.log import Log, Table
from windrow.delta.mending import follow, mend
from windrow.delta.table import missing
from windrow.engine.conversion import Conversion
from windrow.engine.depot_rows import StateChanges
from windrow.expressions import recorded_text
from windrow.model.commits import Commit
from windrow.model.payload import parse
from windrow.settings.settings import Settings


class DepotAndLedger:
    """The depot and the ledger of some settings; each engine implements how to read their logs."""

    _depot: str
    _ledger: str

    def __init__(self, settings: Settings, rows: bool | StateChanges) -> None:
        """Remember the settings; with `rows`, a depot without messages is read as its rows, or as changes."""
        self._settings, self._as_rows = settings, rows

    def _log(self, location: str) -> Log:
        """Return the log of a table."""
        raise NotImplementedError

    def mend(self) -> None:
        """Set aside what a power cut left on a local disk. Raises TableUnreadable, TableLocked."""
        mend(self._depot, "depot")
        # guard: empty-entries
        mend(self._ledger, "ledger")
        # guard: ledger-follows-depot
        follow(self._ledger, self._depot)

    def _created_type(self, payload: pa.DataType) -> pa.DataType:
        """Return the type of payloads in a depot to create: the one that is set, unless an expression makes it."""
        given = self._settings.payload_type
        return parse(given) if given and "payload" not in self._settings.depot_columns else payload

    def _keep_read(self, after: int, upto: int) -> None:
        """Sync the versions of the depot that are about to be read to the local disk."""
        if self._settings.durable:
            # guard: depot-durable
            keep_read(self._depot, after, upto)

    def depot(self) -> Table:
        """Return the depot's identity, latest version and columns."""
        table = self._log(self._depot).table()
        if table is None:
            raise missing(self._settings.depot, "depot")
        return Conversion.of(self._settings, table, self._as_rows).table(table)

    def no_rows(self) -> pa.Table:
        """Return an empty table with the columns of what is read from the depot."""
        table = self._log(self._depot).table()
        if table is None:
            raise missing(self._settings.depot, "depot")
        return Conversion.of(self._settings, table, self._as_rows).no_rows()

    def depot_commits(self, since: int | None = None, upto: int | None = None) -> list[Commit]:
        """Return the commits in the depot's log, all or from version `since` on, up to `upto` or later."""
        return self._log(self._depot).commits(since, upto)

    def removes_rows(self, version: int) -> bool:
        """Tell whether a version of the depot deleted or rewrote rows."""
        return version in self._log(self._depot).files_added(version, version)[1]

    def ledger(self) -> Table | None:
        """Return the ledger's identity, None if there is no ledger."""
        return self._log(self._ledger).table()

    @property
    def columns(self) -> str | None:
        """Return `[depot.columns]` as the history records it."""
        return recorded_text(self._settings.depot_columns)

    @property
    def format(self) -> str | None:
        """Return `[format]` as the history of a ledger over a raw depot records it."""
        return self._settings.format.recorded()
