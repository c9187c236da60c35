"""Run the batcher from Python: `windrow.run`, and how a run is opened and observed.

Most scheduled runs find nothing new, and starting a JVM takes far longer than finding that out. So a run first checks
whether it has anything to do: tables on a local disk can be read without a JVM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from windrow.delta.locations import absolute, local_path
from windrow.delta.log import DeltaRsLog, count_added_rows
from windrow.delta.table import beyond_files, latest_table
from windrow.engine import choose, from_platform, require_spark
from windrow.engine.embedded import EmbeddedEngine
from windrow.ledger import Ledger, ledger_of
from windrow.ledger.dry_run import DryRunLedger
from windrow.model.clock import Clock
from windrow.model.results import CommittedMicrobatch
from windrow.operate import Observer, RunInfo, configured_observers, notify_observers
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.batcher import Batcher
from windrow.runtime.driver import RunSummary
from windrow.runtime.ledger_state import prime
from windrow.runtime.loop import Runner
from windrow.runtime.maintenance import BackgroundMaintenance
from windrow.runtime.opening import DepotReader, require_depot, tables_of
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.source import Source, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    settings: Settings | None = None,
    once: bool = True,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
    report: Callable[[CommittedMicrobatch], None] = lambda committed: None,
    observers: Iterable[Observer] = (),
    skip_version: int | None = None,
) -> RunSummary:
    """Batch the new messages of the depot and stop; with `once=False` repeat this at the set interval.

    A repeating run also maintains the tables, every `settings.run.maintenance_interval`.

    Args:
        settings: The settings, by default those of `windrow.toml`.
        once: Whether the run ends when everything is read.
        spark: The session to use; without one the settings choose the engine.
        clock: A clock to use instead of the machine's, for tests.
        report: Called after each commit.
        observers: Called on commits, retries, at the start and at the end (see `windrow.operate`); one that raises does
            not stop the run.
        skip_version: A depot version that deleted or rewrote rows: the run skips it, and reads none of its rows.

    Returns:
        A summary of the run.

    Raises:
        WindrowError: One of `windrow.errors`; commits made before an error stay.

    Example:
        >>> windrow.run(windrow.Settings(depot="data/depot", ledger="data/ledger", engine="embedded")).microbatches
        []
    """
    settings, clock = settings or Settings.load(), clock or WallClock()
    if (
        once
        and spark is None
        and skip_version is None
        and (idle := idle_summary(settings, clock, observers)) is not None
    ):
        return idle
    with open_runner(*tables_of(settings, spark), clock, observers, report) as runner:
        if skip_version is not None:
            runner.skip_version(skip_version)
        return runner.once() if once else runner.every(settings.run.trigger_interval)


def idle_summary(settings: Settings, clock: Clock, observers: Iterable[Observer] = ()) -> RunSummary | None:
    """Return the summary of a run that has nothing to do, and notify `observers`; None if there may be work."""
    idle = idle_run(settings, batcher_of(settings), clock.now())
    if idle is not None:
        info = RunInfo(idle.engine, settings, clock, {"": settings.depot})
        with notify_observers(info, [*configured_observers(settings.metrics), *observers]):
            pass
    return idle


def idle_run(settings: Settings, algorithm: Algorithm, now: int) -> RunSummary | None:
    """Return the summary of a run that has nothing to do at wall time `now` (microseconds).

    Returns None if there is work, or if only the engine can tell. Raises the errors of opening engine and ledger.
    """
    if not _may_look(settings):
        return None
    require_spark()  # fail now if Spark cannot run, not when the first message arrives
    depot, ledger = absolute(settings.depot), absolute(settings.ledger)
    here = settings.model_copy(update={"depot": depot, "ledger": ledger})
    engine = EmbeddedEngine(here)
    source, read = source_of(engine, here), ledger_of(engine, here)
    read.repair([depot])
    if read.table() is None or beyond_files(latest_table(ledger, "ledger")):
        return None
    state = prime(read)
    result = require_depot(source, state.reached)
    algorithm.require(state, result)
    if state.paused:
        return RunSummary("spark", paused=True)
    begins_elsewhere = "start_from" in settings.model_fields_set and settings.start_from != state.reached.start_from
    if begins_elsewhere or state.rules != algorithm.settings:
        return None
    new = count_added_rows(
        DeltaRsLog(depot).commits(state.reached.depot_version), state.reached.depot_version, result.version
    )
    is_due = settings.idle_timeout is not None and algorithm.due(state, now) is not None
    return None if is_due or set(new.values()) - {0} else RunSummary("spark")


def _may_look(settings: Settings) -> bool:
    """Tell whether a run over tables on a local disk would have to start a Spark session."""
    sql = sys.modules.get("pyspark.sql")
    runs = sql is not None and sql.SparkSession.getActiveSession() is not None
    local = all(local_path(table) is not None for table in (settings.depot, settings.ledger))
    return local and choose(settings.engine) == "spark" and not from_platform() and not runs


@contextmanager
def open_runner(
    source: Source,
    ledger: Ledger,
    clock: Clock,
    observers: Iterable[Observer] = (),
    report: Callable[[CommittedMicrobatch], None] = lambda committed: None,
    dry_run: bool = False,
) -> Iterator[Runner]:
    """Open the ledger; while the block runs, the log, the metrics and `observers` receive its events.

    A dry run writes nothing to the tables.
    """
    used = DryRunLedger(ledger) if dry_run else ledger
    with runner_callbacks({"": source}, used, clock, observers, report) as called:
        if dry_run:
            called["maintain"] = tuple
        yield batching_runner(source, used, clock, **called)


@contextmanager
def runner_callbacks(
    sources: Mapping[str, Source],
    ledger: Ledger,
    clock: Clock,
    observers: Iterable[Observer] = (),
    report: Callable[[CommittedMicrobatch], None] = lambda committed: None,
) -> Iterator[dict[str, Any]]:
    """Yield the callbacks of a `Runner`, which feed the log, the metrics and the observers and maintain the tables."""
    settings, session = ledger.settings, ledger.engine.session_at_work
    with ExitStack() as stack:
        depots = {name: source.settings.depot for name, source in sources.items()}
        started = RunInfo(ledger.engine_name, settings, clock, depots)
        everyone = stack.enter_context(notify_observers(started, [*configured_observers(settings.metrics), *observers]))
        if session is not None:
            from windrow.operate.spark_progress import listening

            stack.enter_context(listening(session))

        def committed(microbatch: CommittedMicrobatch) -> None:
            everyone.committed(microbatch)
            report(microbatch)

        background = BackgroundMaintenance(list(sources.values()), ledger, clock, everyone)
        yield {"report": committed, "retrying": everyone.retrying, "maintain": background}


def batcher_of(settings: Settings) -> Batcher:
    """Return the batcher for these settings."""
    return Batcher(settings.rules.build(), settings.idle_timeout or 0)


def batching_runner(source: Source, ledger: Ledger, clock: Clock, **called: Any) -> Runner:
    """Return the runner that batches the messages of one depot; `called` are the callbacks of `Runner`."""
    return Runner([DepotReader(None, source)], ledger, batcher_of(ledger.settings), clock, **called)
