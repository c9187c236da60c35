"""Examine a topology: the machine, each depot and the table of states, with the checks of `windrow doctor`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from windrow.delta.log import identity
from windrow.delta.table import open_table
from windrow.engine import choose
from windrow.engine.embedded import EmbeddedEngine
from windrow.errors import WindrowError
from windrow.ledger import ledger_of
from windrow.model.messages import COLUMNS
from windrow.operate.doctor import OF_DEPOT, Checks, ExaminedTable, depot, examine_tables, ledger
from windrow.operate.doctor.finding import Finding, ok
from windrow.operate.doctor.opened import OpenDepot, OpenLedger
from windrow.reading.tables import open_depot, open_ledger
from windrow.runtime.ledger_state import prime
from windrow.settings.settings import Settings
from windrow.source.depot_rows import is_ledger
from windrow.topology.depots import settings_of
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.topology import Topology

OF_STATES: Checks = (ledger.check_files, ledger.check_retention, ledger.check_paused)
OF_LEDGERS: Checks = (depot.check_feed, depot.check_readable, depot.check_retention)
OF_ROWS: Checks = (*OF_LEDGERS, depot.check_changes)


def examine_topology(topology: Topology, settings: Settings, now: int, network: bool = False) -> list[Finding]:
    """Check the machine, and the tables of a topology, at wall time `now` (microseconds).

    With `network`, Spark is started. A finding about a depot begins with its name.
    """
    engine = choose(settings.engine)
    examined = [ExaminedTable("ledger", topology.location, lambda: (_states(topology, settings), OF_STATES))]
    examined += [
        ExaminedTable("depot", depot.location, partial(_depot, topology, settings, engine, now, name), name)
        for name, depot in topology.depots.items()
    ]
    return examine_tables(engine, now, network, [ok("engine", f"the {engine} engine")], examined)


def _states(topology: Topology, settings: Settings) -> OpenLedger:
    """Open the table of states, with the progress in the first depot.

    Raises TableMissingError, IncompatibleTableError.
    """
    used = settings.model_copy(update={"ledger": topology.location})
    book, states = open_ledger(topology.location, of_topology=True), ledger_of(EmbeddedEngine(used), used)
    FunctionAlgorithm(topology, {}, states).require(prime(states, list(topology.depots)), identity(book.table))
    return OpenLedger(used, book, book.progress(next(iter(topology.depots))))


def _depot(topology: Topology, settings: Settings, engine: str, now: int, name: str) -> tuple[OpenDepot, Checks]:
    """Open a depot, to be checked by its content: messages, rows, a ledger.

    Raises TableMissingError, DepotMismatchError.
    """
    depot, progress = topology.depots[name], None
    table = open_table(depot.location, "depot")
    with suppress(WindrowError):
        states = _states(topology, settings)
        result = states.book.progress(name)
        progress = result if result.depot_id else None
    if progress is not None:
        open_depot(depot.location, states.book, progress)
    columns, checks = identity(table), OF_ROWS
    if depot.state is not None or is_ledger(columns.schema):
        checks = OF_LEDGERS
    elif depot.columns or columns.raw or set(COLUMNS) <= set(columns.schema.names):
        checks = OF_DEPOT
    return OpenDepot(settings_of(topology, depot, settings), engine, now, table, progress), checks
