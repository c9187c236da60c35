"""A state in the hands of a function of Arrow tables."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import TopologyRefused
from windrow.topology.state import DELETED, State

Combine = Callable[[pa.Table, pa.Table], pa.Array]


class ArrowState:
    """The rows of a state before the microbatch, and helpers for what a function returns."""

    def __init__(self, state: State, rows: pa.Table) -> None:
        """Hold the rows, in the columns of the state."""
        self._state, self.rows = state, rows

    def has(self, keys: pa.Table) -> pa.Array:
        """Tell for each row of `keys` (the key columns) whether the state has it."""
        cast = keys.select(self._state.keys.names).cast(self._state.keys)
        return pc.is_in(self._state.ids(cast), self._state.ids(self.rows))

    def lookup(self, keys: pa.Table) -> pa.Table:
        """Return for each row of `keys` (the key columns) the row of the state, NULL in the values of one not there."""
        return self._joined(keys.select(self._state.keys.names))

    def upsert(self, new: pa.Table, **columns: Combine) -> pa.Table:
        """Return rows to write: for each row of `new`, by key, the values that it has.

        A value given as `name=lambda old, new: ...` is computed of two tables of equal length: the rows as they were
        (NULL where there was none) and the new ones. Raises TopologyRefused for a name that is no value.
        """
        self._state.require_values(columns)
        keys = self._state.keys.names
        old = self._joined(new.select(keys)) if columns else new
        written = {name: new[name] for name in keys}
        for name in self._state.values.names:
            if name in columns:
                written[name] = columns[name](old, new)
            elif name in new.column_names:
                written[name] = new[name]
            else:
                raise TopologyRefused(
                    f"upsert: nothing says what {name!r} of the state {self._state.name} becomes",
                    f"Give it as a column, or as {name}=lambda old, new: ...",
                )
        return pa.table(written)

    def delete(self, keys: pa.Table) -> pa.Table:
        """Return rows that make keys go."""
        rows = keys.select(self._state.keys.names)
        for value in self._state.values:
            rows = rows.append_column(value, pa.nulls(rows.num_rows, value.type))
        return rows.append_column(DELETED, pa.repeat(True, rows.num_rows))

    def _joined(self, keys: pa.Table) -> pa.Table:
        """Return the rows of keys in their order."""
        cast = keys.cast(self._state.keys)
        wanted, known = self._state.ids(cast), self._state.ids(self.rows)
        at = pc.index_in(wanted, known)
        found = self.rows.select(self._state.values.names).take(at)
        return pa.table(dict(zip(cast.column_names + found.column_names, cast.columns + found.columns, strict=True)))
