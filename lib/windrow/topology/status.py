"""The status of a topology: that of its ledger, with its states, when something is due, and its options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windrow.engine.embedded import EmbeddedEngine
from windrow.errors import NotFoundError, TableMissingError
from windrow.ledger import Ledger, ledger_of
from windrow.model.clock import UNKNOWN
from windrow.model.timestamps import time_text
from windrow.reading.status import DepotPlace, DepotStatus, Places, Status, common_status
from windrow.reading.tables import Ledger as Book
from windrow.reading.tables import open_ledger
from windrow.reading.values import records
from windrow.settings.settings import Settings
from windrow.topology.feeding import feeders_of
from windrow.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """A depot for which the others wait, because a topology has not yet read what comes before their rows.

    That topology stopped at the time `reached` (None: it has read nothing), at wall time `since`.
    """

    depot: str
    topology: str
    reached: str | None
    since: str | None


@dataclass(frozen=True, slots=True)
class TopologyStatus(Status):
    """The status of a topology: the rows of each state, when events and timers are due, and the options that are set.

    In step, `waits` says for which topologies it waits. `former_depots` were read before and are no longer part of
    the topology.
    """

    topology: str
    states: dict[str, int]
    events_due_at: dict[str, str]
    options: dict[str, str]
    waits: list[WaitStatus]
    former_depots: list[str]


def status_of(topology: Topology, now: int, settings: Settings | None = None) -> TopologyStatus:
    """Read the status of a topology at wall time `now` (microseconds).

    Raises NotFoundError if it never ran, TableMissingError, IncompatibleTableError, DepotMismatchError.
    """
    book = book_of(topology)
    counts = book.rows((*topology.states, ""), "state, count(*) AS rows", rest="GROUP BY state")
    states = dict(zip(counts["state"].to_pylist(), counts["rows"].to_pylist(), strict=True))
    due = {row["event"]: row["due"] for row in records(book.rows("event", "event, due"))}
    options = book.rows("option", "option, option_value", rest="ORDER BY option").to_pylist()
    others = book.rows("progress", "DISTINCT depot", "depot IS NOT NULL", "ORDER BY depot")["depot"].to_pylist()
    common = common_status(book, places_of(topology), now)
    return TopologyStatus(
        **common,
        topology=topology.name,
        states={name: states.get(name, 0) for name in topology.states},
        events_due_at={name: due[name] for name in (*topology.events, *topology.states) if name in due},
        options={row["option"]: row["option_value"] for row in options},
        waits=_waits(topology, common["depots"], now, settings or Settings.load()) if topology.in_step else [],
        former_depots=[name for name in others if name not in topology.depots],
    )


def _waits(topology: Topology, depots: Iterable[DepotStatus], now: int, settings: Settings) -> list[WaitStatus]:
    """Return the depots that have nothing to read, and for which others wait."""
    used = settings.model_copy(update={"ledger": topology.location})
    waiting = {depot.name for depot in depots if depot.versions_waiting}
    waits = []
    for name, feeder in feeders_of(topology, ledger_of(EmbeddedEngine(used), used)).items():
        if not waiting or name in waiting:
            continue
        position = feeder.position(now)
        if position.since is not None:
            reached = None if position.clock == UNKNOWN else time_text(position.clock)
            waits.append(WaitStatus(name, position.feeder, reached, time_text(position.since)))
    return waits


def places_of(topology: Topology) -> Places:
    """Return where its depots are."""
    return {name: DepotPlace(depot.location, depot.state) for name, depot in topology.depots.items()}


def book_of(topology: Topology) -> Book:
    """Open the table of states to read it. Raises NotFoundError if the topology never ran, IncompatibleTableError."""
    try:
        return open_ledger(topology.location, of_topology=True)
    except TableMissingError as missing:
        raise _never_ran(topology) from missing


def require_run(topology: Topology, ledger: Ledger) -> None:
    """Raise NotFoundError if there is no table of states yet."""
    if ledger.table() is None:
        raise _never_ran(topology)


def _never_ran(topology: Topology) -> NotFoundError:
    return NotFoundError(
        f"the topology {topology.name} never ran: {topology.location} does not exist", "Start it with `windrow run`."
    )
