"""Spark for tables on a disk of this machine, of which the session starts when there is something to do.

Whether there is, delta-rs tells, as it tells the Spark engine itself of such tables. Most runs that a scheduler starts
find nothing new, and a JVM takes longer to start than all of them together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.commits import Commit
from windrow.engine import by_files, creation
from windrow.engine.arrivals import Arrivals
from windrow.engine.embedded import EmbeddedEngine
from windrow.engine.log import DeltaRsLog
from windrow.engine.protocol import Input, Live, Merged, Table, Upkeep
from windrow.expressions import Mapping as ColumnMapping
from windrow.locations import absolute, is_name, local_path
from windrow.settings import Settings
from windrow.storage import latest_table

if TYPE_CHECKING:
    from windrow.engine.spark import SparkEngine


class LateSpark:
    """Looks with delta-rs, and commits by files what needs no reading; all else is Spark's."""

    name = "spark"
    remote = False

    def __init__(self, settings: Settings) -> None:
        """Remember where the tables are, which must be local paths; nothing is opened or started yet."""
        self._settings = settings
        self._depot, self._ledger = absolute(settings.depot), absolute(settings.ledger)
        self._looking = EmbeddedEngine(settings.model_copy(update={"depot": self._depot, "ledger": self._ledger}))
        self._started: SparkEngine | None = None
        self._then: list[Callable[[Any], None]] = []

    def when_started(self, then: Callable[[Any], None]) -> None:
        """Call `then` with the session as soon as there is one."""
        if self._started is None:
            self._then.append(then)
        else:
            then(self._started.session)

    @property
    def _spark(self) -> SparkEngine:
        """Return the Spark engine, on a session that is started now if none was. Raises EngineUnavailable."""
        if self._started is None:
            from windrow.engine.spark import SparkEngine

            self._started = SparkEngine(self._settings)
            for then in self._then:
                then(self._started.session)
        return self._started

    @property
    def session_at_work(self) -> Any:
        """Return the session of Spark, None before it started."""
        return self._started.session_at_work if self._started else None

    def depot(self) -> Table:
        """Return the depot's identity, latest version and columns."""
        return self._looking.depot()

    def depot_commits(self, since: int | None = None) -> list[Commit]:
        """Return the commits of the depot's log, as far as it goes back, or from version `since` on."""
        return self._looking.depot_commits(since)

    def ledger(self) -> Table | None:
        """Return the ledger's identity, None when there is none."""
        return self._looking.ledger()

    def create_depot(self, payload: pa.DataType, keep: str) -> None:
        """Create an empty depot unless it exists."""
        creation.create_depot(self._depot, payload, keep)

    def create_raw_depot(self, keep: str) -> None:
        """Create an empty raw depot unless it exists."""
        creation.create_raw_depot(self._depot, keep)

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists."""
        creation.create_ledger(self._ledger, first, keep)

    @property
    def columns(self) -> str | None:
        """Return `[depot.columns]` as the history records it."""
        return self._looking.columns

    @property
    def format(self) -> str | None:
        """Return `[format]` as the history records it."""
        return self._looking.format

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger."""
        self._looking.add_columns(columns)

    def create_views(self, missing: bool = False) -> list[str]:
        """Create nothing: a path has no views."""
        return []

    def path_of(self, table: str) -> str:
        """Return where the files of `depot` or `ledger` lie."""
        return self._looking.path_of(table)

    def upkeep(self, table: str, location: str | None = None) -> Upkeep:
        """Return what looks after the files of a table: Spark where delta-rs must not, or cannot find it."""
        if location is not None and is_name(location):
            return self._spark.upkeep(table, location)
        found = self._looking.upkeep(table, location)
        return found if found.obstacle() is None else self._spark.upkeep(table, location)

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file or Delta table to ingest."""
        return self._spark.open_input(file, format_)

    def transaction(self, application: str) -> int | None:
        """Return the version that the depot's log recorded for a transaction id."""
        return self._looking.transaction(application)

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit."""
        return self._spark.append(given, mapping, transaction, after, progress)

    def live(self) -> Live:
        """Read the live rows."""
        beyond = by_files.beyond_files(latest_table(self._ledger, "ledger"))
        return self._spark.live() if beyond else self._looking.live()

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> pa.Table | None:
        """Stream what the depot added after `after`, unless its log says that nothing was: a compaction adds no row."""
        counts = DeltaRsLog(self._depot).rows_added(after, upto)
        return None if set(counts.values()) <= {0} else self._spark.read(after, upto, handle)

    def merge(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Commit the rows in one transaction; what the driver commits itself, such as a tick, needs no session."""
        if self._started is None and self._settings.driver_commits and by_files.can_merge(rows, live):
            return self._looking.merge(rows, control, live, token, note)
        return self._spark.merge(rows, control, live, token, note)


def may_wait(settings: Settings) -> bool:
    """Tell whether a session may start later: the tables are on a disk of this machine, and no session runs yet."""
    local = all(local_path(table) is not None for table in (settings.depot, settings.ledger))
    return local and not _session_runs()


def _session_runs() -> bool:
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None
