"""What a server shows, a batcher or a topology: how and when it is read, and which changes it accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from windrow.report import Report, batcher_report, topology_report
from windrow.runtime.loop import Runner
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.topology.options import READ
from windrow.topology.running import open_topology, set_option
from windrow.topology.topology import Topology

SHARE = 4  # a guess: people who work on the machine should not notice
MAX_KEPT = 8  # reports; each has pictures of up to half a megabyte
Reads = Callable[[], AbstractContextManager[Settings]]  # the settings to read with inside the block


@dataclass(frozen=True, slots=True)
class BatcherView:
    """A batcher: `reads` returns the settings to read with, `writes` those of an engine that makes changes."""

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
    """A topology; `readable` yields it in a form that can be read inside the block."""

    topology: Topology
    settings: Settings
    readable: Callable[[], AbstractContextManager[Topology]]
    actions: ClassVar[tuple[str, ...]] = ("pause", "resume", "option")
    options: ClassVar[tuple[str, ...]] = tuple(READ)

    def reads(self) -> AbstractContextManager[None]:
        """Return a context without settings: the messages of a topology are not in batches."""
        return nullcontext()

    def report(self, source: str | None) -> Report:  # noqa: ARG002 - a topology has none to pick from
        """Read the report."""
        with self.readable() as topology:
            return topology_report(topology, self.settings, WallClock().now())

    def change(self, action: str, values: Mapping[str, str]) -> None:
        """Pause, resume, or set an option."""
        with open_topology(self.topology, self.settings, WallClock()) as runner:
            _change(runner, action, values)


LedgerView = BatcherView | TopologyView


class _Kept(NamedTuple):
    report: Report
    read_at: float
    took: float


class LiveReport:
    """The last report of each requested source, which `get` reads again when it is old. Not thread-safe.

    Reading a large ledger takes seconds. So a report is old only after `interval` seconds and after four times as long
    as it took to read: each source that is watched takes at most a fifth of a core. `elapsed` is a monotonic clock
    (seconds).
    """

    def __init__(self, read: Callable[[str | None], Report], interval: float, elapsed: Callable[[], float]) -> None:
        self._read, self._interval, self._elapsed = read, interval, elapsed
        self._kept: dict[str | None, _Kept] = {}

    def get(self, source: str | None) -> Report:
        """Return the report of a source, None for all. Raises what reading raises."""
        kept = self._kept.get(source)
        if kept is None or self._elapsed() - kept.read_at > max(self._interval, SHARE * kept.took):
            start = self._elapsed()
            self._kept.pop(source, None)
            report = self._read(source)
            now = self._elapsed()
            self._kept[source] = kept = _Kept(report, now, now - start)
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return kept.report

    def forget(self) -> None:
        """Read again at the next call, because something changed."""
        self._kept.clear()


def _change(runner: Runner, action: str, values: Mapping[str, str]) -> None:
    if action == "pause":
        runner.pause()
    elif action == "resume":
        runner.resume()
    else:
        set_option(runner, values.get("name", ""), values.get("value", ""))
