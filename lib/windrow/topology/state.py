"""The declaration of a state: its keys, its values, and the values of a key that was never written.

A *timer* is a state as well: its rows are set by functions, and each fires at the time in its column `due`. A state
with a time to live has this column too, and every `put` moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME
from windrow.errors import TopologyError
from windrow.model import tables
from windrow.model.id_filter import IdFilter

Migrate: TypeAlias = Callable[[pa.Table], pa.Table]
DUE = pa.field("due", TIME)


@dataclass(frozen=True, slots=True)
class State:
    """Rows by key. Without a key it is one row. `initial` has the values of a key that was never written.

    With `ttl` (microseconds), a key is deleted if it was not written for that long. The columns of each `version` have
    their own names in the table of states, because a column of a table never changes its type. `migrate` makes rows of
    this version from those of an earlier one.
    """

    name: str
    keys: pa.Schema
    values: pa.Schema
    initial: Mapping[str, Any] = field(default_factory=dict)
    ttl: int | None = None
    version: int = 1
    migrate: Migrate | None = None

    @property
    def falls_due(self) -> bool:
        """Tell whether its rows have a time at which they fire, or are forgotten."""
        return DUE.name in self.values.names

    @property
    def written(self) -> pa.Schema:
        """Return the columns that a function writes: all but the time at which a row is forgotten."""
        return pa.schema([column for column in self.columns if self.ttl is None or column.name != DUE.name])

    def forgotten_at(self, now: int) -> pa.Scalar:
        """Return when a row that is written at `now` (microseconds) is forgotten, in a state with a time to live."""
        return pa.scalar(now + (self.ttl or 0), TIME)

    @property
    def columns(self) -> pa.Schema:
        """Return its columns, keys first."""
        return pa.schema([*self.keys, *self.values])

    @property
    def stored(self) -> pa.Schema:
        """Return its columns as they are named in the table of states."""
        return pa.schema([field.with_name(column_in_table(field.name, self.version)) for field in self.columns])

    def fill_initial(self, rows: pa.Table) -> pa.Table:
        """Return rows as readers see them: a state without a key has its initial values until it is written."""
        if self.keys.names or rows.num_rows:
            return rows
        return pa.table({value.name: pa.array([self.initial.get(value.name)], value.type) for value in self.values})

    def rename_columns(self, rows: pa.Table) -> pa.Table:
        """Return rows of the table of states with the names that the columns of the state have in functions."""
        names = dict(zip(self.stored.names, self.columns.names, strict=True))
        return rows.rename_columns([names.get(name, name) for name in rows.column_names])

    def as_stored(self, rows: pa.Table) -> pa.Table:
        """Return rows with the names that the columns of the state have in the table of states."""
        names = dict(zip(self.columns.names, self.stored.names, strict=True))
        return rows.rename_columns([names.get(name, name) for name in rows.column_names])

    def ids(self, rows: pa.Table, columns: int | None = None) -> pa.Array:
        """Return the ids of rows in the ledger, up to some columns of the key; different keys have different ids."""
        keys = [rows[name].combine_chunks() for name in self.keys.names[:columns]]
        return tables.identifier("state", pa.repeat(pa.scalar(self.name, pa.string()), rows.num_rows), *keys)

    def under(self, keys: pa.Table, what: str) -> IdFilter:
        """Return the filter of the rows under keys, which have the first columns of the key. Raises TopologyError."""
        leading = self.leading(keys.column_names, what)
        columns = len(leading.names)
        ids = self.ids(self.conform(keys, leading, what), columns)
        return IdFilter(ids.unique(), None if columns == len(self.keys.names) else columns + 2)

    def leading(self, names: list[str], what: str) -> pa.Schema:
        """Return the key columns among `names`. Raises TopologyError unless they are the first of the key."""
        known = self.keys.names
        if not known:
            raise self.refusal(what, "got keys, but the state has none", "Leave them out.")
        count = max((at + 1 for at, name in enumerate(known) if name in names), default=1)
        absent = [name for name in known[:count] if name not in names]
        if absent:
            hint = f"Give it the columns {', '.join(known)}, or only the first of them."
            raise self.refusal(what, f"lacks the column {absent[0]!r}", hint)
        return pa.schema([self.keys.field(name) for name in known[:count]])

    def conform(self, rows: pa.Table, columns: pa.Schema, what: str) -> pa.Table:
        """Return some columns of rows in their declared types. Raises TopologyError, naming `what` was done."""
        self.require_columns(rows.column_names, columns, what)
        try:
            table = pa.table({column.name: rows[column.name].cast(column.type) for column in columns}, columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self.refusal(
                what, f"has values of other types: {error}", "Cast them to the declared types."
            ) from error
        for name in columns.names:
            if name in (*self.keys.names, DUE.name) and table[name].null_count:
                column = f"key {name!r}" if name in self.keys.names else repr(name)
                raise self.refusal(what, f"has a row whose {column} is NULL", "Give it a value, or leave it out.")
        return table

    def require_columns(self, names: list[str], columns: pa.Schema, what: str) -> None:
        """Raise TopologyError if some of the columns were not given."""
        absent = [name for name in columns.names if name not in names]
        if absent:
            hint = f"Give it the columns {', '.join(columns.names)}."
            raise self.refusal(what, f"lacks the column {absent[0]!r}", hint)

    def refusal(self, what: str, problem: str, hint: str) -> TopologyError:
        """Return the error for an operation on the state."""
        return TopologyError(f"{what} of the state {self.name} {problem}", hint)


@dataclass(frozen=True, slots=True)
class Timer(State):
    """Times at which functions want to be called again, each for a key; the other values are its payload.

    A timer that is overdue by more than `cancel_after` (microseconds), because nothing ran, does not fire. Each is set
    at least `min_delay` before it is due.
    """

    cancel_after: int | None = None
    min_delay: int = 0

    def in_time(self, due: pa.Table, until: int) -> pa.Table:
        """Return which of the rows that are due at `until` (microseconds) fire, in the order of their times."""
        if self.cancel_after is not None:
            due = due.filter(pc.greater_equal(due[DUE.name], pa.scalar(until - self.cancel_after, TIME)))
        return due.sort_by([(DUE.name, "ascending"), *((name, "ascending") for name in self.keys.names)])


def column_in_table(column: str, version: int) -> str:
    """Return the name that a column of a version of a state has in the table of states; `due` is Windrow's own."""
    return column if version == 1 or column == DUE.name else f"{column}{tables.OF_VERSION}{version}"
