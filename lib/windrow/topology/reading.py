"""Read the states of a topology, as they are or as they were after a microbatch, and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import conform
from windrow.ledger import Ledger
from windrow.ledger.versions import latest
from windrow.model.id_filter import IdFilter
from windrow.model.tables import DELETED, PROGRESS
from windrow.runtime.ledger_state import LedgerState
from windrow.topology.migration import recorded_states
from windrow.topology.state import State
from windrow.topology.states_table import StatesTable, states_of, states_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Keys = Iterable[Mapping[str, Any]]
HISTORY = [
    "microbatch", "kind", "depot", "depot_version", "versions", "planned_microbatch", "planned_at", "options_used",
    "events_fired", "due_until", "rules", "appended", "migrated", "overtook",
]  # fmt: skip
OF_VERSION = ["id", "revision", DELETED]
Row = dict[str, Any]


def rows_of(location: str, state: State, keys: Keys | None, at: int | None, spark: SparkSession | None) -> pa.Table:
    """Return the rows of a state in the order of their keys, all or those of some keys, after microbatch `at`.

    They have the columns that the state had then. A table in a catalog is read with Spark. Raises NotFoundError,
    TableMissingError, TopologyError.
    """
    table = states_table(location, at, spark)
    state = states_at(table, {state.name: state}).get(state.name, state)
    under = None if keys is None else filter_of(state, keys)
    result = versions_of(table, state, under)
    versions = result if under is None else under.among(result)
    result = state.rename_columns(conform(latest(versions), state.stored))
    if not state.keys.names:
        return result
    return result.sort_by([(name, "ascending") for name in state.keys.names])


def versions_of(table: StatesTable, state: State, under: IdFilter | None = None) -> pa.Table:
    """Return the versions of a state's rows, all or those under some keys and perhaps others, in their columns."""
    return table.rows([state.name], [*OF_VERSION, *state.stored.names], under)


def states_at(table: StatesTable, declared: Mapping[str, State]) -> dict[str, State]:
    """Return the states that a version of the table of states has, as its settings record them."""
    return recorded_states(declared, rules_at(table), table.schema)


def rules_at(table: StatesTable) -> str | None:
    """Return the settings that a version of the table of states records."""
    rows = table.rows(["progress"], [*OF_VERSION, "rules"])
    rows = latest(rows.filter(pc.equal(rows["id"], PROGRESS)))
    return next(iter(rows["rules"].to_pylist()), None)


def pieces_of(table: StatesTable, state: State) -> Iterator[pa.Table]:
    """Yield the versions of all rows of a state in pieces, at least one; Spark's table is one piece."""
    return map(state.rename_columns, table.pieces(state.name, [*OF_VERSION, *state.stored.names]))


def filter_of(state: State, keys: Keys) -> IdFilter:
    """Return the filter of the rows under keys, which all have the same first key columns. Raises TopologyError."""
    listed = [dict(key) for key in keys]
    unknown = {name for key in listed for name in key if name not in state.keys.names}
    if unknown:
        hint = f"The keys of the state are {', '.join(state.keys.names) or 'none'}."
        raise state.refusal("read", f"has no key {min(unknown)!r}", hint)
    names = [name for name in state.keys.names if not listed or any(name in key for key in listed)]
    return state.under(pa.table({name: pa.array([key.get(name) for key in listed]) for name in names}), "read")


def history_rows(table: StatesTable, columns: list[str]) -> pa.Table:
    """Return columns of the history in order; a microbatch has one row for each depot that it read, or one alone."""
    rows = table.rows(["microbatch"], columns)
    for name in columns:
        if name not in rows.column_names:  # the table was written before this column existed
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.sort_by([("microbatch", "ascending"), ("depot", "ascending")])


def removed_states(new: Mapping[str, State], primed: LedgerState, ledger: Ledger) -> dict[str, State]:
    """Return those of some new states that were declared before and left rows, as they were then."""
    there = {name for name in new if primed.fence.open.of_state(name, pa.schema([])).num_rows}
    rules = history_rows(states_of(ledger), ["microbatch", "depot", "rules"])["rules"].to_pylist() if there else []
    schema, states = primed.progress.schema, dict[str, State]()
    for text in dict.fromkeys(rules):
        states |= {name: state for name, state in recorded_states(new, text, schema).items() if name in there}
    return states


def history_of(ledger: Ledger) -> list[Row]:
    """Return the rows of the history in order."""
    rows: list[Row] = history_rows(states_of(ledger), HISTORY).to_pylist()
    return rows


def first_read(ledger: Ledger) -> dict[str, int]:
    """Return the first version of each depot that was ever read, from the history."""
    rows = history_rows(states_of(ledger), ["microbatch", "depot", "versions"]).combine_chunks()
    versions = rows["versions"].combine_chunks()
    read = pa.table(
        {
            "depot": rows["depot"].take(pc.list_parent_indices(versions)),
            "version": pc.list_flatten(versions).field("version"),
        }
    )
    first = read.group_by("depot").aggregate([("version", "min")])
    return dict(zip(first["depot"].to_pylist(), first["version_min"].to_pylist(), strict=True))


def counting(rows: list[Row]) -> list[Row]:
    """Return the rows of the microbatches that changed states and that no rollback took back, in order.

    A rollback may go to a microbatch that an earlier rollback took back: the earlier one then does not count.
    """
    kept, to = list[Row](), None
    for row in reversed(rows):
        if to is not None and row["microbatch"] > to:
            continue
        if row["kind"] == "rollback" and row["options_used"] is not None:
            to = json.loads(row["options_used"])["to_microbatch"]
        elif row["kind"] in ("data", "tick", "skip") or row["migrated"]:
            kept.append(row)
    return kept[::-1]
