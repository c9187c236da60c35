"""The status and the history of a topology, read without changing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.delta.table import open_table
from windrow.errors import NotFound
from windrow.ledger import Ledger
from windrow.model.timestamps import time_text
from windrow.reading.tables import Ledger as Book
from windrow.runtime.ledger_state import DepotState, prime
from windrow.settings.settings import Settings
from windrow.source import Source
from windrow.topology.event import scheduled
from windrow.topology.options import set_options
from windrow.topology.running import tables_of
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
    sources, ledger = tables_of(topology, settings, session)
    require_run(topology, ledger)
    primed = prime(ledger, list(sources))
    due = scheduled(primed.fence.rows)
    events = {name: time_text(due[name]) for name in topology.events if name in due}
    return Standing(
        topology=topology.name,
        path=topology.location,
        engine=ledger.engine_name,
        paused=primed.paused,
        microbatch=primed.microbatch,
        depots=[_offset(topology, name, source, primed.depots[name]) for name, source in sources.items()],
        states={name: primed.fence.open.of_state(name, pa.schema([])).num_rows for name in topology.states},
        events=events,
        options=set_options(primed),
        other_depots=sorted(set(primed.fence.rows["depot"].drop_null().to_pylist()) - set(sources)),
    )


def require_run(topology: Topology, ledger: Ledger) -> None:
    """Raise NotFound if there is no table of states yet."""
    if ledger.table() is None:
        raise NotFound(
            f"the topology {topology.name} never ran: {topology.location} does not exist",
            "Start it with `windrow run`.",
        )


def book_of(topology: Topology, settings: Settings) -> Book:
    """Return the table of states as `windrow.reading` reads it. Raises NotFound if the topology never ran."""
    ledger = tables_of(topology, settings)[1]
    require_run(topology, ledger)
    table = open_table(str(ledger.path), "ledger")
    return Book(table, str(ledger.path), table.version())


def _offset(topology: Topology, name: str, source: Source, state: DepotState) -> DepotOffset:
    version, clocks, reached = source.depot().version, state.sources.clock, state.reached
    return DepotOffset(
        name=name,
        path=topology.depots[name].location,
        start_from=reached.start_from,
        read_version=reached.depot_version,
        version=version,
        versions_waiting=max(0, version - reached.depot_version),
        clock=time_text(int(clocks.max())) if clocks.size else None,
    )
