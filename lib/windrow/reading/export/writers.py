"""Write the rows of an export in each format. In text, times are ISO 8601 in UTC and bytes are base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from windrow.reading.values import finite

Format = Literal["parquet", "csv", "json", "raw"]
Write = Callable[[pa.RecordBatch], object]
TEXT = pa.large_string()  # a piece may exceed the 2 GiB limit of plain strings


@contextmanager
def open_writer(format_: Format, sink: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    """Yield what writes rows of a schema; leaving it completes the content, and the file stays open.

    A csv has a header, text is quoted, and NULL is empty and unquoted. A json has one object on each line, `raw` the
    bytes of all records one after the other, unchanged.
    """
    if format_ == "parquet":
        with pa.parquet.ParquetWriter(sink, schema, compression="zstd") as parquet:
            yield parquet.write_batch
    elif format_ == "csv":
        head = csv_text(pa.RecordBatch.from_pylist([], schema))
        with pa.csv.CSVWriter(pa.PythonFile(sink, "w"), head.schema) as csv:
            yield lambda rows: csv.write_batch(csv_text(rows))
    elif format_ == "json":
        yield lambda rows: sink.write(json_lines(rows))
    else:
        yield lambda rows: sink.writelines(content.as_buffer() for content in rows["content"])


def json_lines(rows: pa.RecordBatch) -> bytes:
    """Return rows as JSON objects, one a line, in UTF-8."""
    return "".join(f"{json_text(row)}\n" for row in rows.to_pylist()).encode()


def csv_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in types that CSV can hold: lists become JSON, times and bytes text."""
    columns = [_flat(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def json_text(value: Any) -> str:
    """Return a value as JSON, of which only what JSON demands is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_text, allow_nan=False)
    except ValueError:
        return json_text(finite(value))


def _text(value: datetime | bytes) -> str:
    """Return a time with microseconds, so that times sort as text, or bytes as base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _flat(column: pa.Array) -> pa.Array:
    """Return numbers, booleans and strings as they are, other types as text."""
    if pa.types.is_nested(column.type):
        write = json_text
    elif pa.types.is_timestamp(column.type) or pa.types.is_binary(column.type):
        write = _text
    else:
        return column
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], TEXT)
