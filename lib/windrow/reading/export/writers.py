"""The writers of an export, one for each format: each yields a function that writes a piece to an open file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from windrow.reading.export.text import csv_text, json_lines

Format = Literal["parquet", "csv", "json", "raw"]
Write = Callable[[pa.RecordBatch], None]


def open_writer(format_: Format, sink: BinaryIO, schema: pa.Schema) -> AbstractContextManager[Write]:
    """Open a writer for rows of a schema; leaving it completes the content, and the file stays open."""
    return {"parquet": _parquet, "csv": _csv, "json": _json, "raw": _raw}[format_](sink, schema)


@contextmanager
def _parquet(sink: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with pa.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextmanager
def _csv(sink: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    """Write a header and rows; text is quoted, NULL is empty and unquoted."""
    head = csv_text(pa.RecordBatch.from_pylist([], schema))
    with pa.csv.CSVWriter(pa.PythonFile(sink, "w"), head.schema) as writer:
        yield lambda rows: writer.write_batch(csv_text(rows))


@contextmanager
def _json(sink: BinaryIO, _: pa.Schema) -> Iterator[Write]:
    """Write one JSON object on each line."""

    def write(rows: pa.RecordBatch) -> None:
        sink.write(json_lines(rows))

    yield write


@contextmanager
def _raw(sink: BinaryIO, _: pa.Schema) -> Iterator[Write]:
    """Write the bytes of all records one after the other, unchanged."""

    def write(rows: pa.RecordBatch) -> None:
        sink.writelines(content.as_buffer() for content in rows["content"])

    yield write
