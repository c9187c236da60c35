"""Check a message before it joins a batch, so that it cannot make the whole batch fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME
from windrow.errors import InvalidMessageError, MessagesError
from windrow.model import messages
from windrow.model.payload import name as name_of
from windrow.model.payload import text_or_bytes
from windrow.model.timestamps import microseconds_of
from windrow.producer.payloads import GREATEST, LEAST, size, to_payload

ROW_BYTES = 48  # times, number and list overhead besides the texts


class MessageRow(NamedTuple):
    """One message in column order; times in microseconds. An invalid message lacks some values."""

    source: str
    key: str | None
    type: str | None
    event_time: int | None
    received_at: int
    sequence: int | None
    payload: Any

    @property
    def byte_count(self) -> int:
        """Return how many bytes of the buffer it takes."""
        return ROW_BYTES + sum(map(size, (self.source, self.key, self.type, self.payload)))


class ChunkRow(NamedTuple):
    """One chunk of a raw source in column order; `sequence` is its number if the sender gave one.

    Nothing may follow the `last` one.
    """

    raw_source: str
    sequence: int | None
    bytes_sent: bytes
    last: bool
    received_at: int

    @property
    def byte_count(self) -> int:
        """Return how many bytes of the buffer it takes."""
        return ROW_BYTES + len(self.bytes_sent)


OutgoingRow = MessageRow | ChunkRow


def table_of(columns: Iterable[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Return the columns of messages or chunks, in the order of a schema, as a table."""
    return pa.table([_array(values, type_) for values, type_ in zip(columns, schema.types, strict=True)], schema)


def complete_rows(rows: pa.Table, source: str, now: int, payload: pa.DataType) -> pa.Table:
    """Return a table of messages with all columns, and defaults for missing ones. Raises MessagesError."""
    missing = {
        "source": pa.scalar(source),
        "event_time": pa.scalar(now, TIME),
        "received_at": pa.scalar(now, TIME),
        "sequence": pa.scalar(None, pa.int64()),
        "payload": pa.scalar(None, payload),
    }
    whole = rows
    for name, value in missing.items():
        if name not in whole.column_names:
            whole = whole.append_column(name, pa.repeat(value, whole.num_rows))
    unknown = set(whole.column_names) - set(messages.COLUMNS)
    if unknown:
        raise MessagesError(
            f"messages have no column {', '.join(sorted(unknown))}",
            f"Leave it out; the columns are {', '.join(messages.COLUMNS)}.",
        )
    plain = text_or_bytes(payload) == payload
    whole = messages.conform(whole, None if plain else payload)
    try:
        return whole.cast(messages.schema(payload))
    except pa.ArrowInvalid as error:
        hint = "The payloads of this depot are UTF-8 text; create a depot with payload = 'binary' for bytes."
        raise MessagesError("a payload is not text", hint) from error


def required_chunks(table: pa.Table, first: int) -> pa.Table:
    """Check that chunks are numbered from `first` on, and return them. Raises InvalidMessageError."""
    wrong = np.flatnonzero(table["sequence"].to_numpy() != np.arange(first, first + table.num_rows))
    # guard: chunk-sent-again
    if wrong.size:
        sequence, number = table["sequence"][int(wrong[0])].as_py(), first + int(wrong[0])
        raise InvalidMessageError(
            f"chunk {sequence} was sent, but chunk {number} is the next one of its raw source",
            "Open the producer again, and continue after `last_sequence()`.",
        )
    return table


def number_rows(table: pa.Table, first: int) -> pa.Table:
    """Number the rows without a sequence, counted from `first` over all rows."""
    at = table.schema.get_field_index("sequence")
    numbers = pa.array(np.arange(first, first + table.num_rows))
    return table.set_column(at, table.schema.field(at), pc.coalesce(table["sequence"], numbers))


def required_number(name: str, value: object) -> int:
    """Return a 64-bit integer. Raises InvalidMessageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST <= value <= GREATEST:
        kind = "a datetime or whole microseconds" if name in messages.TIMES else "a 64-bit integer"
        raise InvalidMessageError(f"{name} = {value!r} is not {kind}", "Nothing was sent. Correct it and send again.")
    return value


def required_text(name: str, value: object) -> str:
    """Return Unicode text. Raises InvalidMessageError."""
    if not isinstance(value, str):
        raise InvalidMessageError(f"{name} = {value!r} is not text", "Pass a str.")
    if not value.isascii():
        _encode(name, value)
    return value


def required_time(name: str, value: object) -> int:
    """Return a time in microseconds. Raises InvalidMessageError."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidMessageError(f"{name} = {value!r} has no time zone", "Add one, as in datetime.now(UTC).")
        return microseconds_of(value)
    return required_number(name, value)


def required_payload(value: object, type_: pa.DataType) -> Any:
    """Return a payload in the depot's type. Raises InvalidMessageError."""
    if value is None:
        return None
    if text_or_bytes(type_) != type_:
        try:
            return to_payload(value, type_)
        except ValueError as error:
            hint = f"The payloads of this depot are {name_of(type_)}. Nothing was sent."
            raise InvalidMessageError(f"payload = {value!r} {error}", hint) from None
    binary = type_ == pa.binary()
    if isinstance(value, str):
        return _encode("payload", value) if binary else required_text("payload", value)
    if _is_finite(value):
        return str(value).encode() if binary else str(value)
    if not isinstance(value, bytes | bytearray | memoryview):
        hint = "Encode it, for example as JSON."
        raise InvalidMessageError(f"payload = {value!r} is neither text nor bytes nor a finite number", hint)
    content = bytes(value)
    if binary:
        return content
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessageError(
            f"the payload is not text: {error.reason} at byte {error.start}",
            "The payloads of this depot are text; create a depot with payload = 'binary' for bytes.",
        ) from error


def _is_finite(value: object) -> bool:
    """Whether a value is a number with a text in JSON."""
    if isinstance(value, Decimal):
        return value.is_finite()
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and (isinstance(value, int) or isfinite(value))
    )


def _array(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(type_) if pa.types.is_timestamp(type_) else pa.array(values, type_)


def _encode(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            f"{name} = {value!r} is not Unicode: {error.reason}", "Send whole characters."
        ) from error
