"""Read the states of a topology, as they are or as they were after a microbatch, and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.columnar.arrow import in_columns, plain
from windrow.delta.locations import is_catalog_name, reference
from windrow.delta.log import ledger_schema_of
from windrow.delta.table import filtered, history, open_table, reading
from windrow.errors import NotFound
from windrow.ledger import Ledger
from windrow.ledger.versions import latest
from windrow.model.commits import note_of
from windrow.model.id_filter import IdFilter
from windrow.model.tables import DELETED, PROGRESS
from windrow.runtime.ledger_state import LedgerState
from windrow.topology.migration import recorded_states
from windrow.topology.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HINT = "`windrow status --history 20` lists the microbatches; the setting keep says how far back the log reaches."
Keys = Iterable[Mapping[str, Any]]
HISTORY = [
    "microbatch", "kind", "depot", "depot_version", "versions", "planned_id", "planned_at", "options_used",
    "events_fired", "due_until", "rules", "appended", "migrated", "overtook",
]  # fmt: skip
OF_VERSION = ["id", "revision", DELETED]
Row = dict[str, Any]


def rows_of(location: str, state: State, keys: Keys | None, at: int | None, spark: SparkSession | None) -> pa.Table:
    """Return the rows of a state in the order of their keys, all or those of some keys, after microbatch `at`.

    They have the columns that the state had then. A table in a catalog is read with Spark. Raises NotFound,
    TableMissing, TopologyRefused.
    """
    table = _SparkTable.of(location, at, spark) if is_catalog_name(location) else _FileTable.of(location, at)
    state = table.recorded(state)
    under = None if keys is None else filter_of(state, keys)
    found = table.versions(state, under)
    versions = found if under is None else under.among(found)
    found = state.named(in_columns(latest(versions), state.stored))
    if not state.keys.names:
        return found
    return found.sort_by([(name, "ascending") for name in state.keys.names])


def versions_of(table: DeltaTable, state: State, under: IdFilter | None = None) -> pa.Table:
    """Return the versions of the rows of a state, all or those under some keys and perhaps others, in their columns."""
    names = [name for name in state.stored.names if name in pa.schema(table.schema().to_arrow()).names]
    with reading(table.table_uri, "ledger"):
        return plain(filtered(table, _conditions(state, under), [*OF_VERSION, *names]))


@dataclass(frozen=True, slots=True)
class _FileTable:
    """The table of states at a version, as delta-rs reads it."""

    table: DeltaTable

    @classmethod
    def of(cls, location: str, at: int | None) -> _FileTable:
        return cls(open_table(location, "ledger") if at is None else version_after(location, at))

    def recorded(self, state: State) -> State:
        """Return a state with the columns that it has at this version."""
        return states_at(self.table, {state.name: state}).get(state.name, state)

    def versions(self, state: State, under: IdFilter | None) -> pa.Table:
        """Return the versions of the rows of a state."""
        return versions_of(self.table, state, under)


def states_at(table: DeltaTable, declared: Mapping[str, State]) -> dict[str, State]:
    """Return the states that a version of the table of states has, as its settings record them."""
    return recorded_states(declared, rules_at(table), ledger_schema_of(pa.schema(table.schema().to_arrow())))


def rules_at(table: DeltaTable) -> str | None:
    """Return the settings that a version of the table of states records."""
    own = [("state", "=", "progress"), ("id", "=", PROGRESS)]
    with reading(table.table_uri, "ledger"):
        found = latest(plain(filtered(table, own, [*OF_VERSION, "rules"])))
    return next(iter(found["rules"].to_pylist()), None)


def filter_of(state: State, keys: Keys) -> IdFilter:
    """Return the filter of the rows under keys, which all have the same first key columns. Raises TopologyRefused."""
    listed = [dict(key) for key in keys]
    unknown = {name for key in listed for name in key if name not in state.keys.names}
    if unknown:
        hint = f"The keys of the state are {', '.join(state.keys.names) or 'none'}."
        raise state.refused("read", f"has no key {min(unknown)!r}", hint)
    given = [name for name in state.keys.names if not listed or any(name in key for key in listed)]
    return state.under(pa.table({name: pa.array([key.get(name) for key in listed]) for name in given}), "read")


def _conditions(state: State, under: IdFilter | None) -> list[list[tuple[str, str, Any]]]:
    """Return filters of the rows of a state, one of which a row under the keys passes."""
    own: tuple[str, str, Any] = ("state", "=", state.name)
    if under is None:
        return [[own]]
    if under.components is None:
        return [[own, ("id", "in", under.ids.to_pylist() or [""])]]  # Arrow knows no type of an empty list
    return [[own, ("id", ">=", first), ("id", "<", stop)] for first, stop in under.spans()]


def version_after(location: str, microbatch: int) -> DeltaTable:
    """Return the table of states after the commit of a microbatch; 0 is the new table. Raises NotFound."""
    table = open_table(location, "ledger")
    with reading(location, "ledger"):
        return DeltaTable(location, version=_version(history(table), microbatch))


def _version(commits: Iterable[Mapping[str, Any]], microbatch: int) -> int:
    """Return the version of a microbatch: the last one if the table was restored in between."""
    versions = (int(one["version"]) for one in commits if note_of(one).get("microbatch") == microbatch)
    found = 0 if microbatch == 0 else max(versions, default=None)
    if found is None:
        raise NotFound(f"the log of the states has no commit of microbatch {microbatch}", HINT)
    return found


@dataclass(frozen=True, slots=True)
class _SparkTable:
    """The table of states in a catalog at a version, as Spark reads it."""

    frame: DataFrame

    @classmethod
    def of(cls, location: str, at: int | None, spark: SparkSession | None) -> _SparkTable:
        from windrow.engine.spark.session import find_session

        session = spark or find_session(location, location)
        reader = session.read
        if at is not None:
            rows = session.sql(f"DESCRIBE HISTORY {reference(location)}").select("version", "userMetadata").collect()
            reader = reader.option("versionAsOf", _version([row.asDict() for row in rows], at))
        return cls(reader.table(reference(location)))

    def recorded(self, state: State) -> State:
        """Return a state with the columns that it has at this version."""
        from windrow.rows.frame import schema_of

        own = self.frame.where(f"state = 'progress' AND id = '{PROGRESS}'").select(*OF_VERSION, "rules")
        rules = latest(plain(own.toArrow()))["rules"].to_pylist()
        table = ledger_schema_of(schema_of(self.frame))
        return recorded_states({state.name: state}, next(iter(rules), None), table).get(state.name, state)

    def versions(self, state: State, under: IdFilter | None) -> pa.Table:
        """Return the versions of the rows of a state, all or those under some keys and perhaps others."""
        from windrow.ledger.open_batches import matching

        frame = self.frame.where(f"state = '{state.name}'")
        if under is not None:
            frame = matching(frame, under)
        names = [name for name in state.stored.names if name in frame.columns]
        return plain(frame.select(*OF_VERSION, *(f"`{name}`" for name in names)).toArrow())


def history_rows(location: str, columns: list[str]) -> pa.Table:
    """Return columns of the history in order; a microbatch has one row for each depot that it read, or one alone."""
    with reading(location, "ledger"):
        table = open_table(location, "ledger")
        known = pa.schema(table.schema().to_arrow()).names
        found = plain(filtered(table, [("state", "=", "microbatch")], [name for name in columns if name in known]))
    for name in columns:
        if name not in known:  # the table was written before there was this column
            found = found.append_column(name, pa.nulls(found.num_rows))
    return found.sort_by([("microbatch", "ascending"), ("depot", "ascending")])


def removed_states(new: Mapping[str, State], primed: LedgerState, ledger: Ledger) -> dict[str, State]:
    """Return those of some new states that were declared before and left rows, as they were then."""
    there = {name for name in new if primed.fence.open.of_state(name, pa.schema([])).num_rows}
    rules = history_rows(str(ledger.path), ["microbatch", "depot", "rules"])["rules"].to_pylist() if there else []
    schema, found = primed.progress.schema, dict[str, State]()
    for text in dict.fromkeys(rules):
        found |= {name: state for name, state in recorded_states(new, text, schema).items() if name in there}
    return found


def history_of(ledger: Ledger) -> list[Row]:
    """Return the rows of the history in order."""
    rows: list[Row] = history_rows(str(ledger.path), HISTORY).to_pylist()
    return rows


def first_read(ledger: Ledger) -> dict[str, int]:
    """Return the first version of each depot that was ever read, from the history."""
    rows = history_rows(str(ledger.path), ["microbatch", "depot", "versions"]).combine_chunks()
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
    """Return the rows of the microbatches that changed states, and that no rollback took back, in order.

    A rollback may go to a microbatch that an earlier rollback took back: then that one does not count.
    """
    kept, to = list[Row](), None
    for row in reversed(rows):
        if to is not None and row["microbatch"] > to:
            continue
        if row["kind"] == "rollback" and row["options_used"] is not None:
            to = json.loads(row["options_used"])["to_microbatch"]
        elif row["kind"] in ("data", "tick", "accept") or row["migrated"]:
            kept.append(row)
    return kept[::-1]
