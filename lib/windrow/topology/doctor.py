"""Examine a topology: the machine, each depot and the table of states, with the checks of `windrow doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from windrow.delta.locations import is_catalog_name
from windrow.delta.log import identity
from windrow.delta.table import open_table
from windrow.engine import choose
from windrow.engine.embedded import EmbeddedEngine
from windrow.errors import TableMissing, WindrowError
from windrow.ledger import ledger_of
from windrow.model import tables
from windrow.model.messages import COLUMNS
from windrow.operate.doctor import clocks, depot, in_order, ledger, safely
from windrow.operate.doctor.features import check_features
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.operate.doctor.machine import check_machine
from windrow.operate.doctor.opened import OpenDepot, OpenLedger, not_opened
from windrow.operate.doctor.storage import check_storage
from windrow.reading.tables import Ledger, Progress
from windrow.runtime.ledger_state import LedgerState, prime
from windrow.settings.settings import Settings
from windrow.source.depot_rows import is_ledger
from windrow.topology.functions import Functions
from windrow.topology.running import settings_of
from windrow.topology.topology import Depot, Topology

Checks = tuple[Callable[..., Iterable[Finding]], ...]

OF_STATES: Checks = (ledger.check_files, ledger.check_log, ledger.check_retention, ledger.check_paused)
OF_LEDGERS: Checks = (depot.check_feed, depot.check_retention)
OF_ROWS: Checks = (*OF_LEDGERS, depot.check_changes)
OF_MESSAGES: Checks = (depot.check_columns, depot.check_nulls, *OF_ROWS, clocks.check_stamps)


def examine_topology(topology: Topology, settings: Settings, now: int, network: bool = False) -> list[Finding]:
    """Check the machine, and the tables of a topology, at wall time `now` (microseconds).

    With `network`, Spark is started. A finding about a depot begins with its name.
    """
    engine = choose(settings.engine)
    findings = [*safely(check_machine, engine, network), *safely(_check_functions, topology, engine)]
    primed, found = _opened(topology, settings, now, engine)
    findings += found
    for name, one in topology.depots.items():
        used = settings_of(topology, one, settings)
        findings += safely(check_storage, used)
        for finding in _examined(name, one, used, engine, now, primed):
            findings.append(replace(finding, what=f"{name}: {finding.what}"))
    return in_order(list(dict.fromkeys(findings)))


def _check_functions(topology: Topology, engine: str) -> Iterable[Finding]:
    """Check that there are functions, and that the engine can run them."""
    names = [function.name for function in topology.functions]
    frames = [function.name for function in topology.functions if function.form == "spark"]
    yield ok("settings", f"topology {topology.name}, functions {', '.join(names)}, states {', '.join(topology.states)}")
    if not names:
        yield error("settings", f"the topology {topology.name} has no function", "Declare one: @topology.function.")
    if frames and engine == "embedded":
        what = f"the functions {', '.join(frames)} need Spark DataFrames, which the embedded engine does not have"
        yield error("engine", what, "Use --engine spark, or let them work with Arrow tables.")
    else:
        yield ok("engine", f"the {engine} engine")


def _opened(topology: Topology, settings: Settings, now: int, engine: str) -> tuple[LedgerState | None, list[Finding]]:
    """Open the table of states and check it; return its state, None if it cannot be opened, and the findings."""
    location, used = topology.location, settings.model_copy(update={"ledger": topology.location})
    try:
        table = open_table(location, "ledger")
        states = ledger_of(EmbeddedEngine(used), used)
        primed = prime(states, list(topology.depots))
        Functions(topology, {}, states).require(primed, identity(table))
    except WindrowError as refused:
        if isinstance(refused, TableMissing) and not is_catalog_name(location):
            what = f"there is no table of states at {location}"
            return None, [warning("ledger", what, "The first run of the topology creates it.")]
        return None, [not_opened("ledger", location, refused)]
    findings = [ok("ledger", f"{location}, version {table.version()}, microbatch {primed.microbatch}")]
    progress = _progress(primed, next(iter(topology.depots)))
    book = OpenLedger(used, Ledger(table, location, table.version()), progress)
    for check in OF_STATES:
        findings += safely(check, book)
    findings += [*safely(check_features, "ledger", table, engine), *safely(clocks.check_commits, "ledger", table, now)]
    return primed, findings


def _progress(primed: LedgerState, depot_name: str) -> Progress:
    reached = primed.depots[depot_name].reached
    return Progress(
        reached.depot_id,
        reached.start_from,
        reached.depot_version,
        tables.SCHEMA_VERSION,
        primed.microbatch,
        primed.paused,
        primed.rules,
    )


def _examined(
    name: str, one: Depot, used: Settings, engine: str, now: int, primed: LedgerState | None
) -> list[Finding]:
    """Check a depot: as messages, as rows, or as the ledger that it is."""
    try:
        table = open_table(one.location, "depot")
    except WindrowError as refused:
        return [not_opened("depot", one.location, refused)]
    columns = identity(table)
    findings = [ok("depot", f"{one.location}, version {table.version()}")]
    checks = OF_ROWS
    if one.state is not None or is_ledger(columns.schema):
        checks = OF_LEDGERS
    elif one.columns or columns.raw or set(COLUMNS) <= set(columns.schema.names):
        checks = OF_MESSAGES
    progress = None if primed is None or not primed.depots[name].reached.depot_id else _progress(primed, name)
    if progress is not None and progress.depot_id != columns.id:
        what = f"{one.location} has the id {columns.id}, but the topology has read {progress.depot_id}"
        return [error("depot", what, "Bring the depot back, or begin a new table of states (states=...).")]
    opened = OpenDepot(used, engine, now, table, progress)
    for check in checks:
        findings += safely(check, opened)
    return [
        *findings,
        *safely(check_features, "depot", table, engine),
        *safely(clocks.check_commits, "depot", table, now),
    ]
