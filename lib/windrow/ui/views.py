"""What a server shows, a batcher or a topology: how it is read, and which changes it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Protocol

from windrow.report import Report, batcher_report, topology_report
from windrow.runtime.loop import Runner
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.topology.options import READ
from windrow.topology.running import open_topology, set_option
from windrow.topology.topology import Topology

Reads = Callable[[], AbstractContextManager[Settings]]  # the settings, with which to read within the block


class LedgerView(Protocol):
    """What a server shows; `actions` are the changes it takes, `options` the names that can be set."""

    actions: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]]

    def reads(self) -> AbstractContextManager[Settings | None]:
        """Return a block in which `windrow.reading` reads; None if there are no streams to look at."""

    def report(self, source: str | None) -> Report:
        """Return the report. Raises one of `windrow.errors`."""

    def change(self, action: str, values: Mapping[str, str]) -> None:
        """Do one of the actions. Raises one of `windrow.errors`."""


@dataclass(frozen=True, slots=True)
class BatcherView:
    """A batcher: `reads` gives the settings to read with, `writes` those of an engine for a change."""

    reads: Reads
    writes: Callable[[], Settings]
    actions: ClassVar[tuple[str, ...]] = ("pause", "resume")
    options: ClassVar[tuple[str, ...]] = ()

    def report(self, source: str | None) -> Report:
        """Read the report, with the timeline and the open batches of a source."""
        with self.reads() as settings:
            return batcher_report(settings, WallClock().now(), source=source)

    def change(self, action: str, values: Mapping[str, str]) -> None:
        """Pause or resume."""
        with open_runner(*tables_of(self.writes()), WallClock()) as runner:
            _change(runner, action, values)


@dataclass(frozen=True, slots=True)
class TopologyView:
    """A topology; `readable` gives it as it can be read within the block."""

    topology: Topology
    settings: Settings
    readable: Callable[[], AbstractContextManager[Topology]]
    actions: ClassVar[tuple[str, ...]] = ("pause", "resume", "option")
    options: ClassVar[tuple[str, ...]] = tuple(READ)

    def reads(self) -> AbstractContextManager[None]:
        """Return a block without settings: the messages of a topology are in no batches."""
        return nullcontext()

    def report(self, source: str | None) -> Report:  # noqa: ARG002 - a topology has none to pick from
        """Read the report."""
        with self.readable() as topology:
            return topology_report(topology, self.settings, WallClock().now())

    def change(self, action: str, values: Mapping[str, str]) -> None:
        """Pause, resume, or set an option."""
        with open_topology(self.topology, self.settings, WallClock()) as runner:
            _change(runner, action, values)


def _change(runner: Runner, action: str, values: Mapping[str, str]) -> None:
    if action == "pause":
        runner.pause()
    elif action == "resume":
        runner.resume()
    else:
        set_option(runner, values.get("name", ""), values.get("value", ""))
