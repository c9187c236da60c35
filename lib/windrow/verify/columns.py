"""Helpers on Arrow columns for the checks: plain types, times as numbers, exploded lists, comparison of multisets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import byte_count, to_numpy, to_plain_types
from windrow.model.messages import COLUMNS
from windrow.model.payload import comparable

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = np.iinfo(np.int64).min
# The most bytes that Arrow can group in plain columns; large columns can hold more but are slower.
PLAIN_BYTES = 1 << 30
MESSAGE = COLUMNS | {"payload": pa.binary()}


def numbers(column: pa.ChunkedArray) -> Ints:
    """Return integers, or times in microseconds; NULL as NONE."""
    return to_numpy(column, NONE)


def select_rows(table: pa.Table, mask: Bools, names: Sequence[str] | None = None) -> pa.Table:
    """Return the rows where the mask holds, of the named columns only."""
    return (table.select(list(names)) if names else table).filter(pa.array(mask))


def as_messages(table: pa.Table) -> pa.Table:
    """Return the columns of a message in plain types, and `content_bytes`, the bytes of type and payload.

    Payloads become the bytes of their canonical form, so that equal payloads have equal bytes.
    """
    simple = to_plain_types(table)
    payload = simple["payload"]
    chunks = [comparable(chunk).cast(pa.binary()) for chunk in payload.chunks]
    simple = simple.set_column(simple.column_names.index("payload"), "payload", pa.chunked_array(chunks, pa.binary()))
    columns = {name: simple[name].cast(type_) for name, type_ in MESSAGE.items()}
    content_bytes = byte_count(columns["type"]) + byte_count(payload).astype(np.int64)
    rest = {name: simple[name] for name in table.column_names if name not in MESSAGE}
    return pa.table(columns | rest | {"content_bytes": content_bytes})


def explode(table: pa.Table, name: str) -> pa.Table:
    """Return one row for each struct in a column of lists; `row` is the number of the table row with its list."""
    type_ = table.schema.field(name).type.value_type
    if not table.num_rows:
        return to_plain_types(pa.schema([("row", pa.int64()), *type_]).empty_table())
    elements = pc.list_flatten(table[name])
    columns = {"row": pc.list_parent_indices(table[name]).cast(pa.int64())}
    return to_plain_types(pa.table(columns | {field.name: pc.struct_field(elements, field.name) for field in type_}))


def multiset_difference(left: pa.Table, right: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that each of two tables has more often than the other; NULL equals NULL."""
    names = left.column_names
    sides = [
        side.append_column("sign", pa.array(np.full(side.num_rows, sign)))
        for side, sign in ((left, 1), (right.select(names), -1))
    ]
    rows = pa.concat_tables(sides)
    for name in ("payload", "content"):
        if name in names and rows[name].nbytes > PLAIN_BYTES:
            rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.large_binary()))
    counted = rows.group_by(names, use_threads=False).aggregate([("sign", "sum")])
    more, fewer = pc.greater(counted["sign_sum"], 0), pc.less(counted["sign_sum"], 0)
    return counted.filter(more).select(names), counted.filter(fewer).select(names)


def identifier(kind: str, *components: pa.ChunkedArray) -> pa.ChunkedArray:
    """Join components as ids do: `%`, `/` and NUL are encoded, NULL is `%N`."""
    return pc.binary_join_element_wise(pa.scalar(kind), *(_encode(component) for component in components), "/")


def version_in_id(rejected: pa.Table) -> pa.ChunkedArray:
    """Return the depot version that the id of each rejection names, since no column does; NULL for any other id."""
    parts = pc.extract_regex(rejected["id"], r"(?s)^rejected/(?P<version>\d{1,18})/.*/\d+$")
    return pc.struct_field(parts, "version").cast(pa.int64())


def _encode(component: pa.ChunkedArray) -> pa.ChunkedArray:
    text = component.cast(pa.string())
    for special, code in (("%", "%25"), ("/", "%2F"), ("\0", "%00")):
        text = pc.replace_substring(text, special, code)
    return pc.fill_null(text, "%N")
