"""Arrow columns as the checks want them: plain types, times as numbers, lists taken apart, rows as a multiset."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = np.iinfo(np.int64).min
TIME = pa.timestamp("us", tz="UTC")
MESSAGE = {
    "source": pa.string(),
    "key": pa.string(),
    "type": pa.string(),
    "event_time": TIME,
    "received_at": TIME,
    "sequence": pa.int64(),
    "payload": pa.binary(),
}


def numbers(column: pa.ChunkedArray) -> Ints:
    """Return integers, or times in microseconds; NULL as NONE."""
    return pc.fill_null(column.cast(pa.int64()), int(NONE)).to_numpy()


def flags(column: pa.ChunkedArray) -> Bools:
    """Return booleans; NULL as False."""
    return pc.fill_null(column, False).to_numpy()


def differ(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Bools:
    """Tell where two columns are not equal, or one of them is NULL."""
    return ~flags(pc.equal(left, right))


def kept(table: pa.Table, mask: Bools, names: Sequence[str] | None = None) -> pa.Table:
    """Return the rows where the mask holds, of the named columns only."""
    return (table.select(list(names)) if names else table).filter(pa.array(mask))


def pairwise(values: Ints, compare: Callable[[Ints, Ints], Bools], first: bool) -> Bools:
    """Compare each value with the one before it; the first one, which has none, gets `first`."""
    return np.concatenate([[first], compare(values[1:], values[:-1])])[: values.size]


def as_messages(table: pa.Table) -> pa.Table:
    """Return the columns of a message in plain types; payloads as octets, so that text and octets compare."""
    columns = {name: _cast(table[name], type_) for name, type_ in MESSAGE.items()}
    return pa.table(columns | {name: table[name] for name in table.column_names if name not in MESSAGE})


def plain(table: pa.Table) -> pa.Table:
    """Return a table without views and dictionaries, in which Arrow cannot group."""
    columns = [table[name].cast(PLAIN.get(table[name].type, table[name].type)) for name in table.column_names]
    return pa.table(columns, names=table.column_names)


def exploded(table: pa.Table, name: str) -> pa.Table:
    """Return one row for each struct in a column of lists; `row` says in which row of the table its list stands."""
    type_ = table.schema.field(name).type.value_type
    if not table.num_rows:
        return plain(pa.schema([("row", pa.int64()), *type_]).empty_table())
    elements = pc.list_flatten(table[name])
    columns = {"row": pc.list_parent_indices(table[name]).cast(pa.int64())}
    return plain(pa.table(columns | {field.name: pc.struct_field(elements, field.name) for field in type_}))


def repeated(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the values of some columns that occur more than once, with `times`."""
    counted = table.group_by(list(names), use_threads=False).aggregate([([], "count_all")])
    found = counted.filter(pc.greater(counted["count_all"], 1))
    return found.rename_columns(["times" if name == "count_all" else name for name in found.column_names])


def fewer(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return the rows that `after` holds less often than `before`; NULL equals NULL."""
    names = before.column_names
    sides = [
        side.append_column("before", pa.array(np.full(side.num_rows, sign)))
        for side, sign in ((before, 1), (after.select(names), -1))
    ]
    counted = pa.concat_tables(sides).group_by(names, use_threads=False).aggregate([("before", "sum")])
    return counted.filter(pc.greater(counted["before_sum"], 0)).select(names)


def _cast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_binary(type_) and not _octets(column.type):
        column = column.cast(pa.string())
    return column.cast(type_)


def _octets(type_: pa.DataType) -> bool:
    return pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_)


PLAIN = {
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}
