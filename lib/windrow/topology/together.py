"""Run several topologies in one process, a loop for each, over depots that are read once for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from windrow.errors import SettingsError, TopologyError, first_line
from windrow.operate.log import log
from windrow.runtime.driver import RunSummary
from windrow.runtime.loop import Runner
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.source.shared_rows import SharedRows
from windrow.topology.running import open_topology
from windrow.topology.topology import Topology

LOOK = 0.2  # seconds between two checks whether a topology has ended: signals are handled in between


@dataclass(slots=True)
class TopologyRun:
    """The run of one of several topologies: its summary, or the error that ended it."""

    topology: Topology
    clock: WallClock = field(default_factory=WallClock)
    summary: RunSummary | None = None
    error: Exception | None = None

    def end(self, error: Exception) -> None:
        """Note an error; the other topologies continue."""
        self.error = error
        log.error("topology ended", topology=self.topology.name, error=first_line(error))


def run_together(
    runs: Sequence[TopologyRun], settings: Settings, work: Callable[[Runner], RunSummary], spark: Any = None
) -> None:
    """Do `work` with the runner of each topology concurrently, until all have ended; each ends by itself.

    Stop their clocks to end them. Raises TopologyError for two topologies with the same states, SettingsError.
    """
    places = Counter(run.topology.location for run in runs)
    if twice := [place for place, times in places.items() if times > 1]:
        raise TopologyError(f"two topologies have their states at {twice[0]}", "Give each its own table.")
    if settings.metrics.textfile or settings.metrics.prometheus_port:
        raise SettingsError("metrics do not support several topologies", "Run each in its own process.")
    shared = SharedRows(_readers(runs), settings.max_cached_bytes)
    with ExitStack() as open_runners:
        threads = []
        for run in runs:
            try:
                runner = open_runners.enter_context(
                    open_topology(run.topology, settings, run.clock, spark, shared=shared)
                )
            except Exception as error:  # noqa: BLE001 - it concerns one of them
                run.end(error)
            else:
                threads.append(Thread(target=_run, args=(run, runner, work), name=f"windrow-{run.topology.name}"))
        for thread in threads:
            thread.start()
        with _stopping(runs):
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(LOOK)


def _run(run: TopologyRun, runner: Runner, work: Callable[[Runner], RunSummary]) -> None:
    try:
        run.summary = work(runner)
    except Exception as error:  # noqa: BLE001 - the others go on
        run.end(error)


@contextmanager
def _stopping(runs: Sequence[TopologyRun]) -> Iterator[None]:
    """Stop all if the block is interrupted."""
    try:
        yield
    finally:
        for run in runs:
            run.clock.stop()


def _readers(runs: Sequence[TopologyRun]) -> Counter[str]:
    """Return how many topologies read the depot at each location."""
    return Counter(depot.location for run in runs for depot in run.topology.depots.values())
