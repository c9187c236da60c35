"""A state as functions on Arrow tables read and change it.

Each key is read once. Changes are kept until the microbatch is committed, and every read sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import empty_table, is_not_distinct, string_scalar
from windrow.model.id_filter import IdFilter
from windrow.model.tables import DELETED
from windrow.topology.combining import Aggregation, Given, parse_aggregations
from windrow.topology.state import DUE, State

Read: TypeAlias = Callable[[IdFilter | None], pa.Table]
ID = pa.field("id", pa.string())
EXACT_DIGITS = 60  # Arrow adds up to 76, and needs some of them for the row count


class ArrowState:
    """The rows of a state, as functions have left them so far. Tables have key and value columns."""

    def __init__(self, declared: State, read: Read, now: Callable[[], int]) -> None:
        """Read nothing yet: `read` returns the `id` and the columns of the rows that match, or of all (None).

        `now` returns the time (microseconds) at which rows are written, from which their time to live counts.
        """
        self._state, self._read, self._now = declared, read, now
        self._stored = empty_table(pa.schema([ID, *declared.columns]))
        self._looked_up: dict[int | None, IdFilter] | None = {}  # by number of components; None: all
        self._changed = empty_table(pa.schema([ID, *declared.columns, pa.field(DELETED, pa.bool_())]))

    def get(self, keys: pa.Table | None = None) -> pa.Table:
        """Return the state's row for each row of `keys`, in the same order; a state without a key needs none.

        A key that has no row gets the initial values, which are NULL unless declared.
        """
        keyed = self._keys(keys, "get")
        ids = self._state.ids(keyed)
        rows = self._rows(IdFilter(ids.unique()))
        at = pc.index_in(ids, rows["id"].combine_chunks())
        values = rows.select(self._state.values.names).take(at)
        columns = {name: keyed[name] for name in keyed.column_names if name in self._state.keys.names}
        for value in self._state.values:
            column = values[value.name].combine_chunks()
            if value.name in self._state.initial:
                column = pc.if_else(pc.is_null(at), pa.scalar(self._state.initial[value.name], value.type), column)
            columns[value.name] = column
        return pa.table(columns, self._state.columns)

    def has(self, keys: pa.Table) -> pa.Array:
        """Tell for each row of `keys` whether the state has a row for it."""
        ids = self._state.ids(self._keys(keys, "has"))
        return pc.is_in(ids, self._rows(IdFilter(ids.unique()))["id"].combine_chunks())

    def all(self, keys: pa.Table | None = None) -> pa.Table:
        """Return all rows of the state, or those under `keys`, which have its first key columns, or all.

        Raises TopologyError.
        """
        id_filter = None
        if keys is not None:
            self._require_table(keys, "all")
            id_filter = self._state.under(keys, "all")
        rows = self._rows(id_filter)
        return (rows if id_filter is None else id_filter.among(rows)).select(self._state.columns.names)

    def put(self, rows: pa.Table) -> None:
        """Write rows, one for each key, which replace the rows with the same keys. Raises TopologyError."""
        new = self._conform(rows, self._state.written, "put")
        if self._state.ttl is not None:
            new = new.append_column(DUE, pa.repeat(self._state.forgotten_at(self._now()), new.num_rows))
        self._change(new, deleted=False, what="put")

    def delete(self, keys: pa.Table | None = None) -> None:
        """Delete keys; a key without a row has no effect."""
        deleted = self._keys(keys, "delete").select(self._state.keys.names)
        for value in self._state.values:
            deleted = deleted.append_column(value, pa.nulls(max(deleted.num_rows, keys is None), value.type))
        self._change(deleted, deleted=True, what="delete")

    def combine(self, rows: pa.Table, /, **columns: Given) -> None:
        """Aggregate rows by key, and join each aggregate with the previous value; other values do not change.

        `total=("amount", "sum")` takes the column `amount` of the rows. The operations are `sum`, `min`, `max`, `count`
        of values that are not NULL, `first` and `last`, in the order of the rows or of a column named third. `"count"`
        alone counts rows. Raises TopologyError.
        """
        self._require_table(rows, "combine")
        aggregations = parse_aggregations(self._state, columns, rows.column_names)
        if not rows.num_rows:
            return
        keys = self._state.keys.names
        self._state.require_columns(rows.column_names, self._state.keys, "combine")
        with _refusing(self._state, " and ".join(aggregation.value for aggregation in aggregations)):
            new = _aggregate(rows, keys, aggregations)
        self.join(new, aggregations)

    def join(self, new: pa.Table, aggregations: list[Aggregation]) -> None:
        """Join aggregates, one row for each key with `value 0`, `value 1`, ..., with the previous values."""
        if not new.num_rows:
            return
        before = self.get(new if self._state.keys.names else None)
        self.put(join_aggregates(self._state, before, new, aggregations))

    def changes(self) -> pa.Table | None:
        """Return the rows that the ledger must write: `id`, `state`, `deleted`, `known`, the columns; None if none.

        Unchanged rows, and deleted keys that had no row, are left out. A deleted row has its last values.
        """
        changed = self._changed
        if not changed.num_rows:
            return None
        ids, gone = changed["id"].combine_chunks(), changed[DELETED].combine_chunks()
        stored = self._load(IdFilter(ids))
        at = pc.index_in(ids, stored["id"].combine_chunks())
        known = pc.is_valid(at)
        before = stored.take(at)
        same = pc.and_not(known, gone)
        for name in self._state.values.names:
            same = pc.and_(same, is_not_distinct(before[name].combine_chunks(), changed[name].combine_chunks()))
        written = pc.and_not(pc.or_(known, pc.invert(gone)), same)
        rows = changed.append_column("state", pa.repeat(string_scalar(self._state.name), changed.num_rows))
        rows = rows.append_column("known", known)
        for name in self._state.values.names:
            last = _choose(gone, before[name].combine_chunks(), changed[name].combine_chunks())
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), last)
        rows = rows.filter(written)
        return rows if rows.num_rows else None

    def load_changes(self, changed: pa.Table) -> None:
        """Begin with the changes of functions on DataFrames."""
        self._changed = changed.select(self._changed.column_names).cast(self._changed.schema)

    @property
    def changed(self) -> pa.Table:
        """Return what has changed so far: `id`, the columns, and `deleted`."""
        return self._changed

    def _keys(self, keys: pa.Table | None, what: str) -> pa.Table:
        """Return key columns in their types; for a state without a key one row without columns."""
        if self._state.keys.names:
            if keys is None:
                raise self._state.refusal(what, "needs keys", f"Give it {', '.join(self._state.keys.names)}.")
            return self._conform(keys, self._state.keys, what)
        return pa.table({"": pa.nulls(1)})

    def _conform(self, rows: pa.Table, columns: pa.Schema, what: str) -> pa.Table:
        self._require_table(rows, what)
        return self._state.conform(rows, columns, what)

    def _require_table(self, rows: object, what: str) -> None:
        if not isinstance(rows, pa.Table):
            raise self._state.refusal(what, f"got {type(rows).__name__}", "Pass a pa.Table.")

    def _change(self, rows: pa.Table, deleted: bool, what: str) -> None:
        ids = self._state.ids(rows)
        if len(ids.unique()) != len(ids) and not deleted:
            raise self._state.refusal(what, "has a key twice", "Give one row per key: group by the key first.")
        new = rows.add_column(0, ID, ids).append_column(DELETED, pa.repeat(deleted, len(ids)))
        if deleted:
            new = new.take(pc.index_in(ids.unique(), ids))
        stays = self._changed.filter(pc.invert(pc.is_in(self._changed["id"], ids)))
        self._changed = pa.concat_tables([stays, new.select(stays.column_names).cast(stays.schema)]).combine_chunks()

    def _rows(self, id_filter: IdFilter | None) -> pa.Table:
        """Return the rows that match, or all, and perhaps others, as they are now."""
        return self.as_changed(self._load(id_filter))

    def as_changed(self, stored: pa.Table) -> pa.Table:
        """Return stored rows, with their ids, as functions have left them so far, and all rows that these wrote."""
        stays = stored.filter(pc.invert(pc.is_in(stored["id"], self._changed["id"].combine_chunks())))
        new = self._changed.filter(pc.invert(self._changed[DELETED])).drop_columns([DELETED])
        return pa.concat_tables([stays, new])

    def _load(self, id_filter: IdFilter | None) -> pa.Table:
        """Return the stored rows that match, or all, and perhaps others; each is read once."""
        if self._looked_up is None:
            return self._stored
        if id_filter is None:
            self._stored, self._looked_up = self._read(None), None
            return self._stored
        unknown = reduce(IdFilter.difference, self._looked_up.values(), id_filter)
        if len(unknown.ids):
            loaded = self._read(unknown)
            new = loaded.filter(pc.invert(pc.is_in(loaded["id"], self._stored["id"].combine_chunks())))
            self._stored = pa.concat_tables([self._stored, new]).combine_chunks()
            before = self._looked_up.get(unknown.components)
            self._looked_up[unknown.components] = unknown if before is None else before.union(unknown)
        return self._stored


def _choose(mask: pa.Array, values: pa.Array, otherwise: pa.Array) -> pa.Array:
    """Return the values of one array where a mask is true, else those of the other one."""
    places = pc.add(pa.array(np.arange(len(mask))), pc.if_else(mask, 0, len(mask)))
    return pa.concat_arrays([values, otherwise]).take(places)


def join_aggregates(state: State, before: pa.Table, new: pa.Table, aggregations: list[Aggregation]) -> pa.Table:
    """Return rows of a state joined with aggregates, `value 0`, `value 1`, ... Raises TopologyError."""
    columns = {name: before[name] for name in before.column_names if name in state.columns.names}
    for number, aggregation in enumerate(aggregations):
        with _refusing(state, aggregation.value):
            columns[aggregation.value] = _join_values(
                aggregation.operation, before[aggregation.value], new[f"value {number}"]
            )
    return pa.table(columns)


@contextmanager
def _refusing(state: State, what: str) -> Iterator[None]:
    """Raise TopologyError for what Arrow cannot compute, such as a sum that does not fit its type."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise state.refusal("combine", f"cannot compute {what}: {error}", "Check its type.") from error


def _aggregate(rows: pa.Table, keys: list[str], aggregations: list[Aggregation]) -> pa.Table:
    """Return one row for each key, with the aggregates as `value 0`, `value 1`, ..."""
    by = next((aggregation.by for aggregation in aggregations if aggregation.by is not None), None)
    ordered, targets = rows if by is None else rows.sort_by(by), list[tuple[Any, str]]()
    for number, aggregation in enumerate(aggregations):
        name = aggregation.input
        if name is not None and aggregation.operation == "sum" and (exact := _exact(rows[name].type)) is not None:
            name, column = f"exact {number}", ordered[aggregation.input].cast(exact)
            ordered = ordered.append_column(name, column)
        targets.append(([], "count_all") if name is None else (name, aggregation.operation))
    aggregated = ordered.group_by(keys, use_threads=False).aggregate(
        targets
    )  # one thread, so sums of floats are reproducible
    return aggregated.rename_columns([*keys, *(f"value {number}" for number in range(len(aggregations)))])


def _exact(*types: pa.DataType) -> pa.DataType | None:
    """Return a type in which whole numbers and decimals of these types are added exactly, None for other types."""
    if not all(pa.types.is_integer(type_) or pa.types.is_decimal(type_) for type_ in types):
        return None
    return pa.decimal256(EXACT_DIGITS, max(type_.scale if pa.types.is_decimal(type_) else 0 for type_ in types))


def _join_values(operation: str, before: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.Array:
    """Return the previous value joined with the aggregate of the new rows; NULL is no value.

    Whole numbers and decimals are added exactly: only a sum that does not fit the type of the value is an error.
    """
    exact = _exact(before.type, new.type) if operation in ("sum", "count") else None
    if exact is not None:
        exact_before, exact_new = before.cast(exact), new.cast(exact)
        # guard: sums-exact
        return pc.coalesce(pc.add(exact_before, exact_new).cast(exact), exact_before, exact_new).cast(before.type)
    return JOINED[operation](before, new.cast(before.type))


def _least(before: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.Array:
    """Return the smaller value of two; Arrow's function for it has no kernel for times and booleans."""
    if not (pa.types.is_temporal(before.type) or pa.types.is_boolean(before.type)):
        return pc.min_element_wise(before, new)
    return pc.coalesce(pc.if_else(pc.less(new, before), new, before), before, new)


def _greatest(before: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.Array:
    """Return the greater value of two."""
    if not (pa.types.is_temporal(before.type) or pa.types.is_boolean(before.type)):
        return pc.max_element_wise(before, new)
    return pc.coalesce(pc.if_else(pc.less(before, new), new, before), before, new)


def _sum(before: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.Array:
    return pc.coalesce(pc.add_checked(before, new), before, new)


JOINED: Mapping[str, Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.Array]] = {
    "sum": _sum,
    "count": _sum,
    "min": _least,
    "max": _greatest,
    "first": pc.coalesce,
    "last": lambda before, new: pc.coalesce(new, before),
}
