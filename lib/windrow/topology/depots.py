"""The depots of a topology: the settings and the source with which each is read."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from windrow.engine import Engine
from windrow.errors import TableMissingError, TopologyError
from windrow.ledger import Ledger, ledger_of
from windrow.runtime.ledger_state import prime
from windrow.settings.settings import Settings
from windrow.source import Source, source_of
from windrow.source.depot_rows import StateChanges
from windrow.topology.migration import recorded_states
from windrow.topology.topology import Depot, Topology

FRAME_ROWS = 20_000  # with more, functions on DataFrames get rows that were never on the driver


def settings_of(topology: Topology, depot: Depot, settings: Settings) -> Settings:
    """Return the settings for reading a depot."""
    values: dict[str, Any] = {
        "depot": depot.location,
        "ledger": topology.location,
        "depot_columns": dict(depot.columns),
        "idle_timeout": 0,
    }
    if depot.start_from is not None:
        values["start_from"] = depot.start_from
    if topology.functions and all(function.form == "spark" for function in topology.functions):
        values["max_driver_messages"] = min(settings.max_driver_messages, FRAME_ROWS)
    return settings.model_copy(update=values)


def source_of_depot(engine: Engine, depot: Depot, used: Settings) -> Source:
    """Return the source that reads a depot, which may be a state of another topology."""
    if depot.state is None:
        return source_of(engine, used, rows=True)
    other = ledger_of(engine, used.model_copy(update={"ledger": depot.location}))
    return source_of(engine, used, _changes(other, depot.state))


def _changes(ledger: Ledger, state: str) -> StateChanges:
    """Return another topology's state as a depot, with its columns. Raises TableMissingError, TopologyError."""
    location, table = ledger.settings.ledger, ledger.table()
    if table is None:
        raise TableMissingError(
            f"there is no table of states at {location}", "Run the topology that it belongs to first."
        )
    rules = prime(ledger, ()).rules
    states = recorded_states({}, rules, table.schema)
    if state not in states:
        known = f"Its states are {', '.join(states)}." if states else "It is not the table of a topology."
        raise TopologyError(f"{location} has no state {state!r}", known)
    recorded, kept = states[state], set(states[state].stored.names)
    columns = pa.schema([field.with_nullable(True) for field in table.schema if field.name in kept])
    keys = json.loads(rules).get("keys", {}).get(state)
    return StateChanges(
        state, recorded.rename_columns(columns.empty_table()).schema, None if keys is None else tuple(keys)
    )
