"""Run topologies: a reader for each depot, and the same runner as the batcher's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa

from windrow.engine import open_engine
from windrow.errors import TopologyError
from windrow.ledger import Ledger, ledger_of
from windrow.model.clock import Clock
from windrow.model.durations import microseconds
from windrow.model.results import CommittedMicrobatch, MaintenanceResult, Role
from windrow.model.tables import is_topology_ledger
from windrow.operate import Observer
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.driver import RunSummary
from windrow.runtime.ledger_state import prime
from windrow.runtime.loop import Runner
from windrow.runtime.maintenance import Progress, maintain
from windrow.runtime.opening import DepotReader
from windrow.runtime.run import runner_callbacks
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.source import Source
from windrow.source.embedded import EmbeddedSource
from windrow.source.shared_rows import SharedRows
from windrow.topology.depots import settings_of, source_of_depot
from windrow.topology.feeding import feeders_of, require_fed_as_declared
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.migration import recorded_states, require_allowed
from windrow.topology.options import option_row
from windrow.topology.rollback import restored_rows
from windrow.topology.topology import Topology


def run_topology(
    topology: Topology,
    settings: Settings | None = None,
    once: bool = True,
    spark: Any = None,
    clock: Clock | None = None,
    report: Callable[[CommittedMicrobatch], None] = lambda committed: None,
    observers: Iterable[Observer] = (),
    skip_version: tuple[str, int] | None = None,
) -> RunSummary:
    """Process what is new in the depots of a topology, then stop; with `once=False` repeat this at the set interval.

    Args:
        topology: The topology.
        settings: Those of `windrow.toml`, except depot and ledger, which the topology names.
        once: Whether the run ends when everything is read.
        spark: The session to use; without one the settings choose the engine.
        clock: A clock to use instead of the machine's, for tests.
        report: Called after each commit.
        observers: As for `windrow.run`.
        skip_version: A depot and a version of it that the run skips.

    Returns:
        A summary of the run.

    Raises:
        WindrowError: One of `windrow.errors`; commits made before an error stay.

    Example:
        >>> counts = windrow.Topology("counts", ["data/depot"], "data/states")
        >>> windrow.run_topology(counts, windrow.Settings(engine="embedded"))  # doctest: +SKIP
    """
    settings = settings or Settings.load()
    with open_topology(topology, settings, clock or WallClock(), spark, observers, report) as runner:
        if skip_version is not None:
            depot, version = skip_version
            runner.skip_version(version, depot)
        return runner.once() if once else runner.every(settings.run.trigger_interval)


def rollback(runner: Runner, to: int) -> RunSummary:
    """Restore the states to microbatch `to`; the next run reads the depots again from there.

    Works on a paused topology too. Raises NotFoundError, DepotUnreadableError.
    """
    topology = cast("FunctionAlgorithm", runner.driver.algorithm).topology
    return runner.commit_change(
        "rollback", lambda primed: restored_rows(topology, primed, runner.driver.sources, runner.driver.ledger, to)
    )


def set_option(runner: Runner, name: str, value: str) -> RunSummary:
    """Set an option (`windrow.runtime.algorithm.Options`) of a topology; `default` unsets it. Raises SettingsError."""
    return runner.commit_change("option", lambda primed: (option_row(primed, name, value), {}))


def maintain_topology(
    topology: Topology,
    settings: Settings,
    now: int,
    only: Role | None = None,
    dry_run: bool = False,
    progress: Progress = lambda table, step: None,
    spark: Any = None,
) -> list[MaintenanceResult]:
    """Maintain the table of states and the depots, as `windrow.runtime.maintenance.maintain` does."""
    sources, ledger = tables_of(topology, settings, spark)
    return maintain(list(sources.values()), ledger, now, only, dry_run, progress)


@contextmanager
def open_topology(
    topology: Topology,
    settings: Settings,
    clock: Clock,
    spark: Any = None,
    observers: Iterable[Observer] = (),
    report: Callable[[CommittedMicrobatch], None] = lambda committed: None,
    shared: SharedRows | None = None,
) -> Iterator[Runner]:
    """Open the table of states; while the block runs, events go to the log, the configured metrics and `observers`.

    With `shared`, the embedded engine takes rows from there that other readers have read.
    """
    if not topology.functions:
        raise TopologyError(f"the topology {topology.name} has no function", "Declare one: @topology.function.")
    sources, ledger = tables_of(topology, settings, spark)
    for source in sources.values():
        if isinstance(source, EmbeddedSource):
            source.shared = shared
    with runner_callbacks(sources, ledger, clock, observers, report) as called:
        yield runner_of(topology, sources, ledger, clock, **called)


def runner_of(
    topology: Topology,
    sources: Mapping[str, Source],
    ledger: Ledger,
    clock: Clock,
    algorithm: Algorithm | None = None,
    **called: Any,
) -> Runner:
    """Return the runner of a topology; `sources` read its depots, `called` are the callbacks of `Runner`."""
    feeders = feeders_of(topology, ledger) if topology.in_step else {}
    readers = []
    for name, source in sources.items():
        depot, feeder = topology.depots[name], feeders.get(name)
        if topology.in_step:
            require_fed_as_declared(name, source, feeder)
        wait = None if depot.wait is None else microseconds(depot.wait, f"depot {name}: wait")
        readers.append(DepotReader(name, source, depot.priority, feeder, wait))
    extend(topology, ledger)
    functions = algorithm or FunctionAlgorithm(topology, sources, ledger)
    runner = Runner(readers, ledger, functions, clock, in_step=topology.in_step, **called)
    if runner.driver.settings_recorded:
        ledger.create_views()  # which an earlier kill may have left unchanged
    return runner


def extend(topology: Topology, ledger: Ledger) -> None:
    """Add the columns of states that were declared after the table of states was created.

    Raises IncompatibleTableError.
    """
    table = ledger.table()
    if table is None or not is_topology_ledger(table.schema.names):
        return
    columns = [field for field in topology.schema() if field.name not in table.schema.names]
    if columns:
        recorded = recorded_states(topology.states, prime(ledger, ()).rules, table.schema)
        require_allowed(topology.states, recorded)
        ledger.add_columns(pa.schema(columns))


def tables_of(topology: Topology, settings: Settings, session: Any = None) -> tuple[dict[str, Source], Ledger]:
    """Return the depots of a topology by name, and its table of states, reached through one engine.

    Raises MissingExtraError, EngineUnavailableError, TableMissingError, TopologyError.
    """
    used = {name: settings_of(topology, depot, settings) for name, depot in topology.depots.items()}
    first = next(iter(used.values()))
    engine = open_engine(first, session, [reader.depot for reader in used.values()])
    sources = {name: source_of_depot(engine, depot, used[name]) for name, depot in topology.depots.items()}
    return sources, ledger_of(engine, first, topology.views)
