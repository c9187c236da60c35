"""A depot that is read: its identity, its commits, and what its versions added."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from windrow.delta.lock import sync_read
from windrow.delta.log import Log, TableInfo
from windrow.delta.maintenance import TableMaintenance
from windrow.delta.table import missing_error
from windrow.engine.engine import Engine
from windrow.errors import NotFoundError
from windrow.expressions import recorded_text
from windrow.model.commits import Commit
from windrow.settings.settings import Settings
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.depot_rows import StateChanges


class Source(Protocol):
    """Reads the depot of the settings. It decides nothing, and writes nothing.

    Each engine implements `arrivals`; Delta's log is read here, in the same way for both.
    """

    engine: Engine
    settings: Settings
    place: str
    _as_rows: bool | StateChanges

    def __init__(self, engine: Engine, settings: Settings, rows: bool | StateChanges = False) -> None:
        """Open nothing yet. Raises EngineUnavailableError for a location that the engine cannot reach.

        With `rows`, a depot without messages is read as its rows, or as the changes of a state.
        """
        self.engine, self.settings, self._as_rows = engine, settings, rows
        self.place = engine.place(settings.depot)

    def arrivals(self, after: int, last_version: int) -> AbstractContextManager[Arrivals | None]:
        """Yield what the depot added after version `after`, up to `last_version`; None if it added no rows."""

    def streams(self, after: int) -> bool:
        """Tell whether Spark's `foreachBatch` drives the reading of versions after this one."""
        return False

    @property
    def log(self) -> Log:
        """Return the log of the depot."""
        return self.engine.log(self.place)

    @property
    def maintenance(self) -> TableMaintenance:
        """Return the maintenance of the depot."""
        return self.engine.maintenance(self.place, "depot")

    def depot(self) -> TableInfo:
        """Return the depot's identity, latest version and columns. Raises TableMissingError."""
        conversion, table = self._conversion()
        return replace(table, payload=conversion.payload)

    def no_rows(self) -> pa.Table:
        """Return an empty table with the columns of what is read from the depot."""
        return self._conversion()[0].no_rows()

    def require_mapping(self) -> None:
        """Raise ExpressionError for a mapping that the engine cannot run; Spark runs all."""
        return

    def commits(self, since: int | None = None, last_version: int | None = None) -> list[Commit]:
        """Return the commits in the depot's log, all or from version `since` on, up to `last_version` or later."""
        return self.log.commits(since, last_version)

    def commit_to_accept(self, version: int) -> Commit:
        """Return the commit of a depot version that deleted or rewrote rows. Raises NotFoundError for any other."""
        same = [commit for commit in self.commits(version, version) if commit.version == version]
        # guard: only-changes-accepted
        if not same or not (same[0].restores or version in self.log.files_added(version, version)[1]):
            raise NotFoundError(
                f"depot version {version} deleted or rewrote no rows",
                "Only a version that did can be skipped; `windrow status` and the error of the stopped run name it.",
            )
        return same[0]

    @property
    def columns(self) -> str | None:
        """Return `[depot.columns]` as JSON, for the history; None for a depot that has the columns of a message."""
        return recorded_text(self.settings.depot_columns)

    @property
    def format(self) -> str | None:
        """Return `[format]` as JSON, for the history; None for a depot of messages."""
        return self.settings.format.recorded_text()

    def _conversion(self) -> tuple[Conversion, TableInfo]:
        """Return how the depot is converted, and the depot. Raises TableMissingError."""
        table = self.log.table()
        if table is None:
            raise missing_error(self.settings.depot, "depot")
        return Conversion.of(self.settings, table, self._as_rows), table

    def _keep_read(self, after: int, last_version: int) -> None:
        """Sync to the local disk the depot versions that are about to be read."""
        if self.settings.fsync:
            # guard: depot-durable
            sync_read(self.place, after, last_version)
