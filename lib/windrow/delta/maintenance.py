"""Maintain a table at a path with delta-rs: compact small files, delete old ones, trim the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyarrow.fs import FileSystem
from pyarrow.parquet import ParquetFile

from windrow.delta import durable
from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.logfiles import entry_path
from windrow.delta.query import Relation, TableRows, execute
from windrow.delta.table import files_in, history, open_table, translate_read_errors, translate_write_errors
from windrow.model.tables import PROGRESS, is_topology_ledger, reached_query, reached_version

TARGET_SIZE = 100 * 1024 * 1024  # bytes, what delta-rs compacts to unless the table has its own setting
ATTEMPTS = 5
Done = TypeVar("Done")


# Features of Delta for which delta-rs compacts and cleans up as Spark does.
KNOWN_FEATURES = {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """How many files a compaction removed and added (None: unknown in a dry run)."""

    removed: int
    added: int | None


class TableMaintenance(Protocol):
    """Maintains a table, with delta-rs or Spark."""

    def unsupported_reason(self) -> str | None:
        """Return why delta-rs must not maintain the table, None if it can."""

    def depot_version_before(self, before: int, depot_id: str) -> int:
        """Return the depot version up to which this ledger had read at time `before` (microseconds), -1 for none."""

    def description(self) -> str:
        """Return the table's comment."""

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties in a separate commit."""

    def compact(self, state: str | None, dry_run: bool, below: int | None = None) -> CompactionResult | None:
        """Merge small files."""

    def compaction_time(self, since: int) -> int | None:
        """Return the time of the last compaction (microseconds), None if there was none since `since`."""

    def vacuum(self, dry_run: bool) -> int:
        """Delete files that no version within the table's retention needs, and return how many."""

    def log_file_time(self, version: int) -> int | None:
        """Return the time of a version's log file (microseconds), None for a table that is not on a local disk."""

    def trim_log(self) -> None:
        """Write a checkpoint, and delete log entries that the table's retention no longer needs."""


@dataclass(frozen=True, slots=True)
class DeltaRsMaintenance:
    """Maintains a table at a path, without a JVM."""

    location: str
    role: str

    def unsupported_reason(self) -> str | None:
        """Return why delta-rs must not maintain the table, None if it can.

        delta-rs would delete the files of deletion vectors, and change INT96 times outside 1677 to 2262.
        """
        table = open_table(self.location, self.role)
        protocol, properties = table.protocol(), table.metadata().configuration
        features = {*(protocol.reader_features or []), *(protocol.writer_features or [])} - KNOWN_FEATURES
        if properties.get("delta.columnMapping.mode", "none") != "none":
            features.add("columnMapping")
        if features:
            return f"only Spark can maintain a table with {', '.join(sorted(features))}"
        if self._has_long_times(table):
            return "it has files with INT96 times, which only Spark compacts without changing them"
        return None

    def description(self) -> str:
        """Return the table's comment."""
        return str(open_table(self.location, self.role).metadata().description or "")

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        configuration: dict[str, str] = open_table(self.location, self.role).metadata().configuration
        return configuration

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties in a separate commit."""
        self._commit(lambda table: table.alter.set_table_properties(dict(properties)))

    def compact(self, state: str | None, dry_run: bool, below: int | None = None) -> CompactionResult:
        """Merge small files.

        A microbatch that commits meanwhile would make this fail. On a local disk the microbatch waits for the lock;
        elsewhere the compaction is tried again.
        """
        if dry_run:
            return CompactionResult(self._small_files(state, below or TARGET_SIZE), None)
        partition = None if state is None else [("state", "=", state)]
        metrics = self._commit(lambda table: table.optimize.compact(partition, target_size=below))
        return CompactionResult(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))

    def compaction_time(self, since: int) -> int | None:
        """Return the time of the last compaction (microseconds), None if there was none since `since`."""
        with translate_read_errors(self.location, self.role):
            for commit in history(open_table(self.location, self.role)):
                committed_at = int(commit["timestamp"]) * 1_000
                if committed_at < since:
                    return None
                if commit.get("operation") == "OPTIMIZE":
                    return committed_at
        return None

    def vacuum(self, dry_run: bool) -> int:
        """Delete files that no version within the table's retention needs, and return how many.

        It lists all files in the directory. The log alone does not name the files of the change feed, of failed
        commits, and of removals that a checkpoint has dropped.
        """
        with translate_read_errors(self.location, self.role):
            files = open_table(self.location, self.role).vacuum(dry_run=True, full=True)
        if dry_run or not files:
            return len(files)  # without files to delete it would only make two commits
        return len(self._commit(lambda table: table.vacuum(dry_run=False, full=True)))

    def depot_version_before(self, before: int, depot_id: str) -> int:
        """Return the depot version up to which this ledger had read at time `before` (microseconds), -1 for none."""
        table = open_table(self.location, self.role)
        columns = pa.schema(table.schema().to_arrow()).names
        started = f"epoch_us({'h.' if is_topology_ledger(columns) else ''}started_at)"
        rows = TableRows(table, self.location, self.role)
        named = Relation(["microbatch", PROGRESS], columns)
        with rows.connect({"ledger": named}, {}) as connection:
            result = execute(connection, reached_query(columns, "ledger", started, before)).read_all()
        return reached_version(result.to_pylist(), depot_id)

    def log_file_time(self, version: int) -> int | None:
        """Return the time of a version's log file (microseconds), None for a table that is not on a local disk."""
        path = local_path(self.location)
        if path is None:
            return None
        with translate_read_errors(self.location, self.role):
            return (path / entry_path(version)).stat().st_mtime_ns // 1_000

    def trim_log(self) -> None:
        """Write a checkpoint, and delete log entries that the table's retention no longer needs."""

        def trim(table: DeltaTable) -> None:
            table.create_checkpoint()
            if (root := local_path(self.location)) is not None:
                # guard: checkpoint-first
                durable.sync_checkpoint(root, table.version())
            table.cleanup_metadata()

        self._commit(trim)

    def _commit(self, change: Callable[[DeltaTable], Done]) -> Done:
        """Change the latest version of the table; try again if another commit came in between."""
        left = ATTEMPTS
        while True:
            left -= 1
            with commit_lock(self.location), translate_write_errors(self.location, self.role):
                try:
                    return change(open_table(self.location, self.role))
                except CommitFailedError:
                    if not left:
                        raise

    def _has_long_times(self, table: DeltaTable) -> bool:
        """Tell whether a file that a compaction would merge has INT96 times, which are Spark's default."""
        times = [field.name for field in pa.schema(table.schema().to_arrow()) if pa.types.is_timestamp(field.type)]
        if not times:
            return False
        store = files_in(self.location)
        with translate_read_errors(self.location, self.role):
            files = pa.table(pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all())
            small = files.filter(pc.less(files["size_bytes"], TARGET_SIZE))["path"].to_pylist()
            return any(_has_int96(store, path) for path in small)

    def _small_files(self, state: str | None, below: int) -> int:
        """Return how many files of a partition are small enough to be merged."""
        table = open_table(self.location, self.role)
        with translate_read_errors(self.location, self.role):
            files = pa.table(pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all())
        if state is not None:
            files = files.filter(pc.equal(files["partition.state"].cast(pa.string()), state))
        small = int(pc.sum(pc.less(files["size_bytes"], below)).as_py() or 0)
        return small if small > 1 else 0


def _has_int96(store: FileSystem, path: str) -> bool:
    with store.open_input_file(path) as file:
        schema = ParquetFile(file).schema
        return any(schema.column(number).physical_type == "INT96" for number in range(len(schema)))
