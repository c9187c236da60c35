"""Looking after a table at a path with delta-rs: small files made large, old ones removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyarrow.parquet import ParquetFile

from windrow.delta import durable
from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.logfiles import entry_path
from windrow.delta.table import history, open_table, reading, writing
from windrow.model.tables import is_of_topology, reached, reached_of

TARGET_SIZE = 100 * 1024 * 1024  # bytes, what delta-rs compacts to unless the table has a property of its own
ATTEMPTS = 5
Done = TypeVar("Done")


# Features of Delta with which delta-rs compacts and cleans up as Spark would.
KNOWN_FEATURES = {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "v2Checkpoint"}


@dataclass(frozen=True, slots=True)
class Compacted:
    """How many files a compaction replaced by how many (None: only done will tell)."""

    removed: int
    added: int | None


@dataclass(frozen=True, slots=True)
class DeltaRsMaintenance:
    """Looks after a table at a path, without a JVM."""

    location: str
    role: str

    def obstacle(self) -> str | None:
        """Say why delta-rs must keep its hands off the table: what it does not know there, it would harm.

        It takes the files of deletion vectors for strangers, and times in 96 bits beyond 1677 to 2262 for others.
        """
        table = open_table(self.location, self.role)
        protocol, properties = table.protocol(), table.metadata().configuration
        features = {*(protocol.reader_features or []), *(protocol.writer_features or [])} - KNOWN_FEATURES
        if properties.get("delta.columnMapping.mode", "none") != "none":
            features.add("columnMapping")
        if features:
            return f"only Spark can look after a table with {', '.join(sorted(features))}"
        if self._has_long_times(table):
            return "it has files with times in 96 bits (INT96), which only Spark puts together as they are"
        return None

    def description(self) -> str:
        """Return the table's comment."""
        return str(open_table(self.location, self.role).metadata().description or "")

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        configuration: dict[str, str] = open_table(self.location, self.role).metadata().configuration
        return configuration

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties in a commit of its own."""
        self._commit(lambda table: table.alter.set_table_properties(dict(properties)))

    def compact(self, state: str | None, dry_run: bool, below: int | None = None) -> Compacted:
        """Make large files of small ones.

        A microbatch that commits meanwhile would make it fail: on this disk it waits for the lock, elsewhere the
        compaction tries again.
        """
        if dry_run:
            return Compacted(self._small_files(state, below or TARGET_SIZE), None)
        chosen = None if state is None else [("state", "=", state)]
        metrics = self._commit(lambda table: table.optimize.compact(chosen, target_size=below))
        return Compacted(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))

    def compacted_at(self, since: int) -> int | None:
        """Return when files were last put together, None when not since then (microseconds)."""
        with reading(self.location, self.role):
            for commit in history(open_table(self.location, self.role)):
                committed_at = int(commit["timestamp"]) * 1_000
                if committed_at < since:
                    return None
                if commit.get("operation") == "OPTIMIZE":
                    return committed_at
        return None

    def vacuum(self, dry_run: bool) -> int:
        """Delete files that no version within the table's retention needs, and return how many.

        All files that are there are looked at. To go by the log alone would leave those of the change feed, those of
        commits that failed, and for ever those of which a checkpoint has forgotten that they were removed.
        """
        with reading(self.location, self.role):
            found = open_table(self.location, self.role).vacuum(dry_run=True, full=True)
        if dry_run or not found:
            return len(found)  # with nothing to delete there would be two commits that say so
        return len(self._commit(lambda table: table.vacuum(dry_run=False, full=True)))

    def reached(self, before: int, depot_id: str) -> int:
        """Return up to which version of a depot a ledger had read it at a time (microseconds), -1 for not at all."""
        table = open_table(self.location, self.role)
        columns = pa.schema(table.schema().to_arrow()).names
        started = f"CAST({'h.' if is_of_topology(columns) else ''}started_at AS BIGINT)"
        asked = reached(columns, "ledger", started, before)
        with reading(self.location, self.role):
            found = pa.table(QueryBuilder().register("ledger", table).execute(asked).read_all())
        return reached_of(found.to_pylist(), depot_id)

    def logged_at(self, version: int) -> int | None:
        """Return when the log's file of a version was written (microseconds), None for a table that is elsewhere."""
        path = local_path(self.location)
        if path is None:
            return None
        with reading(self.location, self.role):
            return (path / entry_path(version)).stat().st_mtime_ns // 1_000

    def trim_log(self) -> None:
        """Write a checkpoint, and delete what is older than the last one that the table's retention no longer needs."""

        def trim(table: DeltaTable) -> None:
            table.create_checkpoint()
            if (root := local_path(self.location)) is not None:
                # guard: checkpoint-first
                durable.keep_checkpoint(root, table.version())
            table.cleanup_metadata()

        self._commit(trim)

    def _commit(self, change: Callable[[DeltaTable], Done]) -> Done:
        """Change the table as it is now, again when somebody else's commit came between."""
        left = ATTEMPTS
        while True:
            left -= 1
            with commit_lock(self.location), writing(self.location, self.role):
                try:
                    return change(open_table(self.location, self.role))
                except CommitFailedError:
                    if not left:
                        raise

    def _has_long_times(self, table: DeltaTable) -> bool:
        """Tell whether a file that a compaction would take has a time as Spark writes it unless told otherwise."""
        times = [field.name for field in pa.schema(table.schema().to_arrow()) if pa.types.is_timestamp(field.type)]
        if not times:
            return False
        store = PyFileSystem(DeltaStorageHandler(self.location))
        with reading(self.location, self.role):
            files = pa.table(pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all())
            small = files.filter(pc.less(files["size_bytes"], TARGET_SIZE))["path"].to_pylist()
            return any(_has_int96(store, path) for path in small)

    def _small_files(self, state: str | None, below: int) -> int:
        """Return how many files are small enough to be put together with another one of their partition."""
        table = open_table(self.location, self.role)
        with reading(self.location, self.role):
            files = pa.table(pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all())
        if state is not None:
            files = files.filter(pc.equal(files["partition.state"].cast(pa.string()), state))
        small = int(pc.sum(pc.less(files["size_bytes"], below)).as_py() or 0)
        return small if small > 1 else 0


def _has_int96(store: PyFileSystem, path: str) -> bool:
    with store.open_input_file(path) as file:
        schema = ParquetFile(file).schema
        return any(schema.column(number).physical_type == "INT96" for number in range(len(schema)))
