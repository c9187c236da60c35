"""The declaration of a state, and the conversion of a function's result to ledger rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import TopologyRefused
from windrow.model import tables

Form = Literal["arrow", "spark"]
DELETED = "deleted"  # the column by which a function deletes keys


@dataclass(frozen=True, slots=True)
class State:
    """A partitioned state: rows with keys, and the function that returns the rows that a microbatch changes."""

    name: str
    keys: pa.Schema
    values: pa.Schema
    function: Callable[[Any], Any]
    form: Form
    depot: str | None

    @property
    def columns(self) -> pa.Schema:
        """Return its columns, keys first."""
        return pa.schema([*self.keys, *self.values])

    def ids(self, rows: pa.Table) -> pa.Array:
        """Return the ids of rows in the ledger; different keys have different ids."""
        keys = [rows[field.name].combine_chunks() for field in self.keys]
        return tables.identifier("state", pa.array([self.name] * rows.num_rows, pa.string()), *keys)

    def require_values(self, names: Iterable[str]) -> None:
        """Raise TopologyRefused for a name that is not a value of the state."""
        unknown = set(names) - set(self.values.names)
        if unknown:
            raise TopologyRefused(
                f"upsert: the state {self.name} has no value {min(unknown)!r}",
                f"It has {', '.join(self.values.names)}.",
            )

    def changes(self, returned: pa.Table, live: pa.Table, schema: pa.Schema) -> pa.Table:
        """Convert a function's result to ledger rows with `known`; `live` are the rows of the state.

        Deleting a missing key has no effect. Raises TopologyRefused for columns or types that differ from the declared
        ones, a duplicate key, or a key with NULL in it.
        """
        changed = self._conformed(returned)
        ids = self.ids(changed)
        known = pc.is_in(ids, live["id"].combine_chunks())
        gone = changed[DELETED].combine_chunks()
        columns: dict[str, object] = {field.name: changed[field.name] for field in self.values}
        columns |= {field.name: changed[field.name] for field in self.keys}
        columns |= {"id": ids, "state": pc.if_else(gone, tables.GONE, self.name)}
        rows = tables.rows(schema, columns, changed.num_rows).append_column("known", known)
        return rows.filter(pc.or_(known, pc.invert(gone)))

    def _conformed(self, returned: pa.Table) -> pa.Table:
        absent = [name for name in self.columns.names if name not in returned.column_names]
        deletes = DELETED in returned.column_names
        if deletes and not set(absent) & set(self.keys.names):  # deleted keys need no values
            absent = [] if pc.all(pc.equal(returned[DELETED], True)).as_py() in (True, None) else absent
        unknown = [name for name in returned.column_names if name not in (*self.columns.names, DELETED)]
        if set(absent) | set(unknown):
            raise self._failed(
                f"returned the columns {', '.join(returned.column_names)}", f"Return {', '.join(self.columns.names)}."
            )
        try:
            cast = {field.name: self._column(returned, field) for field in self.columns}
        except pa.ArrowInvalid as error:
            raise self._failed(f"returned other types: {error}", "Cast them to the declared types.") from error
        gone = pc.fill_null(returned[DELETED], False) if deletes else pa.repeat(False, returned.num_rows)
        rows = pa.table({**cast, DELETED: gone})
        for name in self.keys.names:
            if rows[name].null_count:
                raise self._failed(f"returned a row whose key {name!r} is NULL", "Give it a value, or leave it out.")
        if rows.group_by(self.keys.names).aggregate([]).num_rows != rows.num_rows:
            raise self._failed("returned a key twice", "Return one row per key: group by the key first.")
        return rows

    @staticmethod
    def _column(returned: pa.Table, field: pa.Field) -> Any:
        if field.name not in returned.column_names:
            return pa.nulls(returned.num_rows, field.type)
        return returned[field.name].cast(field.type)

    def _failed(self, what: str, hint: str) -> TopologyRefused:
        return TopologyRefused(f"the function of the state {self.name} {what}", hint)
