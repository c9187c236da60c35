"""The declaration of a state: its keys, its values, and what a key that was never written has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.errors import TopologyRefused
from windrow.model import tables
from windrow.model.id_filter import IdFilter


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

    def ids(self, rows: pa.Table, columns: int | None = None) -> pa.Array:
        """Return the ids of rows in the ledger, up to some columns of the key; different keys have different ones."""
        keys = [rows[name].combine_chunks() for name in self.keys.names[:columns]]
        return tables.identifier("state", pa.repeat(pa.scalar(self.name, pa.string()), rows.num_rows), *keys)

    def under(self, keys: pa.Table, what: str) -> IdFilter:
        """Return the filter of the rows under keys, which have the first columns of the key. Raises TopologyRefused."""
        leading = self.leading(keys.column_names, what)
        columns = len(leading.names)
        ids = self.ids(self.conformed(keys, leading, what), columns)
        return IdFilter(ids.unique(), None if columns == len(self.keys.names) else columns + 2)

    def leading(self, given: list[str], what: str) -> pa.Schema:
        """Return the key columns among given ones. Raises TopologyRefused unless they are the first of the key."""
        known = self.keys.names
        if not known:
            raise self.refused(what, "got keys, but the state has none", "Leave them out.")
        count = max((at + 1 for at, name in enumerate(known) if name in given), default=1)
        absent = [name for name in known[:count] if name not in given]
        if absent:
            hint = f"Give it the columns {', '.join(known)}, or only the first of them."
            raise self.refused(what, f"lacks the column {absent[0]!r}", hint)
        return pa.schema([self.keys.field(name) for name in known[:count]])

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
