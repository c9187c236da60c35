"""The Spark engine: the depot's change feed as a stream, and commits by Spark or by files. Public APIs only.

Inside `foreachBatch` everything happens on the session of the batch, which is a clone of the one that started the
stream: a MERGE through the parent would not see its settings. On Spark Connect `foreachBatch` runs in a process of the
server; what it did is read from the ledger's history.

Tables are paths or catalog names. What lies on a disk of this machine is looked at and created by delta-rs as well,
which takes milliseconds, and what the driver processed is committed there by files (`engine/files.py`), in a twentieth
of the time; everything else is asked of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow import chunks, tables
from windrow.arrow import plain
from windrow.commits import CHANGE, FEED_COLUMNS, Commit
from windrow.engine import by_files, catalog, creation
from windrow.engine.arrivals import Arrivals
from windrow.engine.configured import WHOLE_TIMES, configured
from windrow.engine.conversion import Conversion
from windrow.engine.embedded import added_rows
from windrow.engine.files import Parts
from windrow.engine.lock import commit_lock
from windrow.engine.log import DeltaRsLog, Log, ledger_schema_of, require_ledger
from windrow.engine.protocol import Input, Live, Merged, Table, Upkeep
from windrow.engine.session import bare_is_local, find_session
from windrow.engine.spark_commit import UNCACHED, SparkCommit
from windrow.engine.spark_errors import translated
from windrow.engine.spark_log import SparkLog, detail
from windrow.engine.spark_upkeep import SparkUpkeep
from windrow.engine.stream import SparkArrivals, Take, failure_in
from windrow.engine.upkeep import DeltaRsUpkeep
from windrow.errors import ExpressionError, FileRefused, first_line
from windrow.expressions import Mapping as ColumnMapping
from windrow.expressions import recorded_text
from windrow.locations import for_spark, is_name, local_path, reference
from windrow.settings import Settings
from windrow.storage import latest_table, missing, open_table, unreadable, unwritable

EVERY_FILE = 2_147_483_647  # a rate limit would split commits, and what is read by version would lose the second half


class SparkEngine:
    """Reads and commits with Spark."""

    name = "spark"

    def __init__(
        self,
        settings: Settings,
        session: SparkSession | None = None,
        rows: bool = False,
        views: catalog.Views | None = None,
    ) -> None:
        """Use `session`, or the one of the platform, or start a local one.

        With `rows` a depot that holds no messages is read as its rows are; `views` gives those of a topology.
        """
        if session is None:
            session = find_session(catalog=is_name(settings.depot) or is_name(settings.ledger))
        self._root = self._session = session
        self.remote = type(session).__module__.startswith("pyspark.sql.connect")
        self._settings, self._as_rows, self._views = settings, rows, views
        self._depot, self._ledger = for_spark(settings.depot), for_spark(settings.ledger)
        self._paths: dict[str, Path | None] = {}
        self._parts = Parts()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the sessions behind: in another process the batch brings its own."""
        return self.__dict__ | {"_root": None, "_session": None}

    @property
    def session(self) -> SparkSession:
        """Return the session on which streams start."""
        return self._root

    @property
    def session_at_work(self) -> SparkSession:
        """Return the session of the batch that is handled, else the one on which streams start."""
        return self._session

    def when_started(self, then: Callable[[SparkSession], None]) -> None:
        """Call `then` with the session."""
        then(self._root)

    def depot(self) -> Table:
        """Return the depot's identity, latest version and columns."""
        table = self._log(self._depot).table()
        if table is None:
            raise missing(self._settings.depot, "depot")
        return Conversion.of(self._settings, table, self._as_rows).table(table)

    def depot_commits(self, since: int | None = None) -> list[Commit]:
        """Return the commits of the depot's log, as far as it goes back, or from version `since` on."""
        return self._log(self._depot).commits(since)

    def ledger(self) -> Table | None:
        """Return the ledger's identity, None when there is none."""
        return self._log(self._ledger).table()

    def create_depot(self, payload: pa.DataType, keep: str) -> None:
        """Create an empty depot unless it exists."""
        path = self._new_path(self._depot)
        if path is not None:
            creation.create_depot(str(path), payload, keep)
            return
        empty = tables.depot_schema(payload).empty_table()
        properties = tables.PROPERTIES | tables.retention(keep)
        catalog.create_table(self._session, self._depot, empty, properties, tables.DEPOT_COMMENT)
        if (table := self._log(self._depot).table()) is not None:
            creation.require_messages(table.schema, self._settings.depot)

    def create_raw_depot(self, keep: str) -> None:
        """Create an empty raw depot unless it exists."""
        path = self._new_path(self._depot)
        if path is not None:
            creation.create_raw_depot(str(path), keep)
            return
        properties = tables.PROPERTIES | tables.retention(keep)
        catalog.create_table(self._session, self._depot, chunks.RAW.empty_table(), properties, chunks.COMMENT)
        if (table := self._log(self._depot).table()) is not None:
            creation.require_raw(table.schema, self._settings.depot)

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, and the views over it, unless it exists."""
        path = self._new_path(self._ledger)
        if path is not None:
            creation.create_ledger(str(path), first, keep)
            return
        properties = tables.PROPERTIES | tables.retention(keep)
        views = self._settings.views
        catalog.require_free(self._session, self._ledger, views, self._views)
        catalog.create_table(self._session, self._ledger, first, properties, tables.LEDGER_COMMENT, by="state")
        self.create_views()

    @property
    def columns(self) -> str | None:
        """Return `[depot.columns]` as the history records it."""
        return recorded_text(self._settings.depot_columns)

    @property
    def format(self) -> str | None:
        """Return `[format]` as the history of a ledger over a raw depot records it."""
        return self._settings.format.recorded()

    def create_views(self, missing: bool = False) -> list[str]:
        """Create the views over a catalog ledger, or only those `missing`, and return their names; a path has none."""
        if not is_name(self._ledger):
            return []
        return catalog.create_views(self._session, self._ledger, self._settings.views, self._views, missing)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger, and to the views over it."""
        path = self._path(self._ledger)
        with self._lock(self._ledger):
            if path is not None:
                creation.add_columns(str(path), columns)
            else:
                catalog.add_columns(self._session, self._ledger, columns)
        self.create_views()

    def path_of(self, table: str) -> str | None:
        """Return where the files of `depot` or `ledger` lie, which commands without Spark need to know."""
        location = self._depot if table == "depot" else self._ledger
        if is_name(location):
            found = detail(self._session, reference(location))
            location = found["location"] if found else ""
        return str(local_path(location) or location) if location else None

    def upkeep(self, table: str, location: str | None = None) -> Upkeep:
        """Return what looks after the files of a table: delta-rs on a disk of this machine, if it can."""
        location = location or (self._depot if table == "depot" else self._ledger)
        path = self._path(location)
        if path is not None and DeltaRsUpkeep(str(path), table).obstacle() is None:
            return DeltaRsUpkeep(str(path), table)
        return SparkUpkeep(self._session, reference(location), table, lambda: self._lock(location))

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file or Delta table to ingest."""
        try:
            frame = self._root.read.format(format_).load(_file(file))
            table = self._log(_file(file)).table() if format_ == "delta" else None
        except Exception as error:  # what the reader of a format raises comes through as it is
            raise FileRefused(
                f"{file} cannot be read as {format_}: {first_line(error)}", "Check the file and --format."
            ) from error
        return Input(file, format_, plain(frame.limit(0).toArrow()).schema, table, frame)

    def transaction(self, application: str) -> int | None:
        """Return the version that the depot's log recorded; elsewhere than locally Delta skips what it knows."""
        path = self._path(self._depot)
        return None if path is None else open_table(str(path), "depot").transaction_version(application)

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit."""
        depot = self.depot()
        rows = self._rows(given, after)
        try:
            with self._lock(self._depot), configured(self._root, ALIKE), configured(self._root, WHOLE_TIMES):
                mapped = rows.selectExpr(*mapping.spark_select(depot.payload))
                texts = [name for name, kind in mapped.dtypes if kind == "string"]
                mapped = mapped.withColumns({name: F.validate_utf8(name) for name in texts})
                writer = mapped.write.format("delta").mode("append")
                writer = writer.option("txnAppId", transaction[0]).option("txnVersion", transaction[1])
                writer.saveAsTable(reference(self._depot)) if is_name(self._depot) else writer.save(self._depot)
        except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
            if isinstance(error, PySparkException) or "INVALID_UTF8_STRING" in str(error):
                raise ExpressionError(
                    f"{given.file} cannot be mapped to messages: {first_line(error)}", "See [ingest.columns]."
                ) from error
            raise unwritable(self._depot, "depot", error) from error
        log = self._log(self._depot)
        added = sum(count or 0 for count in log.rows_added(depot.version, self.depot().version).values())
        progress(added)
        return added

    def _rows(self, given: Input, after: int | None) -> DataFrame:
        """Return the rows of an input; of a Delta table that was ingested before only the inserted ones since."""
        if after is None:
            frame: DataFrame = given.handle
            return frame
        reader = self._root.read.format("delta").option("readChangeFeed", "true").option("startingVersion", after + 1)
        feed = reader.load(_file(given.file))
        added_rows(plain(feed.where(F.col(CHANGE) != "insert").limit(1).toArrow()), given.file)
        return feed.drop(*FEED_COLUMNS)

    def live(self) -> Live:
        """Read the live rows, where the files lie here without a job of Spark.

        The version is read first: too low a number makes the second belt only tighter.
        """
        path = self._path(self._ledger)
        if path is not None and not by_files.beyond_files(latest_table(str(path), "ledger")):
            return by_files.live(str(path), self._parts)
        table = self.ledger()
        if table is None:
            raise missing(self._settings.ledger, "ledger")
        whole = self._session.sql(f"SELECT * FROM {reference(self._ledger)} WHERE {UNCACHED}")
        schema = ledger_schema_of(table.schema)
        require_ledger(self._ledger, whole.columns, schema)
        try:
            rows = plain(whole.where(tables.live_states(whole.columns)).toArrow())
        except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
            raise unreadable(self._ledger, "ledger", error) from error
        return Live.held(rows.select(schema.names).cast(schema).combine_chunks(), table.version, table.id)

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> pa.Table | None:
        """Stream what the depot added after `after`, with a fresh checkpoint: the ledger is the checkpoint."""
        self._log(self._depot).rows_added(after, upto)  # raises before the stream does when a version is gone
        take = Take(self, after + 1, handle)
        feed = (
            self._root.readStream.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", after + 1)
            .option("maxFilesPerTrigger", EVERY_FILE)
        )
        stream = feed.table(reference(self._depot)) if is_name(self._depot) else feed.load(self._depot)
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        if self._settings.checkpoints:
            writer = writer.option("checkpointLocation", f"{self._settings.checkpoints}/{uuid4().hex}")
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            raise (take.failure or failure_in(str(error)) or translated(error)) from error
        return self._history(after) if self.remote else None

    def take(self, frame: DataFrame, begin: int, handle: Callable[[Arrivals], None]) -> int:
        """Handle one frame of the stream on its own session; return where the next frame begins."""
        self._session = frame.sparkSession
        try:
            table = self.depot()
            counts = self._log(self._depot).rows_added(begin - 1, table.version)
            chosen = self._settings
            with configured(self._session, ALIKE), ExitStack() as kept:
                conversion = Conversion.of(chosen, table, self._as_rows)
                octets = conversion.octets(self._log(self._depot), begin - 1, table.version)
                mapped = conversion.mapped(frame)
                known = conversion.counts(counts)
                arrivals = SparkArrivals.of(
                    mapped, known, octets, begin, chosen.on_depot_delete, chosen.max_driver_messages, conversion, kept
                )
                if arrivals.last is None:
                    return begin
                handle(arrivals)
        except PySparkException as error:
            raise translated(error) from error
        finally:
            self._session = self._root
        return arrivals.last + 1

    def _history(self, after: int) -> pa.Table:
        """Return the history of the microbatches that read the depot beyond `after`."""
        rows = self._session.sql(
            f"SELECT * FROM {reference(self._ledger)} "
            f"WHERE state = 'microbatch' AND kind = 'data' AND depot_version > {after:d} ORDER BY microbatch"
        )
        return plain(rows.select([name for name, _ in tables.HISTORY]).toArrow())

    def merge(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Commit the rows in one transaction: the driver does where it can, else Spark, fenced by the token."""
        path = self._path(self._ledger)
        if path is not None and self._settings.driver_commits and by_files.can_merge(rows, live):
            merged = by_files.merge(str(path), rows, control, live, note)
            self._session.catalog.refreshByPath(f"file:{path}")  # as Spark does with what is cached after its own
            return merged
        try:
            with self._lock(self._ledger):
                return self.commit(live, token, note).write(rows, control)
        except PySparkException as error:
            raise translated(error) from error

    def commit(self, live: Live, token: str, note: str) -> SparkCommit:
        """Return how to commit what follows from the live rows."""
        return SparkCommit(self._session, self._ledger, live, token, note)

    def _log(self, location: str) -> Log:
        path = self._path(location)
        return SparkLog(self._session, reference(location)) if path is None else DeltaRsLog(str(path))

    def _path(self, location: str) -> Path | None:
        """Return where a table lies when delta-rs, here, reads the same files; None when only Spark can tell."""
        if self.remote or ON_DATABRICKS in os.environ:
            return None
        if not is_name(location):
            return local_path(location) if location.startswith("file:") or bare_is_local(self._root) else None
        if location not in self._paths:
            found = detail(self._session, reference(location))
            if found is None:
                return None
            self._paths[location] = local_path(found["location"])
        return self._paths[location]

    def _new_path(self, location: str) -> Path | None:
        """Return where to make a table without Spark: only a path can be."""
        return None if is_name(location) else self._path(location)

    def _lock(self, location: str) -> AbstractContextManager[None]:
        """Hold the lock of a table whose files lie on a disk of this machine, through whatever Spark writes them."""
        path = self._path(location) or (local_path(location) if self.remote else None)
        return commit_lock(str(path)) if path is not None and path.parent.is_dir() else nullcontext()


ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"  # there a path without a scheme is none of the local disk
# Expressions give the same values whatever the session is set to: what they read without a zone is UTC.
ALIKE = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


def _file(path: str) -> str:
    """Return a path of an input as Spark wants it: its own working directory may be another one."""
    return path if "://" in path else str(Path(path).resolve())
