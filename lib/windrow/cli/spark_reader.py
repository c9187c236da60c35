"""Read a depot and a ledger with Spark, for commands that usually read them with delta-rs.

Only Spark can read some tables: those with features that delta-rs does not know, those in a catalog or a file system
that delta-rs cannot reach, and depots whose mapping needs Spark SQL. A version of the ledger is copied into a plain
table in a temporary directory. The depot's changes are read as messages, mapped by Spark. Both pass through the driver,
except for `verify`, which leaves messages on the executors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windrow.columnar.arrow import copy_nested, to_plain_types
from windrow.delta.locations import reference
from windrow.delta.log import TableInfo
from windrow.delta.scratch import scratch_directory
from windrow.delta.table import missing_error, open_table
from windrow.engine.spark.engine import SparkEngine
from windrow.engine.spark.log import SparkLog, detail
from windrow.errors import NotFoundError, first_line
from windrow.expressions import recorded_text
from windrow.ledger import ledger_of
from windrow.ledger.open_batches import collect_rows
from windrow.model import messages, tables
from windrow.model.commits import CHANGE, VERSION
from windrow.reading.tables import reading_through
from windrow.rows.frame import frame_of
from windrow.rows.session_settings import ALIKE, session_with
from windrow.settings.settings import Settings
from windrow.source.conversion import Conversion
from windrow.source.spark import feed_of
from windrow.topology.states_table import SparkStates

Copies: TypeAlias = Literal["all", "headers", "books"]
BATCHES_AND_REJECTIONS = [tables.OPEN, "closed", "rejected"]


@contextmanager
def reading_by_spark(chosen: Settings, copies: Copies) -> Iterator[None]:
    """Let Spark read the tables of some settings inside the block, copying as much of the ledger as `copies` says."""
    engine = SparkEngine(chosen)
    with (
        scratch_directory() as directory,
        session_with(engine.session, ALIKE),
        reading_through(SparkReader(chosen, engine, directory, copies)),
    ):
        yield


@dataclass(frozen=True, slots=True)
class SparkReader:
    """Reads the two tables of the settings; copies of ledger versions go into `directory`.

    A copy of `headers` has batches without messages, which suffices for figures about them. A copy of `books` has only
    those batches and rejections that amendments supersede, unless the ledger reads a raw depot; the others stay on the
    executors. In every copy, the rows of a topology's states lack their values.
    """

    settings: Settings
    engine: SparkEngine
    directory: Path
    copies: Copies = "all"

    def ledger(self, location: str, version: int | None) -> tuple[DeltaTable, int]:
        """Return a plain table with the rows of a ledger at a version (default: the latest), and the version.

        The ledger of a replay is already such a table. Raises TableMissingError, TableUnreadableError, NotFoundError
        for a version that does not exist (any more).
        """
        if location != self.settings.ledger:
            table = open_table(location, "ledger")
            return table, table.version()
        latest = ledger_of(self.engine, self.settings).table()
        if latest is None:
            raise missing_error(location, "ledger")
        version = latest.version if version is None else version
        copy = str(self.directory / f"ledger-{version}")
        if not DeltaTable.is_deltatable(copy):
            try:
                frame = self._at(location, version)
            except PySparkException as error:
                raise NotFoundError(
                    f"ledger version {version} cannot be read: {first_line(error)}", f"The latest is {latest.version}."
                ) from error
            rows = copy_nested(collect_rows(self._select_copied(frame), location))
            write_deltalake(copy, rows, partition_by=["state"])
        return DeltaTable(copy), version

    def ledger_rows(self, location: str, version: int) -> DataFrame:
        """Return the rows of a ledger at a version that count, on the executors."""
        at = f"{reference(location)} VERSION AS OF {version:d}"
        return self.engine.session.sql(tables.spark_rows_that_count(at, self._at(location, version).columns))

    def _at(self, location: str, version: int) -> DataFrame:
        return self.engine.session.sql(f"SELECT * FROM {reference(location)} VERSION AS OF {version:d}")

    def _select_copied(self, frame: DataFrame) -> DataFrame:
        """Return the rows of a ledger that are copied."""
        if tables.is_topology_ledger(frame.columns):
            own = tables.topology_schema(raw=True).names
            return frame.select([name for name in frame.columns if name in own])
        if self.copies == "books" and not tables.reads_raw_depot(frame.columns):
            state = F.col("state")
            gone = frame.where("state = 'superseded'").select(F.col("superseded_id").alias("gone_id"))
            superseded = frame.where(state.isin("closed", "rejected")).join(
                F.broadcast(gone), F.col("id") == F.col("gone_id"), "left_semi"
            )

            return frame.where(~state.isin(BATCHES_AND_REJECTIONS)).unionByName(superseded)
        if self.copies == "headers":
            return frame.withColumn("messages", F.lit(None).cast(frame.schema["messages"].dataType))
        return frame

    def ledger_log(self) -> SparkTable:
        """Return the log of the ledger."""
        return SparkTable(self.engine, self.settings.ledger)

    def version_after(self, microbatch: int) -> int:
        """Return the version of the ledger that a microbatch committed. Raises NotFoundError."""
        return SparkStates(self.engine.session, self.settings.ledger).version_after(microbatch)

    def depot(self, location: str) -> SparkDepot:
        """Return a depot. Raises TableMissingError."""
        table = self.engine.log(self.engine.place(location)).table()
        if table is None:
            raise missing_error(location, "depot")
        return SparkDepot(self.engine, location, self.settings, table)


@dataclass(frozen=True, slots=True)
class SparkTable:
    """The log of a table, with the answers that a `DeltaTable` would give."""

    engine: SparkEngine
    location: str

    @property
    def log(self) -> SparkLog:
        """Return the log, which Spark reads wherever it is."""
        return SparkLog(self.engine.session, reference(self.location))

    def earliest(self) -> int:
        """Return the first version that is in the log."""
        return min(commit.version for commit in self.log.commits())

    def metadata(self) -> SimpleNamespace:
        """Return the `id` of the table, and its properties as `configuration`."""
        properties = detail(self.engine.session, reference(self.location)) or {"id": None, "properties": {}}
        return SimpleNamespace(id=properties["id"], configuration=properties["properties"])

    def history(self, since: int) -> list[dict[str, Any]]:
        """Return the commits from a version on, newest first."""
        return self.log.history(since)


@dataclass(frozen=True, slots=True)
class SparkDepot(SparkTable):
    """A depot whose changes Spark reads and maps, with the interface of a `DeltaTable` of messages or raw chunks.

    `recorded` has the mappings (JSON) of versions that a ledger has read; the settings map all other versions.
    """

    settings: Settings
    table: TableInfo
    recorded: Mapping[int, str | None] = field(default_factory=dict)

    def with_mappings(self, recorded: Mapping[int, str | None]) -> Self:
        """Return the depot with the mappings that the history of a ledger recorded."""
        return replace(self, recorded=recorded)

    @property
    def needs_feed(self) -> bool:
        """Tell whether only the change data feed says which version added a row."""
        return not self.engine.names_files(self.engine.place(self.location))

    def version(self) -> int:
        """Return the latest version."""
        return self.table.version

    def schema(self) -> SimpleNamespace:
        """Return the schema, with its `fields`, of the rows that `load_cdf` returns."""
        return SimpleNamespace(fields=list(self._columns), to_arrow=lambda: self._columns)

    @property
    def _columns(self) -> pa.Schema:
        conversion = Conversion.of(self.settings, self.table)
        if self.table.raw:
            return self.table.schema
        own = self.table.schema if conversion.mapping is None else messages.schema(conversion.payload)
        return own.append(pa.field(messages.INVALID_VALUE, pa.string()))

    def load_cdf(self, first: int, last: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that versions added, with the columns of a change feed; none beyond the latest version.

        Raises OSError for versions that cannot be read (any more).
        """
        last = self.table.version if last is None else last
        names = [*(columns or self._columns.names)]
        names += [name for name in (CHANGE, VERSION) if name not in names]
        try:
            return to_plain_types(self.frame(first, last).select(names).toArrow())
        except PySparkException as error:
            raise OSError(first_line(error)) from error

    def frame(self, first: int, last: int) -> DataFrame:
        """Return the rows that versions added, with the columns of `schema`, on the executors."""
        parts = [self._map_messages(*span) for span in self._alike(first, min(last, self.table.version)).items()]
        if parts:
            return reduce(DataFrame.unionByName, parts)
        columns = self._columns.append(pa.field(CHANGE, pa.string())).append(pa.field(VERSION, pa.int64()))
        return frame_of(self.engine.session, columns.empty_table())

    def _alike(self, first: int, last: int) -> dict[str | None, list[int]]:
        alike: dict[str | None, list[int]] = {}
        for version in range(first, last + 1):
            text = self.recorded.get(version, recorded_text(self.settings.depot_columns))
            alike.setdefault(text, []).append(version)
        return alike

    def _map_messages(self, text: str | None, versions: list[int]) -> DataFrame:
        feed = feed_of(self.engine.session, self.location, versions[0], versions[-1])
        added = feed.where((F.col(CHANGE) == "insert") & F.col(VERSION).isin(versions))
        settings = self.settings.model_copy(update={"depot_columns": json.loads(text or "{}")})
        frame = Conversion.of(settings, self.table).map_feed(added)
        if self.table.raw or messages.INVALID_VALUE in frame.columns:
            return frame
        return frame.withColumn(messages.INVALID_VALUE, F.lit(None).cast("string"))
