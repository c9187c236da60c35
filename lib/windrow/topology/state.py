"""The declaration of a state: its keys, its values, and what a key that was never written has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.errors import TopologyRefused
from windrow.model import tables


@dataclass(frozen=True, slots=True)
class State:
    """Rows by key. Without a key it is one row. `initial` has the values of a key that was never written."""

    name: str
    keys: pa.Schema
    values: pa.Schema
    initial: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> pa.Schema:
        """Return its columns, keys first."""
        return pa.schema([*self.keys, *self.values])

    def ids(self, rows: pa.Table) -> pa.Array:
        """Return the ids of rows in the ledger; different keys have different ids."""
        keys = [rows[name].combine_chunks() for name in self.keys.names]
        return tables.identifier("state", pa.repeat(pa.scalar(self.name, pa.string()), rows.num_rows), *keys)

    def conformed(self, rows: pa.Table, columns: pa.Schema, what: str) -> pa.Table:
        """Return some columns of rows in their declared types. Raises TopologyRefused, naming `what` was done."""
        self.require_columns(rows.column_names, columns, what)
        try:
            found = pa.table({one.name: rows[one.name].cast(one.type) for one in columns}, columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self.refused(
                what, f"has values of other types: {error}", "Cast them to the declared types."
            ) from error
        for name in columns.names:
            if name in self.keys.names and found[name].null_count:
                raise self.refused(what, f"has a row whose key {name!r} is NULL", "Give it a value, or leave it out.")
        return found

    def require_columns(self, given: list[str], columns: pa.Schema, what: str) -> None:
        """Raise TopologyRefused if some of the columns were not given."""
        absent = [name for name in columns.names if name not in given]
        if absent:
            hint = f"Give it the columns {', '.join(columns.names)}."
            raise self.refused(what, f"lacks the column {absent[0]!r}", hint)

    def refused(self, what: str, problem: str, hint: str) -> TopologyRefused:
        """Return the error of something that was done to the state."""
        return TopologyRefused(f"{what} of the state {self.name} {problem}", hint)
