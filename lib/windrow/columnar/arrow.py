"""Convert Arrow tables to plain types, and move values in and out of Arrow without loading pandas.

Readers return views, large types and dictionaries; the rest of Windrow uses plain types.

If pandas is installed, pyarrow imports it before it converts numpy arrays or Python values, also for arguments of
`pyarrow.compute`, and before it converts an array to numpy or a time to Python. This doubles the time of a run that has
nothing to do, and cannot be switched off. So code on that path uses the functions here, which read and fill Arrow's
memory directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import ensure

TIME = pa.timestamp("us", tz="UTC")
MANY = 100_000  # rows; with fewer, threads cost more than they save
MAX_BYTES = 2**30  # of text in one array: half of what 32-bit offsets can address

T = TypeVar("T")
Number = TypeVar("Number", bound=np.generic)


def to_plain_types(table: pa.Table) -> pa.Table:
    """Return the table in plain types."""
    return table.cast(pa.schema([pa.field(field.name, to_plain_type(field.type)) for field in table.schema]))


def to_plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the plain type: string, binary, list, struct, timestamps in microseconds UTC."""
    if pa.types.is_dictionary(type_):
        return to_plain_type(type_.value_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(to_plain_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, to_plain_type(field.type)) for field in type_])
    if pa.types.is_timestamp(type_) and type_.tz is not None and type_.unit == "us":
        return TIME
    return PLAIN.get(type_, type_)


PLAIN = {
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}


def to_large_type(type_: pa.DataType) -> pa.DataType:
    """Return a plain type with 64-bit offsets for text and bytes, also inside a struct."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, to_large_type(field.type)) for field in type_])
    return LARGE.get(type_, type_)


LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def times_to_numbers(table: pa.Table) -> pa.Table:
    """Return the table with times as numbers, at any depth."""
    return table.cast(pa.schema([(field.name, _counted(field.type)) for field in table.schema]))


def _counted(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_list(type_):
        return pa.list_(_counted(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _counted(field.type)) for field in type_])
    return type_


def string_scalar(value: str) -> pa.Scalar:
    """Return a string as a scalar."""
    return string_array([value])[0]


def string_array(values: Sequence[str]) -> pa.Array:
    """Return strings as an array."""
    buffer = [value.encode() for value in values]
    bounds = np.cumsum([0, *map(len, buffer)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(buffer), [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(buffer))])


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy if it already is one, and without pandas if it has no chunks."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    return pa.RecordBatch.from_arrays([combine_chunks(column) for column in table.columns], schema=table.schema)


def index_in(values: pa.Array, among: pa.Array) -> np.ndarray:
    """Return the place of each value in `among`, which is distinct and may be much longer; -1 if it is absent.

    Arrow hashes the values in which it searches, so this function has it search in the shorter array.
    """
    if len(values) * 2 > len(among):
        return to_numpy(pc.index_in(values, among), null=-1)
    few = values.dictionary_encode()
    at = to_numpy(pc.index_in(among, few.dictionary), null=-1)
    present = np.flatnonzero(at >= 0)
    place = np.full(len(few.dictionary) + 1, -1)  # the last one is for NULL
    place[at[present]] = present
    return place[to_numpy(few.indices, null=-1)]


def concat_dictionaries(*columns: pa.ChunkedArray) -> pa.DictionaryArray:
    """Concatenate columns of strings, with or without dictionaries, into one with one dictionary."""
    chunks = [chunk.dictionary_encode() for column in columns for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.chunked_array(chunks, pa.dictionary(pa.int32(), pa.string())).unify_dictionaries().combine_chunks()


def boolean_array(flags: np.ndarray) -> pa.Array:
    """Return flags as an array, without pandas."""
    return from_numpy(flags.astype(np.int64)).cast(pa.bool_())


def boolean_scalar(value: bool) -> pa.Scalar:
    """Return a truth value as a scalar, without pandas."""
    return boolean_array(np.array([value]))[0]


def filter_rows(table: pa.Table, mask: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows for which a mask is true; all or none of them without a copy."""
    count = pc.sum(mask).as_py() or 0
    return table.slice(0, count) if count in (0, table.num_rows) else table.filter(mask)


def is_not_distinct(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return where two columns have the same value; NULL is the same as NULL, and NaN as NaN."""
    if pa.types.is_nested(left.type):
        pairs = zip(left, right, strict=True)
        return pa.array([left == right or repr(left) == repr(right) for left, right in pairs], pa.bool_())
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    same = pc.or_(both_null, pc.fill_null(pc.equal(left, right), False))
    if not pa.types.is_floating(left.type):
        return same
    # guard: nan-is-no-change
    return pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))


def drop_rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return a table without some rows (without a copy if there are none), and the numbers of the remaining rows."""
    every = np.arange(table.num_rows)
    if not rows.size:
        return table, every
    kept = np.delete(every, rows)
    return table.take(pa.array(kept)), kept


def run_parallel(calls: Iterable[Callable[[], T]], rows: int) -> list[T]:
    """Make calls and return their results; with many rows, on as many threads as Arrow uses (`pyarrow.set_cpu_count`).

    Threads save time only in calls that release the GIL.
    """
    if rows < MANY:
        return [call() for call in calls]
    with ThreadPoolExecutor(pa.cpu_count(), "windrow-columns") as pool:
        return [call.result() for call in [pool.submit(call) for call in calls]]


def take_rows(table: pa.Table, rows: npt.NDArray[np.integer]) -> pa.Table:
    """Return rows of a table in the order of `rows`, in plain types."""
    at = pa.array(rows)
    columns = run_parallel([partial(take_values, column, at) for column in table.columns], rows.size)
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def take_values(column: pa.ChunkedArray, at: pa.Array) -> pa.ChunkedArray:
    """Return values of a column in its plain type."""
    chosen = column.slice(0, len(at)) if column.null_count == len(column) else column.take(at)
    type_ = to_plain_type(column.type)
    if chosen.type == type_:
        return chosen
    if chosen.type == to_large_type(type_):
        parts = [column.take(at.slice(first, last - first)) for first, last in split_by_bytes(byte_count(chosen))]
        return pa.chunked_array([chunk.cast(type_) for part in parts for chunk in part.chunks], type_)
    return chosen.cast(type_)


def copy_nested(table: pa.Table) -> pa.Table:
    """Return the table with copies of its nested columns.

    Spark before 4.2 sends an empty array of strings, for example when all lists are empty, without offsets. Arrow
    allows that, but delta-rs reads beyond the array: it panics, or would write garbage.
    """
    nested = [name for name in table.column_names if pa.types.is_nested(table.schema.field(name).type)]
    for name in nested:
        chunks = [chunk.take(from_numpy(np.arange(len(chunk)))) for chunk in table[name].chunks]
        column = pa.chunked_array(chunks, table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return table


def byte_count(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.integer]:
    """Return how many bytes each value counts as: text and bytes their length, a number 8, a boolean 1, NULL 0.

    A struct counts as the sum of its fields.
    """
    type_ = values.type
    if pa.types.is_struct(type_):
        fields = [byte_count(pc.struct_field(values, at)) for at in range(type_.num_fields)]
        return np.sum(fields, axis=0, dtype=np.int64)
    if pa.types.is_primitive(type_):
        return values.is_valid().to_numpy(zero_copy_only=False) * np.int32(max(type_.bit_width // 8, 1))
    return pc.fill_null(pc.binary_length(values), 0).to_numpy()


def split_by_bytes(buffer: npt.NDArray[np.integer]) -> list[tuple[int, int]]:
    """Cut values of these sizes in bytes into runs that fit one array, and return where each begins and ends."""
    begins = np.unique(np.cumsum(buffer) // MAX_BYTES, return_index=True)[1].tolist() or [0]
    return list(pairwise([*begins, buffer.size]))


def from_numpy(values: npt.NDArray[np.int64]) -> pa.Array:
    """Return integers as an Arrow array, without a copy if their memory is contiguous."""
    return pa.Array.from_buffers(pa.int64(), values.size, [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))])


def to_numpy(values: pa.Array | pa.ChunkedArray, null: int | None = None) -> npt.NDArray[np.int64]:
    """Return integers, or times as integers, as a read-only numpy array; a NULL becomes `null`.

    Without `null` there must be no NULL. A single Arrow array is not copied.
    """
    numbers = values.cast(pa.int64())
    if numbers.null_count and null is not None:
        numbers = pc.fill_null(numbers, from_numpy(np.array([null]))[0])
    ensure(not numbers.null_count, "a number that must be there is not NULL")
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    parts = [
        np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), chunk.offset * chunk.type.byte_width)
        for chunk in chunks
        if len(chunk)
    ]
    return read_only(parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts]))


def read_only(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return a read-only view, so that a compiled function needs no second version for writable arrays."""
    view = values.view()
    view.flags.writeable = False
    return view


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; columns that they lack are NULL."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return an empty table."""
    return pa.Table.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)
