"""Messages: rows of an Arrow table, and the types of their columns. Times are microseconds since the epoch, UTC."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar import arrow
from windrow.columnar.arrow import TIME, concat_dictionaries, run_parallel, to_numpy
from windrow.errors import MessagesError
from windrow.model.payload import accepts_type, text_or_bytes
from windrow.model.payload import name as name_of

EARLIEST = -9_214_560_000_000_000  # 1678-01-01
LATEST = 9_214_646_400_000_000  # 2262-01-01

COLUMNS = {
    "source": pa.string(),
    "key": pa.string(),
    "type": pa.string(),
    "event_time": TIME,
    "received_at": TIME,
    "sequence": pa.int64(),
    "payload": None,  # see `model.payload`
}
TIMES = ("event_time", "received_at")
DICTIONARY_COLUMNS = ("source", "key", "type")
REQUIRED = (*DICTIONARY_COLUMNS, *TIMES)
INVALID_VALUE = (
    "_windrow_invalid_value"  # an extra column: the value that made a message invalid, if a mapping found it
)
DEFAULTS = {"source": "", "sequence": None, "payload": None}


def schema(payload: pa.DataType | None = None) -> pa.Schema:
    """Return the columns of a message; payloads are strings by default."""
    return pa.schema([(name, type_ or payload or pa.string()) for name, type_ in COLUMNS.items()])


def conform(table: pa.Table, payload: pa.DataType | None = None) -> pa.Table:
    """Return the message columns of `table` in their order and types, followed by the other columns.

    `payload` is the type of payloads; by default bytes stay bytes, and all else becomes text. Raises MessagesError if a
    column is missing or has another type.
    """
    columns = {name: _column(table, name, type_ or payload) for name, type_ in COLUMNS.items()}
    rest = {name: table[name] for name in table.column_names if name not in COLUMNS}
    return pa.table(columns | rest)


def with_dictionaries(messages: pa.Table) -> pa.Table:
    """Return messages with dictionaries for the columns that are compared often: source, key and type."""
    alike = messages["source"].equals(messages["key"])  # if each device has its own clock
    names = [name for name in DICTIONARY_COLUMNS if name != "source" or not alike]
    made = run_parallel([partial(concat_dictionaries, messages[name]) for name in names], messages.num_rows)
    columns = dict(zip(names, made, strict=True))
    for name, column in ({"source": columns["key"]} | columns).items():
        messages = messages.set_column(messages.column_names.index(name), name, column)
    return messages


def with_room(messages: pa.Table) -> pa.Table:
    """Return messages whose payloads fit one array, with 64-bit offsets if they have many bytes."""
    payload = messages["payload"]
    large = arrow.to_large_type(payload.type)
    if payload.nbytes < arrow.MAX_BYTES or large == payload.type:
        return messages
    contiguous = pa.chunked_array([payload.cast(large).combine_chunks()])
    return messages.set_column(messages.column_names.index("payload"), "payload", contiguous)


def microseconds(times: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return timestamps as int64 microseconds, NULL as 0."""
    return to_numpy(times, null=0)


def times(values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return int64 microseconds as timestamps; NULL where not `valid`."""
    mask = None if valid is None else ~valid
    return pa.array(values, pa.int64(), mask=mask).cast(TIME)


def _column(table: pa.Table, name: str, type_: pa.DataType | None) -> pa.ChunkedArray:
    if name not in table.column_names:
        if name not in DEFAULTS:
            raise MessagesError(f"the messages have no column {name!r}", f"They have {table.column_names}.")
        default = pa.scalar(DEFAULTS[name], type_ or pa.string())
        return pa.chunked_array([pa.repeat(default, table.num_rows)])
    result = table[name].type
    # guard: payload-kind
    if name == "payload" and type_ is not None and type_ != text_or_bytes(type_) and not accepts_type(type_, result):
        raise MessagesError(f"column 'payload' is {result}, but the payloads are {name_of(type_)}", "Convert it first.")
    try:
        return convert_column(table[name], type_)
    except pa.ArrowException as error:
        raise MessagesError(f"column {name!r} is {table[name].type}: {error}", "Convert it first.") from error


def convert_column(column: pa.ChunkedArray, type_: pa.DataType | None) -> pa.ChunkedArray:
    """Return a column cast to a type; None is the default type of payloads. Raises ArrowException."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if type_ is None:
        binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        return column.cast(pa.binary() if binary else pa.string())
    if type_ == TIME:
        return _time(column)
    return column.cast(type_)


def _time(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floor finer times to a microsecond; times without a zone are UTC."""
    if not pa.types.is_timestamp(column.type) or column.type == TIME:
        return column.cast(TIME)
    counts = column.cast(pa.int64())
    if column.type.unit == "ns":
        fine = pc.fill_null(counts, 0).to_numpy()
        floored = np.floor_divide(fine, 1_000)
        return pa.chunked_array([pa.array(floored, mask=column.is_null().to_numpy())]).cast(TIME)
    return column.cast(TIME)
