"""Append to a depot with Spark, whose executors write the frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windrow.columnar.arrow import to_plain_types
from windrow.delta import creation
from windrow.delta.log import TableInfo
from windrow.delta.table import unwritable_error
from windrow.engine.spark.engine import SparkEngine
from windrow.engine.spark.errors import BAD_VALUE
from windrow.errors import ExpressionError, InputFileError, first_line
from windrow.expressions import ColumnMapping
from windrow.ingest.writer import DepotWriter, IngestInput, absolute_path, added_rows, no_feed_error
from windrow.model.commits import CHANGE, FEED_COLUMNS, note_of
from windrow.model.payload import of_column
from windrow.rows.session_settings import ALIKE, WHOLE_TIMES, session_with
from windrow.source.spark import feed_of


class SparkWriter(DepotWriter):
    """Appends with Spark."""

    engine: SparkEngine

    def create(self, payload: pa.DataType | None, retention: str) -> None:
        """Create an empty depot unless it exists."""
        columns, comment = creation.depot_columns(self._created_type(payload))
        self.engine.create(self.place, columns.empty_table(), comment, retention)
        if (table := self.log.table()) is not None:
            creation.require_kind(table.schema, self.settings.depot, raw=payload is None)

    def open_input(self, file: str, format_: str) -> IngestInput:
        """Open a file or Delta table to ingest."""
        try:
            table = self.engine.log(absolute_path(file)).table() if format_ == "delta" else None
            reader = self.engine.session.read.format(format_)
            frame = (reader if table is None else reader.option("versionAsOf", table.version)).load(absolute_path(file))
        except Exception as error:  # the reader of a format may raise anything
            raise InputFileError(
                f"{file} cannot be read as {format_}: {first_line(error)}", "Check the file and --format."
            ) from error
        return IngestInput(file, to_plain_types(frame.limit(0).toArrow()).schema, table, frame)

    def append(
        self,
        input_: IngestInput,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
        note: str,
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit."""
        depot = self.depot()
        with self._map_rows(self._rows(input_, after), input_, mapping) as rows, self.engine.lock(self.place):
            self.engine.append_written(self.place, rows.write.option("userMetadata", note), transaction)
        commits = self.log.commits(depot.version + 1)
        appended = sum(commit.rows or 0 for commit in commits if commit.version > depot.version)
        progress(appended)
        return appended

    def append_batch(self, input_: IngestInput, mapping: ColumnMapping, query: str, number: int) -> bool:
        """Append a batch of a streaming query to the depot in one commit, unless the depot has it.

        The commit's note describes the batch. If the number belongs to another batch, because the checkpoint of the
        query was damaged, the rows are appended under a name of their own. Returns whether that happened.
        """
        before, log = self.depot().version, self.log
        with self._map_rows(cast("DataFrame", input_.handle), input_, mapping) as rows:
            batch = StreamBatch.of(rows, query, number)
            writer = rows.write.option("userMetadata", batch.note)
            with self.engine.lock(self.place):
                self.engine.append_written(self.place, writer, (query, number))
                # guard: stream-batch-compared
                if batch.is_in(log.history(before + 1)) or batch.is_in(log.history(0)):
                    return False
                self.engine.append_written(self.place, writer, (batch.name, 0))
        return True

    @contextmanager
    def _map_rows(self, rows: DataFrame, input_: IngestInput, mapping: ColumnMapping) -> Iterator[DataFrame]:
        """Yield the rows of an input as messages to append. Raises ExpressionError, TableUnwritableError."""
        try:
            with session_with(self.engine.session, ALIKE), session_with(self.engine.session, WHOLE_TIMES):
                mapped = rows.selectExpr(*mapping.spark_select(of_column(self.depot().schema)))
                texts = [name for name, kind in mapped.dtypes if kind == "string"]
                yield mapped.withColumns({name: F.validate_utf8(name) for name in texts})
        except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
            if isinstance(error, PySparkException) or BAD_VALUE in str(error):
                raise ExpressionError(
                    f"{input_.file} cannot be mapped to messages: {first_line(error)}", "See [ingest.columns]."
                ) from error
            raise unwritable_error(self.place, "depot", error) from error

    def _rows(self, input_: IngestInput, after: int | None) -> DataFrame:
        """Return the rows of an input; with `after`, only the rows that a Delta table added after this version."""
        if after is None:
            return cast("DataFrame", input_.handle)
        last_version = cast("TableInfo", input_.table).version
        try:
            feed = feed_of(self.engine.session, absolute_path(input_.file), after + 1, last_version)
            others = to_plain_types(feed.where(F.col(CHANGE) != "insert").limit(1).toArrow())
        except PySparkException as error:
            raise no_feed_error(input_.file, after, error) from error
        added_rows(others, input_.file)
        return feed.drop(*FEED_COLUMNS)


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a streaming query: the transaction id of the query, and the batch's number, rows and digest.

    A number alone does not identify a batch: if the newest files of a checkpoint are lost, Spark reuses the number for
    other rows. So the commit to the depot notes the number of rows, and a digest that depends neither on their order
    nor on partitions: the sum of a hash of each row.
    """

    query: str
    batch: int
    rows: int
    digest: str

    @classmethod
    def of(cls, rows: DataFrame, query: str, number: int) -> Self:
        """Compute the digest of the messages of a batch."""
        columns = [F.col(name) for name in rows.columns]
        hashed = F.xxhash64(*columns, *[column.isNull() for column in columns])  # which skips NULL
        count, digest = rows.select(F.count("*"), F.sum(hashed.cast("decimal(20, 0)"))).collect()[0]
        return cls(query, number, count, str(digest or 0))

    @property
    def note(self) -> str:
        """Return the user metadata of the commit."""
        return json.dumps(asdict(self))

    @property
    def name(self) -> str:
        """Return a separate transaction id, for a batch whose number belongs to another one."""
        return f"{self.query}/{self.batch}/{self.digest}"

    def is_in(self, commits: Iterable[Mapping[str, Any]]) -> bool:
        """Tell whether one of the commits added this batch."""
        return any(note_of(commit) == asdict(self) for commit in commits)
