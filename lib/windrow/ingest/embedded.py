"""Append to a depot with delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyarrow.parquet import ParquetFile

from windrow.columnar.arrow import to_plain_types
from windrow.delta.creation import create_depot
from windrow.delta.locations import require_safe
from windrow.delta.log import DeltaRsLog
from windrow.delta.row_changes import changes
from windrow.delta.table import UNTRIMMED, open_table, scan_rows, translate_write_errors
from windrow.errors import InputFileError, InternalError, WindrowError, first_line
from windrow.expressions import ColumnMapping
from windrow.ingest.writer import DepotWriter, IngestInput, added_rows, no_feed_error
from windrow.model.payload import of_column


class EmbeddedWriter(DepotWriter):
    """Appends with delta-rs."""

    def create(self, payload: pa.DataType | None, retention: str) -> None:
        """Create an empty depot unless it exists."""
        create_depot(self.place, self._created_type(payload), retention)

    def open_input(self, file: str, format_: str) -> IngestInput:
        """Open a file or Delta table to ingest."""
        try:
            if format_ == "delta":
                require_safe("file", file)
                table = DeltaTable(file)
                return IngestInput(file, pa.schema(table.schema().to_arrow()), DeltaRsLog(file).table(), table)
            parquet = ParquetFile(file)
        except (DeltaError, TableNotFoundError, pa.ArrowException, OSError) as error:
            raise InputFileError(
                f"{file} cannot be read as {format_}: {first_line(error)}", "Check the file and --format."
            ) from error
        return IngestInput(file, parquet.schema_arrow, None, parquet)

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
        table = open_table(self.place, "depot")
        payload = of_column(pa.schema(table.schema().to_arrow()))
        application, version = transaction
        # guard: file-once-in-race
        noted = CommitProperties(
            custom_metadata={"userMetadata": note}, app_transactions=[Transaction(application, version)]
        )
        with _rows(input_, after) as rows, self.engine.lock(self.place), translate_write_errors(self.place, "depot"):
            mapped = CountingReader(mapping.apply(rows, payload), input_.file, progress)
            try:
                write_deltalake(
                    table, mapped.reader(), mode="append", commit_properties=noted, post_commithook_properties=UNTRIMMED
                )
            except CommitFailedError as error:
                raise InputFileError(
                    f"{input_.file} is being ingested by another process: {first_line(error)}", "Run it again."
                ) from error
            except Exception as error:
                raise (mapped.failure or error) from error
        return mapped.rows


class CountingReader:
    """A stream of rows that counts them and refuses text that is not UTF-8, which readers of the depot cannot read.

    The writer turns an error of the stream into a different one, so `failure` keeps the original.
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
            self.failure = InputFileError(
                f"{self._file} cannot be read to its end: {first_line(error)}", "None of it was added to the depot."
            )
            raise self.failure from error


@contextmanager
def _rows(input_: IngestInput, after: int | None) -> Iterator[pa.RecordBatchReader]:
    """Read the rows of an input; with `after`, only the rows that a Delta table added after this version."""
    opened = input_.handle
    if isinstance(opened, ParquetFile):
        yield pa.RecordBatchReader.from_batches(input_.schema, opened.iter_batches())
    elif not isinstance(opened, DeltaTable):
        raise InternalError("the embedded engine opens files and Delta tables")
    elif after is None:
        with scan_rows(opened) as rows:
            yield rows
    else:
        try:
            feed = to_plain_types(changes(opened, after + 1).read_all())
        except DeltaError as error:
            raise no_feed_error(input_.file, after, error) from error
        yield added_rows(feed, input_.file).to_reader()
