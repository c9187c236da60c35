"""The ledger by its files: live rows are read file by file, and commits add files with delta-rs.

The embedded engine uses it, and so does Spark with `commit = "files"`. On Spark, a microbatch on the driver reads and
writes as the embedded engine does. On the executors, each task writes the rows that it has, and the driver commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from windrow.delta.creation import add_columns, create_ledger
from windrow.delta.locations import reference
from windrow.delta.log import ledger_schema_of, require_ledger
from windrow.delta.table import beyond_files, latest_snapshot, translate_write_errors
from windrow.engine.embedded import EmbeddedEngine
from windrow.engine.engine import Engine
from windrow.errors import ConcurrentCommitError, IncompatibleTableError, InternalError, first_line
from windrow.ledger.file_cache import FileCache
from windrow.ledger.file_writer import require_there, store_options
from windrow.ledger.files import LedgerFiles, writer_of
from windrow.ledger.ledger import Ledger, Views
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.row_writer import RowWriter
from windrow.ledger.versions import Fold, fold_note, rows_to_write
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from windrow.engine.spark.engine import SparkEngine
    from windrow.ledger.open_batches import SparkOpen


class FilesLedger(Ledger):
    """A ledger that delta-rs reads and writes."""

    commit_mode = "files"
    _opened: LedgerFiles | None = None
    _cache: FileCache | None = None

    def __init__(self, engine: Engine, settings: Settings, views: Views | None = None) -> None:
        """Open nothing yet.

        Raises EngineUnavailableError for a location that this engine, or its tasks, cannot write.
        """
        super().__init__(engine, settings, views)
        if engine.name != "embedded":
            from windrow.ledger.task_files import place_of_tasks

            self._spark_place, self.tables = self.place, EmbeddedEngine(settings)
            self.place = place_of_tasks(cast("SparkEngine", engine), self.place)

    def __getstate__(self) -> dict[str, object]:
        """Drop the open table, which belongs to this process."""
        return self.__dict__ | {"_opened": None, "_cache": None}

    def reopen(self) -> None:
        """Open the table again, and read its files again."""
        self._opened = self._cache = None

    def create(self, first: pa.Table, retention: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists."""
        create_ledger(self.place, first, retention)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger."""
        with self.tables.lock(self.place):
            add_columns(self.place, columns)

    def live(self) -> Live:
        """Read the live rows, file by file."""
        files = self._opened
        snapshot = latest_snapshot(self.place, "ledger", None if files is None else files.snapshot)
        if files is None or files.snapshot is not snapshot:
            if self._cache is None:
                self._cache = FileCache(self.settings.max_cached_bytes)
            schema = embedded_schema(self.place, snapshot.table)
            files = self._opened = LedgerFiles(snapshot, schema, self._cache, files)
        return Live(files.schema, files.rows, files, snapshot.version, files.growth)

    def commit(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int:
        """Add files with the new rows; the fence is that no version follows the one that was primed."""
        here, files = [control, *processed.states.values()], processed.files
        if isinstance(processed.rows, pa.Table):
            here = [processed.rows, *here]
        else:
            from windrow.ledger.task_files import write_in_tasks

            files = write_in_tasks(processed.rows, self.row_writer(live)).files
        require_there(self.place, files)
        new = [rows_to_write(table, live.revision + 1) for table in here]
        with self._committing(live) as opened:
            return opened.commit(new, files, {"userMetadata": note})

    def open_on_executors(self, live: Live) -> SparkOpen:
        """Return the open batches as Spark reads them."""
        from windrow.ledger.open_batches import SparkOpen

        return SparkOpen(
            cast("SparkEngine", self.engine), reference(self._spark_place), live.table_version, live.schema
        )

    def row_writer(self, live: Live) -> RowWriter:
        """Return the writer of rows part by part."""
        return RowWriter(writer_of(self.place, live.schema, store_options()), live.schema, live.revision + 1)

    def fold(self, live: Live, fold: Fold) -> None:
        """Replace files of live rows; the fence is that of a microbatch."""
        with self._committing(live) as files:
            files.fold(fold, live.totals.total[1], {"userMetadata": fold_note(fold)})

    @contextmanager
    def _committing(self, live: Live) -> Iterator[LedgerFiles]:
        """Commit on top of the files of the primed version. Raises ConcurrentCommitError, TableUnwritableError."""
        files = live.open
        if not isinstance(files, LedgerFiles):
            raise InternalError("the live rows were read by their files")
        # guard: embedded-commit-lock
        with self.tables.lock(self.place, self.settings.fsync), translate_write_errors(self.place, "ledger"):
            try:
                yield files
            except CommitFailedError as error:
                # guard: commit-failure-told
                if DeltaTable(self.place).version() == live.table_version:
                    raise
                raise ConcurrentCommitError(
                    f"the ledger moved between prime and commit: {first_line(error)}",
                    "Another driver, tick or flush committed first. Nothing was written.",
                ) from error


def embedded_schema(location: str, table: DeltaTable) -> pa.Schema:
    """Return the columns of a ledger.

    Raises IncompatibleTableError for another table, and for one that only Spark can read.
    """
    partitions: list[str] = table.metadata().partition_columns
    if "state" not in partitions:
        raise IncompatibleTableError(f"{location} is a Delta table, but not a ledger", "Give the path of a ledger.")
    columns = pa.schema(table.schema().to_arrow())
    schema = ledger_schema_of(columns)
    require_ledger(location, columns.names, schema)
    # guard: files-tell-rows
    if beyond := beyond_files(table):
        raise IncompatibleTableError(
            f"the ledger at {location} has {beyond}, which the embedded engine cannot read",
            "Run it with --engine spark. Windrow itself never enables that feature.",
        )
    return schema
