"""The status and the history of a topology, read without changing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windrow.columnar.arrow import plain
from windrow.delta.table import open_table, reading
from windrow.engine.protocol import WholeEngine
from windrow.errors import NotFound
from windrow.model import tables
from windrow.model.timestamps import time_text
from windrow.runtime.progress import LedgerState, prime
from windrow.settings.settings import Settings
from windrow.topology.event import scheduled
from windrow.topology.options import set_options
from windrow.topology.running import engine_of
from windrow.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class DepotOffset:
    """How far a depot is read; `versions_waiting` counts all later versions, even those without rows."""

    name: str
    path: str
    start_from: str
    read_version: int
    version: int
    versions_waiting: int
    clock: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The status of a topology: positions, rows per state, the times at which events are due, and options."""

    topology: str
    path: str
    engine: str
    paused: bool
    microbatch: int
    depots: list[DepotOffset]
    states: Mapping[str, int]
    events: Mapping[str, str]
    options: Mapping[str, str]
    other_depots: list[str]


def standing(topology: Topology, settings: Settings, session: Any = None) -> Standing:
    """Return the status of a topology. Raises NotFound if it never ran, TableMissing, TableRefused."""
    engines = engines_of(topology, settings, session)
    first = next(iter(engines.values()))
    require_run(topology, first)
    primed = {name: prime(engine, name) for name, engine in engines.items()}
    any_of = next(iter(primed.values()))
    due = scheduled(any_of.fence.rows)
    events = {name: time_text(due[name]) for name in topology.events if name in due}
    return Standing(
        topology=topology.name,
        path=topology.state,
        engine=first.name,
        paused=any_of.paused,
        microbatch=any_of.microbatch,
        depots=[_offset(topology, name, engine, primed[name]) for name, engine in engines.items()],
        states={name: any_of.of_state(name).num_rows for name in topology.states},
        events=events,
        options=set_options(any_of),
        other_depots=sorted(_recorded(any_of) - set(engines)),
    )


def engines_of(topology: Topology, settings: Settings, session: Any = None) -> dict[str, WholeEngine]:
    """Return the engine of each depot, by name."""
    return {name: engine_of(topology, depot, settings, session) for name, depot in topology.depots.items()}


def require_run(topology: Topology, engine: WholeEngine) -> None:
    """Raise NotFound if there is no table of states yet."""
    if engine.ledger() is None:
        raise NotFound(
            f"the topology {topology.name} never ran: {topology.state} does not exist", "Start it with `windrow run`."
        )


def microbatches(topology: Topology, engine: WholeEngine, last: int) -> list[dict[str, Any]]:
    """Return the last microbatches of a topology in order. Raises NotFound if it never ran."""
    require_run(topology, engine)
    location = str(engine.path_of("ledger"))
    names = [name for name, _ in (*tables.HISTORY, *tables.TOPOLOGY_FIELDS) if name not in HIDDEN]
    with reading(location, "ledger"):
        found = open_table(location, "ledger").to_pyarrow_table(filters=[("state", "=", "microbatch")], columns=names)
    rows: list[dict[str, Any]] = plain(found).sort_by("microbatch").to_pylist()[-last:]
    return rows


HIDDEN = {"clocks", "columns", "opened", "closed", "due", "event", "option", "option_value"}


def _offset(topology: Topology, name: str, engine: WholeEngine, primed: LedgerState) -> DepotOffset:
    version = engine.depot().version
    clocks = primed.sources.clock
    return DepotOffset(
        name=name,
        path=topology.depots[name].location,
        start_from=primed.reached.start_from,
        read_version=primed.reached.depot_version,
        version=version,
        versions_waiting=max(0, version - primed.reached.depot_version),
        clock=time_text(int(clocks.max())) if clocks.size else None,
    )


def _recorded(primed: LedgerState) -> set[str]:
    """Return the names of all depots that were ever read."""
    names = primed.fence.rows["depot"].drop_null().to_pylist()
    return set(names)
