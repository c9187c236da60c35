"""A state as a function that works with Arrow tables sees it."""

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
        """Wrap the rows, in the columns of the state."""
        self._state, self.rows = state, rows

    def has(self, keys: pa.Table) -> pa.Array:
        """Tell for each row of `keys` (the key columns) whether the state has it."""
        cast = keys.select(self._state.keys.names).cast(self._state.keys)
        return pc.is_in(self._state.ids(cast), self._state.ids(self.rows))

    def lookup(self, keys: pa.Table) -> pa.Table:
        """Return for each row of `keys` (the key columns) the row of the state; the values of missing keys are NULL."""
        return self._joined(keys.select(self._state.keys.names))

    def upsert(self, new: pa.Table, **columns: Combine) -> pa.Table:
        """Return the rows to write for the keys and values in `new`.

        A value given as `name=lambda old, new: ...` is computed from two tables of equal length: the rows before (NULL
        for new keys) and the new rows. Raises TopologyRefused for a name that is not a value of the state.
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
                    f"upsert: the value {name!r} of the state {self._state.name} is missing",
                    f"Add it as a column, or as {name}=lambda old, new: ...",
                )
        return pa.table(written)

    def delete(self, keys: pa.Table) -> pa.Table:
        """Return the rows that delete keys."""
        rows = keys.select(self._state.keys.names)
        for value in self._state.values:
            rows = rows.append_column(value, pa.nulls(rows.num_rows, value.type))
        return rows.append_column(DELETED, pa.repeat(True, rows.num_rows))

    def _joined(self, keys: pa.Table) -> pa.Table:
        """Return the rows of keys, in the order of the keys."""
        cast = keys.cast(self._state.keys)
        wanted, known = self._state.ids(cast), self._state.ids(self.rows)
        at = pc.index_in(wanted, known)
        found = self.rows.select(self._state.values.names).take(at)
        return pa.table(dict(zip(cast.column_names + found.column_names, cast.columns + found.columns, strict=True)))
