"""The embedded engine: reads and commits with delta-rs, without a JVM, and writes the same tables as Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyarrow.parquet import ParquetFile

from windrow.columnar.arrow import plain
from windrow.delta.creation import add_columns, create_depot, create_ledger
from windrow.delta.locations import is_catalog_name, local_path, require_safe
from windrow.delta.lock import commit_lock
from windrow.delta.log import DeltaRsLog, added, identity, ledger_schema_of, number_after, require_ledger
from windrow.delta.maintenance import DeltaRsMaintenance
from windrow.delta.row_changes import changes
from windrow.delta.table import (
    UNTRIMMED,
    beyond_files,
    known_snapshot,
    latest_snapshot,
    latest_table,
    open_table,
    scanned,
    writing,
)
from windrow.engine.protocol import Engine, Input, SideFiles
from windrow.engine.side_files import DeltaRsJournal, LocalSideFiles, StoredSideFiles
from windrow.errors import (
    BrokenPromise,
    EngineUnavailable,
    FileRefused,
    LedgerMoved,
    TableRefused,
    WindrowError,
    first_line,
)
from windrow.expressions import Mapping as ColumnMapping
from windrow.ledger.files import LedgerFiles
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Fold, fold_note, written
from windrow.model import tables
from windrow.model.commits import CHANGE, FEED_COLUMNS, ListedVersions
from windrow.model.payload import of_column
from windrow.settings.settings import Settings
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.depot_rows import StateChanges
from windrow.source.embedded import EmbeddedArrivals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EmbeddedEngine(Engine):
    """Reads and commits with delta-rs; tables are paths."""

    name = "embedded"

    def __init__(self, settings: Settings, rows: bool | StateChanges = False) -> None:
        """Remember where the tables are; nothing is opened yet. Raises EngineUnavailable for catalog names.

        With `rows`, a depot without messages is read as its rows, or as what changed in a state.
        """
        super().__init__(settings, rows)
        self._depot, self._ledger = _path(settings.depot), _path(settings.ledger)
        self._opened: LedgerFiles | None = None

    def __getstate__(self) -> dict[str, object]:
        """Drop the open table, which belongs to this process."""
        return self.__dict__ | {"_opened": None}

    def _log(self, location: str) -> DeltaRsLog:
        return DeltaRsLog(location)

    def create_depot(self, payload: pa.DataType | None, keep: str) -> None:
        """Create an empty depot unless it exists."""
        create_depot(self._depot, self._created_type(payload), keep)

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Create the ledger with its first rows in one commit, unless it exists.

        Raises ExpressionError for a mapping that only Spark can run, before anything is created.
        """
        Conversion.of(self._settings, self.depot(), self._as_rows).require_embedded()
        create_ledger(self._ledger, first, keep)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger."""
        with commit_lock(self._ledger):
            add_columns(self._ledger, columns)

    def path_of(self, table: str) -> str:
        """Return where the files of `depot` or `ledger` lie."""
        return self._depot if table == "depot" else self._ledger

    def table_maintenance(self, table: str, location: str | None = None) -> DeltaRsMaintenance:
        """Return the maintenance of the engine's `depot` or `ledger`, or of such a table at another `location`."""
        return DeltaRsMaintenance(self.path_of(table) if location is None else _path(location), table)

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file or Delta table to ingest."""
        try:
            if format_ == "delta":
                require_safe("file", file)
                table = DeltaTable(file)
                return Input(file, format_, pa.schema(table.schema().to_arrow()), DeltaRsLog(file).table(), table)
            parquet = ParquetFile(file)
        except (DeltaError, TableNotFoundError, pa.ArrowException, OSError) as error:
            raise FileRefused(
                f"{file} cannot be read as {format_}: {first_line(error)}", "Check the file and --format."
            ) from error
        return Input(file, format_, parquet.schema_arrow, None, parquet)

    def transaction(self, application: str, upto: int) -> int | None:
        """Return the version that the depot's log recorded for a transaction id."""
        return latest_table(self._depot, "depot").transaction_version(application)

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
        note: str,
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit."""
        table = open_table(self._depot, "depot")
        payload = of_column(pa.schema(table.schema().to_arrow()))
        application, version = transaction
        # guard: file-once-in-race
        noted = CommitProperties(
            custom_metadata={"userMetadata": note}, app_transactions=[Transaction(application, version)]
        )
        with _rows(given, after) as rows, commit_lock(self._depot), writing(self._depot, "depot"):
            mapped = Counted(mapping.apply(rows, payload), given.file, progress)
            try:
                write_deltalake(
                    table,
                    mapped.reader(),
                    mode="append",
                    commit_properties=noted,
                    post_commithook_properties=UNTRIMMED,
                )
            except CommitFailedError as error:
                raise FileRefused(
                    f"{given.file} is being ingested by another process: {first_line(error)}", "Run it again."
                ) from error
            except Exception as error:
                raise (mapped.failure or error) from error
        return mapped.rows

    def free_number(self, location: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the log of a table has not recorded for a transaction id."""
        return number_after(_path(location), application, least)

    def append_rows(
        self, location: str, rows: Sequence[pa.Table | DataFrame], transaction: tuple[str, int], note: str
    ) -> None:
        """Append rows to a table in one commit, unless its log has this transaction; create it if it is missing."""
        if not all(isinstance(one, pa.Table) for one in rows):
            raise BrokenPromise("without Spark, a function has Arrow tables")
        path, (application, version), together = (
            _path(location),
            transaction,
            pa.concat_tables(rows, promote_options="default"),
        )
        noted = CommitProperties(
            custom_metadata={"userMetadata": note}, app_transactions=[Transaction(application, version)]
        )
        with commit_lock(path, self._settings.durable), writing(path, "depot"):
            if not DeltaTable.is_deltatable(path):
                properties = tables.PROPERTIES | tables.retention(self._settings.keep)
                DeltaTable.create(path, together.schema, mode="ignore", configuration=properties)
            table = open_table(path, "depot")
            recorded = table.transaction_version(application)
            # guard: output-once
            if recorded is None or recorded < version:
                write_deltalake(
                    table, together, mode="append", commit_properties=noted, post_commithook_properties=UNTRIMMED
                )

    @property
    def side_files(self) -> SideFiles:
        """Return the small texts beside the ledger."""
        path = local_path(self._ledger)
        if path is not None:
            return LocalSideFiles(path, self._settings.durable)
        return StoredSideFiles(DeltaRsJournal.beside(self._ledger))

    def live(self) -> Live:
        """Read the live rows, file by file."""
        files, location = self._opened, self._ledger
        snapshot = latest_snapshot(location, "ledger", None if files is None else files.snapshot)
        if files is None or files.snapshot is not snapshot:
            files = self._opened = LedgerFiles(snapshot, embedded_schema(location, snapshot.table), files)
        return Live(files.rows, files, snapshot.version, files.growth)

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Give `handle` the versions after `after`, up to `upto`."""
        self._keep_read(after, upto)
        snapshot = known_snapshot(self._depot, "depot", upto)
        depot, log = identity(snapshot.table), DeltaRsLog(self._depot)
        commits = log.commits(after, upto)
        counts = added(commits, after, upto)
        if any(count != 0 for count in counts.values()):
            conversion = Conversion.of(self._settings, depot, self._as_rows)
            new = {version: count for version, count in conversion.counts(counts).items() if count != 0}
            byte_count, listed = (
                conversion.byte_count(log, after, upto),
                ListedVersions.of(depot.id, after + 1, commits),
            )
            handle(EmbeddedArrivals(listed, new, byte_count, self._settings, conversion, upto, snapshot))

    @property
    def commit_form(self) -> str:
        """Return the form: files that are added in one transaction of delta-rs."""
        return "files"

    def commit_result(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int:
        """Add files with the new rows; the fence is that no version follows the one that was primed."""
        rows = processed.rows
        if not isinstance(rows, pa.Table):
            raise BrokenPromise("the embedded engine processes rows here")
        new = [written(one, live.revision + 1) for one in (rows, control, *processed.states.values())]
        with self._committing(live) as files:
            return files.commit([pa.concat_tables(new[:2]), *new[2:]], {"userMetadata": note})

    def fold(self, live: Live, fold: Fold) -> None:
        """Replace files of live rows; the fence is that of a microbatch."""
        with self._committing(live) as files:
            files.fold(fold, {"userMetadata": fold_note(fold)})

    @contextmanager
    def _committing(self, live: Live) -> Iterator[LedgerFiles]:
        """Commit on top of the files of the primed version. Raises LedgerMoved, TableUnwritable."""
        files = live.open
        if not isinstance(files, LedgerFiles):
            raise BrokenPromise("the live rows were read by their files")
        # guard: embedded-commit-lock
        with commit_lock(self._ledger, self._settings.durable), writing(self._ledger, "ledger"):
            try:
                yield files
            except CommitFailedError as error:
                # guard: commit-failure-told
                if DeltaTable(self._ledger).version() == live.table_version:
                    raise
                raise LedgerMoved(
                    f"the ledger moved between prime and commit: {first_line(error)}",
                    "Another driver, tick or flush committed first. Nothing was written.",
                ) from error


def embedded_schema(location: str, table: DeltaTable) -> pa.Schema:
    """Return the columns of a ledger. Raises TableRefused for another table, and for one that only Spark can read."""
    partitions: list[str] = table.metadata().partition_columns
    if "state" not in partitions:
        raise TableRefused(f"{location} is a Delta table, but not a ledger", "Give the path of a ledger.")
    columns = pa.schema(table.schema().to_arrow())
    schema = ledger_schema_of(columns)
    require_ledger(location, columns.names, schema)
    # guard: files-tell-rows
    if beyond := beyond_files(table):
        raise TableRefused(
            f"the ledger at {location} has {beyond}, which the embedded engine cannot read",
            "Run it with --engine spark. Windrow does not enable such a feature itself.",
        )
    return schema


def _path(location: str) -> str:
    if is_catalog_name(location):
        raise EngineUnavailable(
            f"{location} is the name of a catalog table, which the embedded engine cannot look up",
            f"Give the table's path (DESCRIBE DETAIL {location} shows it), ./{location} for a path of this name, "
            "or run on Spark.",
        )
    return location


class Counted:
    """A stream of rows that counts them and refuses text that is not UTF-8, which readers of the depot cannot read.

    The writer turns an error of the stream into another one, so `failure` keeps the original.
    """

    def __init__(self, source: pa.RecordBatchReader, file: str, progress: Callable[[int], None]) -> None:
        """Count what is read from `source`, the rows of `file`."""
        self._source, self._file, self._progress, self.rows = source, file, progress, 0
        self.failure: WindrowError | None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the stream."""
        return pa.RecordBatchReader.from_batches(self._source.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._source:
                batch.validate(full=True)
                self.rows += batch.num_rows
                self._progress(self.rows)
                yield batch
        except WindrowError as error:
            self.failure = error
            raise
        except (pa.ArrowException, OSError) as error:
            self.failure = FileRefused(
                f"{self._file} cannot be read to its end: {first_line(error)}", "Nothing of it was added to the depot."
            )
            raise self.failure from error


@contextmanager
def _rows(given: Input, after: int | None) -> Iterator[pa.RecordBatchReader]:
    """Read the rows of an input; with `after`, only the rows that a Delta table added after this version."""
    opened = given.handle
    if isinstance(opened, ParquetFile):
        yield pa.RecordBatchReader.from_batches(given.schema, opened.iter_batches())
    elif not isinstance(opened, DeltaTable):
        raise BrokenPromise("the embedded engine opens files and Delta tables")
    elif after is None:
        with scanned(opened) as rows:
            yield rows
    else:
        try:
            feed = plain(changes(opened, after + 1).read_all())
        except DeltaError as error:
            raise ungrown(given.file, after, error) from error
        yield added_rows(feed, given.file).to_reader()


def ungrown(file: str, after: int, error: Exception) -> FileRefused:
    """Return the error for a table that has grown since a version but has no readable change feed."""
    return FileRefused(
        f"{file} has grown since version {after}, and its change feed cannot be read: {first_line(error)}",
        "Switch the feed on (delta.enableChangeDataFeed = true) before it grows, or ingest into a new depot.",
    )


def added_rows(feed: pa.Table, file: str) -> pa.Table:
    """Return the inserted rows of a change feed without its own columns. Raises FileRefused for other changes."""
    inserted = pc.equal(feed[CHANGE], "insert")
    if not pc.all(inserted).as_py() and feed.num_rows:
        raise FileRefused(
            f"{file} has deleted or updated rows since it was ingested", "Only added rows can be ingested."
        )
    return feed.filter(inserted).drop_columns([name for name in FEED_COLUMNS if name in feed.column_names])
