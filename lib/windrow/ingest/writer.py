"""Append messages to a depot: from files, Delta tables and frames, mapped to the columns of a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute as pc

from windrow.delta.log import Log, TableInfo
from windrow.delta.mending import mend_tables
from windrow.delta.table import missing_error
from windrow.engine import Engine
from windrow.errors import InputFileError, first_line
from windrow.expressions import ColumnMapping
from windrow.model.commits import CHANGE, FEED_COLUMNS
from windrow.model.payload import parse
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.parquet import ParquetFile
    from pyspark.sql import DataFrame

Handle: TypeAlias = Union["DeltaTable", "ParquetFile", "DataFrame"]


@dataclass(frozen=True, slots=True)
class IngestInput:
    """A file or Delta table to ingest: its columns, the identity of a Delta table, and the engine's handle on it."""

    file: str
    schema: pa.Schema
    table: TableInfo | None
    handle: Handle


class DepotWriter(Protocol):
    """Appends to the depot of the settings."""

    engine: Engine
    settings: Settings
    place: str

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Open nothing yet. Raises EngineUnavailableError for a location that the engine cannot reach."""
        self.engine, self.settings = engine, settings
        self.place = engine.place(settings.depot)

    def create(self, payload: pa.DataType | None, retention: str) -> None:
        """Create an empty depot unless it exists: a raw one if `payload` is None.

        `retention` is how long it keeps its log and removed files. Raises IncompatibleTableError if a depot of the
        other kind exists.
        """

    def open_input(self, file: str, format_: str) -> IngestInput:
        """Open a file (`parquet`) or a Delta table (`delta`) to ingest. Raises InputFileError."""

    def input_log(self, input_: IngestInput) -> Log:
        """Return the log of a Delta table to ingest."""
        return self.engine.log(absolute_path(input_.file))

    def append(
        self,
        input_: IngestInput,
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

    def repair(self) -> None:
        """Set aside what a power cut left of the depot, and of the ledger that reads it, on a local disk."""
        mend_tables([self.place], self.engine.place(self.settings.ledger))

    @property
    def log(self) -> Log:
        """Return the log of the depot."""
        return self.engine.log(self.place)

    def depot(self) -> TableInfo:
        """Return the depot as it is. Raises TableMissingError."""
        table = self.log.table()
        if table is None:
            raise missing_error(self.settings.depot, "depot")
        return table

    def _created_type(self, payload: pa.DataType | None) -> pa.DataType | None:
        """Return the payload type of a depot to create: the one that is set, unless an expression makes the payload."""
        payload_type = self.settings.payload_type
        is_set = payload is not None and payload_type and "payload" not in self.settings.depot_columns
        return parse(payload_type) if is_set else payload


def absolute_path(file: str) -> str:
    """Return the absolute path of an input, because Spark may have another working directory."""
    return file if "://" in file else str(Path(file).resolve())


def no_feed_error(file: str, after: int, error: Exception) -> InputFileError:
    """Return the error for a table that has grown since a version but has no readable change feed."""
    return InputFileError(
        f"{file} has grown since version {after}, and its change feed cannot be read: {first_line(error)}",
        "Switch the feed on (delta.enableChangeDataFeed = true) before the table grows, or ingest into a new depot.",
    )


def added_rows(feed: pa.Table, file: str) -> pa.Table:
    """Return the inserted rows of a change feed without its own columns. Raises InputFileError for other changes."""
    inserted = pc.equal(feed[CHANGE], "insert")
    if not pc.all(inserted).as_py() and feed.num_rows:
        raise InputFileError(
            f"{file} has deleted or updated rows since it was ingested", "Only added rows can be ingested."
        )
    return feed.filter(inserted).drop_columns([name for name in FEED_COLUMNS if name in feed.column_names])
