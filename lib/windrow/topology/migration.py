"""A change of a state's columns: what is allowed, and the rows that it writes.

The settings that the ledger records have the columns of each state. If a topology declares others, the commit that
records them also writes the rows of the state once more, in the new columns. New columns need nothing else. Dropping a
column, or changing a key or a type, needs a greater version of the state, so that an older program stops instead of
changing the state back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import conform, is_not_distinct
from windrow.errors import IncompatibleTableError
from windrow.model import tables
from windrow.runtime.ledger_state import LedgerState
from windrow.topology.state import DUE, State, column_in_table


def recorded_states(declared: Mapping[str, State], rules: str | None, table: pa.Schema) -> dict[str, State]:
    """Return the states as in recorded settings; `table` has the columns of the table of states."""
    settings = json.loads(rules or "{}")
    states = {}
    for name, types in settings.get("states", {}).items():
        state = declared.get(name)
        keys = settings.get("keys", {}).get(name)
        if keys is None:  # the table was written when keys were not recorded
            keys = [] if state is None else [key for key in state.keys.names if key in types]
        version = settings.get("versions", {}).get(name, 1)
        if state is not None and (version, types, keys) == (state.version, types_of(state), state.keys.names):
            states[name] = state
        else:
            states[name] = _recorded_state(name, types, keys, version, table)
    return states


def _recorded_state(name: str, columns: Iterable[str], keys: Sequence[str], version: int, table: pa.Schema) -> State:
    """Return a state with the columns in the settings, in the types and the order of the table."""
    places = {column: table.get_field_index(column_in_table(column, version)) for column in columns}
    order = sorted(places, key=lambda column: (column == DUE.name, places[column]))
    types = {column: table.field(places[column]).type for column in order}
    values = pa.schema([(column, type_) for column, type_ in types.items() if column not in keys])
    return State(name, pa.schema([(key, types[key]) for key in keys]), values, version=version)


def types_of(state: State) -> dict[str, str]:
    """Return the types of the columns of a state, as the settings record them."""
    return {field.name: str(field.type) for field in state.columns}


def require_allowed(declared: Mapping[str, State], recorded: Mapping[str, State]) -> None:
    """Raise IncompatibleTableError if the columns of a state changed in a way that is not declared."""
    for name, state in declared.items():
        before = recorded.get(name, state)
        # guard: no-migration-back
        if state.version < before.version:
            raise IncompatibleTableError(
                f"the state {name} has version {before.version}, but the topology declares version {state.version}",
                "A newer program changed its columns: run that one, or declare a greater version.",
            )
        lost = next(_lost(state, before), None)
        following, changes = before.version + 1, _changes_type(state, before)
        migrate = f"version={following}, migrate=function: it gets the rows as they are, and returns the new ones"
        # guard: nothing-dropped-unasked
        if lost is not None and state.version == before.version:
            hint = f"Declare {migrate}." if changes else f"To drop it, declare version={following}."
            raise IncompatibleTableError(f"the state {name} has {lost}", hint)
        if changes and state.migrate is None:
            raise IncompatibleTableError(f"the state {name} has {lost}", f"Declare {migrate}.")


def _lost(state: State, before: State) -> Iterator[str]:
    """Yield what a state had and no longer has: its key, types, columns."""
    if state.keys.names != before.keys.names:
        yield f"the key {_list_keys(before.keys)}, but the topology declares {_list_keys(state.keys)}"
    for column in before.columns:
        if column.name in state.columns.names and column.type != (type_ := state.columns.field(column.name).type):
            yield f"a column {column.name!r} of type {column.type}, but the topology declares {type_}"
    for column in before.columns:
        if column.name not in state.columns.names:
            yield f"a column {column.name!r}, which the topology does not declare"


def _list_keys(keys: pa.Schema) -> str:
    return f"({', '.join(keys.names)})"


def _changes_type(state: State, before: State) -> bool:
    """Tell whether a key changed, or the type of a column."""
    return state.keys != before.keys or any(
        column.type != state.columns.field(column.name).type
        for column in before.columns
        if column.name in state.columns.names
    )


def migrate_rows(
    declared: Mapping[str, State], recorded: Mapping[str, State], primed: LedgerState
) -> dict[str, pa.Table]:
    """Return the rows to write, perhaps none, of each state whose columns changed.

    Raises IncompatibleTableError for a change that is not declared, TopologyError for what `migrate` cannot do.
    """
    require_allowed(declared, recorded)
    changed = {
        name: recorded[name]
        for name, state in declared.items()
        if name in recorded and recorded[name].stored != state.stored
    }
    return {name: _migrate_state(declared[name], before, primed) for name, before in changed.items()}


def _migrate_state(state: State, before: State, primed: LedgerState) -> pa.Table:
    """Return the rows of a state that change, as the ledger has them, with `known`."""
    both = pa.schema({field.name: field for field in (*before.stored, *state.stored)}.values())
    rows = primed.fence.open.of_state(state.name, both)
    now = rows.append_column("state", pa.repeat(pa.scalar(state.name, pa.string()), rows.num_rows))
    after = _convert_rows(state, before, before.rename_columns(rows.select(before.stored.names)))
    then = state.as_stored(after).append_column("id", state.ids(after))
    twice = then.num_rows - len(pc.unique(then["id"]))
    if twice:
        raise state.refusal("migrate", "has a key twice", "Return one row per key: group by the key first.")
    then = then.append_column("state", pa.repeat(pa.scalar(state.name, pa.string()), then.num_rows))
    written = replace_rows(now, conform(then, now.schema))
    return written.filter(pc.invert(_find_unchanged(written, now, state.stored)))


def _convert_rows(state: State, before: State, rows: pa.Table) -> pa.Table:
    """Return the previous rows in the declared columns."""
    if state.version > before.version and state.migrate is not None:
        try:
            after: Any = state.migrate(rows)
        except Exception as error:  # the function of a user may raise anything
            what = f"failed: {type(error).__name__}: {error}"
            raise state.refusal("migrate", what, "Nothing was changed.") from error
        if not isinstance(after, pa.Table):
            raise state.refusal("migrate", f"returned {type(after).__name__}", "Return a pa.Table.")
        return _with_due(state, state.conform(after, state.written, "migrate"), after)
    for column in state.columns:
        if column.name not in rows.column_names:
            initial = pa.scalar(state.initial.get(column.name), column.type)
            rows = rows.append_column(column, pa.repeat(initial, rows.num_rows))
    return rows.select(state.columns.names).cast(state.columns)


def _with_due(state: State, rows: pa.Table, after: pa.Table) -> pa.Table:
    """Return rows of a state with the times at which they are forgotten, if they have any."""
    if state.ttl is None:
        return rows
    due = after[DUE.name] if DUE.name in after.column_names else pa.nulls(rows.num_rows, DUE.type)
    return rows.append_column(DUE, due.cast(DUE.type)).select(state.columns.names)


def _find_unchanged(written: pa.Table, now: pa.Table, columns: pa.Schema) -> pa.Array:
    """Return which rows to write already exist."""
    at = pc.index_in(written["id"].combine_chunks(), now["id"].combine_chunks())
    same = pc.and_(pc.is_valid(at), pc.invert(pc.fill_null(written[tables.DELETED].combine_chunks(), False)))
    for name in columns.names:
        same = pc.and_(same, is_not_distinct(now[name].take(at).combine_chunks(), written[name].combine_chunks()))
    return same


def replace_rows(now: pa.Table, then: pa.Table) -> pa.Table:
    """Return the rows that replace those of `now` with those of `then`, with `known`."""
    gone = now.filter(pc.invert(pc.is_in(now["id"], then["id"].combine_chunks())))
    parts = ((then.select(now.column_names), None), (gone, True))
    written = pa.concat_tables(_mark_deleted(rows, deleted) for rows, deleted in parts)
    return written.append_column("known", pc.is_in(written["id"], now["id"].combine_chunks()))


def _mark_deleted(rows: pa.Table, deleted: bool | None) -> pa.Table:
    """Return rows as versions, or as tombstones."""
    column = pa.repeat(pa.scalar(deleted, pa.bool_()), rows.num_rows)
    at = rows.schema.get_field_index(tables.DELETED)
    field = pa.field(tables.DELETED, pa.bool_())
    return rows.append_column(field, column) if at < 0 else rows.set_column(at, field, column)
