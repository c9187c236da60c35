"""Export closed batches, their messages, or rejections to a file: parquet, csv or json. No JVM, no engine.

With `raw`, the bytes that a format refused are written unchanged, to be corrected and ingested again. The columns are
those of the views, in plain types. In text, times are ISO 8601 in UTC and bytes are base64.

Rows go from the ledger to the file piece by piece, in no particular order, so a ledger larger than memory can be
exported. The file appears under its name when it is complete.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from windrow.errors import OutputFileError, first_line
from windrow.model import tables
from windrow.model.chunks import REFUSED
from windrow.model.tables import BATCH_KEY
from windrow.reading.closed import Final, RowRange, span
from windrow.reading.pivot import EARLY, Pivot
from windrow.reading.tables import Ledger, equal, open_ledger, overlap_condition, quote_text
from windrow.reading.values import replace_nan

ExportFormat = Literal["parquet", "csv", "json", "raw"]
ExportRows = Literal["batches", "messages", "pivot", "rejected", "bytes"]
Shape = Callable[[pa.Table], pa.Table]
Write = Callable[[pa.RecordBatch], object]

YEARS = (-62_135_596_800_000_000, 253_402_300_800_000_000)  # the beginnings of the years 1 and 10000
TEXT = pa.large_string()  # a piece may exceed the 2 GiB limit of plain strings
STANDARD_OUTPUT = "-"
FORMATS: dict[str, ExportFormat] = {name: name for name in get_args(ExportFormat)}
ENDINGS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """Which rows to export: batches, their messages, rejections, or the bytes of records that a format refused.

    `pivot` is batches as rows of numbers, with a column for each of the `types` (None: those in these batches). With
    `early`, batches and pivot include open batches as they are now. Rows can be limited to one key or source, to times
    in [start, end) (microseconds), and, except open batches, to those written after the position `since`. The time is
    the `window_start` of batches and the `event_time` of rejected messages.
    """

    what: ExportRows = "batches"
    key: str | None = None
    start: int | None = None
    end: int | None = None
    since: str | int | None = None
    types: Sequence[str] | None = None
    source: str | None = None
    early: bool = False

    @property
    def state(self) -> Final:
        """Return the state of the ledger rows to export."""
        return "rejected" if self.what in ("rejected", "bytes") else "closed"

    @property
    def where(self) -> str:
        """Return the conditions on key and time as SQL."""
        time = "event_time" if self.what == "rejected" else "window_start"
        stream = equal({"key": self.key, "source": self.source})
        conditions = f"{overlap_condition(time, time, self.start, self.end)} AND {stream}"
        refused = f" AND starts_with(reason, {quote_text(REFUSED)}) AND content IS NOT NULL"
        return conditions + refused if self.what == "bytes" else conditions

    def to_sql(self, span: RowRange) -> str:
        """Return the conditions on key, time and microbatch as SQL; open batches may be of any microbatch."""
        written = f"(state = 'open' OR {span.where})" if self.early else span.where
        return f"{written} AND {self.where}"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was exported; `position` is the `since` of the next export."""

    file: str
    format: ExportFormat
    what: ExportRows
    row_count: int
    position: str


def export(
    ledger: str,
    out: str,
    choice: ExportSelection | None = None,
    format_: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExportResult:
    """Write the chosen rows of a ledger to a file, or to standard output (`-`, not for parquet).

    Without `format_` the file's extension decides. `progress` is called with the number of batches or rejected messages
    read so far and its upper bound. Raises OutputFileError, TableMissingError, IncompatibleTableError, and
    LedgerRestoredError as `read_closed` does.
    """
    kind = format_of(out, format_)
    book = open_ledger(ledger)
    selection = _refused_bytes(choice or ExportSelection(), book) if kind == "raw" else choice or ExportSelection()
    written_by = span(book, selection.state, selection.since)
    written_by.require_whole(book.rows(selection.state, "count(*) AS rows", written_by.where)["rows"][0].as_py())
    written = 0
    schema, shape = columns_and_reader(book, selection, written_by)
    with _sink(out, overwrite) as sink, open_writer(kind, sink, schema) as write:
        for read, batch in rows_of(book, selection, written_by, shape):
            write(batch)
            written += batch.num_rows
            progress(read, max(read, written_by.rows))
    return ExportResult(out, kind, selection.what, written, written_by.position)


def _refused_bytes(choice: ExportSelection, book: Ledger) -> ExportSelection:
    """Return the choice that exports the bytes a format refused instead of their rejections. Raises OutputFileError."""
    if choice.what not in ("rejected", "bytes"):
        raise OutputFileError("--format raw exports the bytes that a format refused", "Add --rejected.")
    if not book.raw:
        raise OutputFileError("the depot is not a raw depot, so no format refused anything", "Use csv or json.")
    if (choice.key, choice.source, choice.start, choice.end) != (None,) * 4:
        raise OutputFileError(
            "bytes that a format refused have no source, key or time", "Leave out --source, --key, --from and --to."
        )
    return replace(choice, what="bytes")


def format_of(out: str, name: str | None) -> ExportFormat:
    """Return the given format, or the one that the file's extension names. Raises OutputFileError."""
    known = f"Known are {', '.join(FORMATS)}."
    if name is not None and name not in FORMATS:
        raise OutputFileError(f"there is no format {name!r}", known)
    format_ = FORMATS.get(name or ENDINGS.get(Path(out).suffix.lower(), ""))
    if format_ is None:
        raise OutputFileError(f"the extension of {out!r} names no format", f"Add --format. {known}")
    if format_ == "parquet" and out == STANDARD_OUTPUT:
        raise OutputFileError("parquet cannot go to standard output", "Name a file, or use --format csv or json.")
    return format_


@contextmanager
def _sink(out: str, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a temporary file and rename it at the end, when it is on disk; a failure leaves no file behind."""
    if out == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if "://" in out:
        raise OutputFileError(f"{out} is not a local file", "Export to a local file and copy it, or use Spark.")
    target = Path(out)
    _require_place(target, overwrite)
    partial = target.with_name(f".{target.name}.{uuid4().hex[:8]}.part")
    try:
        with partial.open("xb") as file:
            yield cast("BinaryIO", file)
            file.flush()
            os.fsync(file.fileno())
        _require_place(target, overwrite)
        partial.replace(target)
    except OSError as error:
        raise OutputFileError(
            f"{out} cannot be written: {first_line(error)}", "Check the free space and the permission to write."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _require_place(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise OutputFileError(f"there is no directory {target.parent}", "Create it first.")
    if target.is_dir():
        raise OutputFileError(f"{target} is a directory", "Name a file in it.")
    if target.exists() and not overwrite:
        raise OutputFileError(f"{target} exists already", "Name another file, or add --overwrite.")


def columns_and_reader(book: Ledger, choice: ExportSelection, written_by: RowRange) -> tuple[pa.Schema, Shape]:
    """Return the columns of an export, and the function that makes its rows from those of the ledger."""
    if choice.what == "messages":
        return pa.schema([*_batch(book, BATCH_KEY), *tables.message_type(book.payload)]), _messages
    if choice.what == "pivot":
        pivot = Pivot.of(book, choice.to_sql(written_by), choice.types, choice.early)
        return pivot.schema, pivot.rows
    return _read(book, choice), lambda rows: rows


def rows_of(
    book: Ledger, choice: ExportSelection, written_by: RowRange, shape: Shape
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows piece by piece, each piece with the number of ledger rows read so far."""
    schema, states = _read(book, choice), EARLY if choice.early else choice.state
    read = 0
    columns = ", ".join(f'"{name}"' for name in schema.names)
    order = 'ORDER BY raw_source, chunk, "offset", id' if choice.what == "bytes" else ""  # as in their source
    for piece in book.pieces(states, columns, choice.to_sql(written_by), order):
        read += piece.num_rows
        for batch in shape(piece.cast(schema)).combine_chunks().to_batches():
            yield read, batch


def _read(book: Ledger, choice: ExportSelection) -> pa.Schema:
    what = choice.what
    if what == "bytes":
        return pa.schema([("content", pa.binary())])
    if what == "rejected":
        raw = [field for field in tables.RAW_FIELDS if field[0] in tables.RAW_REJECTED] if book.raw else []
        return pa.schema([*tables.rejected_fields(book.payload), *raw])
    names = (*BATCH_KEY, *(["state"] if choice.early else []), "messages")
    return _batch(book, names if what in ("messages", "pivot") else None)


def _batch(book: Ledger, names: tuple[str, ...] | None) -> pa.Schema:
    whole = pa.schema(tables.batch_fields(book.payload))
    return pa.schema([whole.field(name) for name in names]) if names else whole


def _messages(batches: pa.Table) -> pa.Table:
    inside = batches["messages"].combine_chunks()
    messages = pa.Table.from_struct_array(pc.list_flatten(inside))
    batch = batches.select(BATCH_KEY).take(pc.list_parent_indices(inside))
    columns = {name: batch[name] for name in BATCH_KEY}
    return pa.table(columns | {name: messages[name] for name in messages.column_names})


@contextmanager
def open_writer(format_: ExportFormat, sink: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    """Yield a function that writes rows of a schema; leaving the context completes the content, and `sink` stays open.

    A csv has a header, text is quoted, and NULL is empty and unquoted. A json has one object per line. `raw` is the
    unchanged bytes of all records, one after the other.
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
    """Return rows as JSON objects, one per line, in UTF-8."""
    columns = [_time_texts(column) if pa.types.is_timestamp(column.type) else column for column in rows.columns]
    written = pa.RecordBatch.from_arrays(columns, rows.schema.names)
    return "".join(f"{json_text(row)}\n" for row in written.to_pylist()).encode()


def csv_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in types that CSV can hold: lists become JSON, times and bytes text."""
    return pa.RecordBatch.from_arrays([_flat(column) for column in rows.columns], rows.schema.names)


def json_text(value: Any) -> str:
    """Return a value as JSON, escaping only what JSON requires."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_text, allow_nan=False)
    except ValueError:
        return json_text(replace_nan(value))


def _text(value: datetime | bytes) -> str:
    """Return a time with microseconds, so that times sort as text, or bytes as base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _time_texts(column: pa.Array) -> pa.Array:
    """Return times as texts; those outside the years 1 to 9999, which a rejected message may have, as `1234 us`."""
    number = column.cast(pa.int64())
    has_year = pc.and_(pc.greater_equal(number, YEARS[0]), pc.less(number, YEARS[1]))
    text = pc.strftime(pc.if_else(has_year, column, pa.scalar(None, column.type)), "%Y-%m-%dT%H:%M:%SZ")
    return pc.coalesce(text, pc.binary_join_element_wise(number.cast(pa.string()), "us", " ")).cast(TEXT)


def _flat(column: pa.Array) -> pa.Array:
    """Return numbers, booleans and strings as they are, other types as text."""
    if pa.types.is_nested(column.type):
        write = json_text
    elif pa.types.is_timestamp(column.type):
        return _time_texts(column)
    elif pa.types.is_binary(column.type):
        write = _text
    else:
        return column
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], TEXT)
