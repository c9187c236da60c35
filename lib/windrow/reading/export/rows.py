"""Select the rows and columns of an export: the columns are those of the views, in plain types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import tables
from windrow.model.chunks import REFUSED
from windrow.model.tables import OF_BATCH
from windrow.reading.closed import Final, Span
from windrow.reading.delta import Ledger, equal, quoted, within
from windrow.reading.pivot import Pivot

Shape = Callable[[pa.Table], pa.Table]
What = Literal["batches", "messages", "pivot", "rejected", "bytes"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows to export: batches, their messages, rejections, or the bytes of records that a format refused.

    `pivot` is batches as rows of numbers, with a column for each of the `types` (None: those in these batches).
    They can be limited to one key, to times in [begin, end) (microseconds), and to rows written after the position
    `since`. The time is the `window_start` of batches and the `event_time` of rejected messages.
    """

    what: What = "batches"
    key: str | None = None
    begin: int | None = None
    end: int | None = None
    since: str | int | None = None
    types: Sequence[str] | None = None

    @property
    def state(self) -> Final:
        """Return the state of the ledger rows that hold them."""
        return "rejected" if self.what in ("rejected", "bytes") else "closed"

    @property
    def where(self) -> str:
        """Return the conditions on key and time as SQL."""
        time = "event_time" if self.what == "rejected" else "window_start"
        conditions = f"{within(time, time, self.begin, self.end)} AND {equal({'key': self.key})}"
        refused = f" AND starts_with(reason, {quoted(REFUSED)}) AND content IS NOT NULL"
        return conditions + refused if self.what == "bytes" else conditions

    @property
    def order(self) -> str:
        """Return the order of the rows as SQL: bytes come in the order of their sources, other rows in any order."""
        by = 'raw_source, chunk, "offset", id'
        return f"ORDER BY {by}" if self.what == "bytes" else ""


def shape_of(book: Ledger, choice: Choice, written_by: Span) -> tuple[pa.Schema, Shape]:
    """Return the columns of an export, and the function that makes its rows from those of the ledger."""
    if choice.what == "messages":
        return pa.schema([*_batch(book, OF_BATCH), *tables.message_type(book.payload)]), _messages
    if choice.what == "pivot":
        pivot = Pivot.of(book, f"{written_by.where} AND {choice.where}", choice.types)
        return pivot.schema, pivot.rows
    return _read(book, choice.what), lambda rows: rows


def rows_of(book: Ledger, choice: Choice, written_by: Span, shape: Shape) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows piece by piece, each piece with the number of ledger rows read so far."""
    schema = _read(book, choice.what)
    read = 0
    columns = ", ".join(f'"{name}"' for name in schema.names)
    for piece in book.pieces(choice.state, columns, f"{written_by.where} AND {choice.where}", choice.order):
        read += piece.num_rows
        rows = pa.Table.from_batches([piece]).cast(schema)
        for batch in shape(rows).combine_chunks().to_batches():
            yield read, batch


def _read(book: Ledger, what: What) -> pa.Schema:
    """Return the columns of the ledger that an export reads."""
    if what == "bytes":
        return pa.schema([("content", pa.binary())])
    if what == "rejected":
        raw = [field for field in tables.RAW_FIELDS if field[0] in tables.RAW_REJECTED] if book.raw else []
        return pa.schema([*tables.rejected_fields(book.payload), *raw])
    return _batch(book, (*OF_BATCH, "messages") if what in ("messages", "pivot") else None)


def _batch(book: Ledger, names: tuple[str, ...] | None) -> pa.Schema:
    whole = pa.schema(tables.batch_fields(book.payload))
    return pa.schema([whole.field(name) for name in names]) if names else whole


def _messages(batches: pa.Table) -> pa.Table:
    """Return a row for each message, with the columns of its batch."""
    inside = batches["messages"].combine_chunks()
    messages = pa.Table.from_struct_array(pc.list_flatten(inside))
    batch = batches.select(OF_BATCH).take(pc.list_parent_indices(inside))
    return pa.table({name: batch[name] for name in OF_BATCH} | {name: messages[name] for name in messages.column_names})
