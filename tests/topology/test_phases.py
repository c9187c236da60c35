"""Phases that hang: each is ended after `phase_timeout`, and the attempt is made again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from windrow.settings.settings import Settings
from windrow.source.arrivals import Arrivals
from windrow.testing import Harness
from windrow.testing.points import EngineProxy, Point
from windrow.topology import Microbatch, Topology
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.running import runner_of, set_option, tables_of
from windrow.topology.verify import verify_topology

PHASES = ("prime", "plan", "commit", "reply of the commit")


class Hanging:
    """Hangs once in a phase, until it is released."""

    def __init__(self, phase: str) -> None:
        self.phase, self.released, self.ended = phase, threading.Event(), threading.Event()
        self.left = 1

    def call(self, phase: str, work: Callable[[], Any]) -> Any:
        """Do some work of a phase; hang before it, or before the reply."""
        if self.left and self.phase.endswith(phase):
            self.left = 0
            result = work() if self.phase.startswith("reply") else None
            self.released.wait(60)
            try:
                return work() if result is None else result
            finally:
                self.ended.set()
        return work()


class HangingLedger(EngineProxy):
    """A real ledger that hangs when it is read, or when it commits."""

    hanging: Hanging
    armed = False

    def live(self) -> Any:
        """Read the live rows."""
        return self.hanging.call("prime", self.inner.live) if self.armed else self.inner.live()

    def commit(self, *arguments: Any) -> Any:
        """Commit."""
        return self.hanging.call("commit", lambda: self.inner.commit(*arguments))


class HangingSource(EngineProxy):
    """A real source that hangs when it is read."""

    hanging: Hanging

    @contextmanager
    def arrivals(self, after: int, last_version: int) -> Iterator[Arrivals | None]:
        """Read the depot."""
        self.hanging.call("plan", lambda: "read")
        with self.inner.arrivals(after, last_version) as arrivals:
            yield arrivals


def nowhere(point: Point) -> None:
    """Do nothing."""


@pytest.mark.parametrize("beside", [False, True], ids=["main", "thread"])
@pytest.mark.parametrize("phase", PHASES)
def test_hanging_phase(tmp_path: Path, phase: str, beside: bool) -> None:
    """A read or a commit that hangs in a library is left to itself, and the attempt made again; whatever it still does
    when it goes on, each row counts once.
    """
    topology = Topology("counting", depots=["a"], states="counting", outputs={"copy": "copy"})
    topology.state("seen", value="count BIGINT", initial={"count": 0})

    @topology.function
    def count(microbatch: Microbatch) -> None:
        microbatch.state("seen").combine(microbatch.rows("a"), count="count")
        microbatch.append("copy", microbatch.rows("a").select(["payload"]))

    harness = Harness(topology, tmp_path)
    harness.append([{"payload": "0"}])
    harness.run()  # also so that nothing has to be compiled in a phase
    harness.append([{"payload": "1"}] * 3)
    set_option(harness.runner(), "phase_timeout", "1s")
    hanging, settings = Hanging(phase), Settings(engine="embedded", max_retries=1)
    sources, opened = tables_of(harness.topology, settings)
    ledger: Any = HangingLedger(opened, nowhere)
    probed: Any = {name: HangingSource(source, nowhere) for name, source in sources.items()}
    for table in (ledger, *probed.values()):
        table.hanging = hanging
    runner = runner_of(
        harness.topology, probed, ledger, harness.clock, FunctionAlgorithm(harness.topology, probed, ledger)
    )
    ledger.armed, began = True, time.monotonic()
    if beside:
        thread = threading.Thread(target=runner.once)
        thread.start()
        thread.join()
    else:
        runner.once()
    assert time.monotonic() - began < 30
    assert not hanging.left
    assert harness.state("seen") == [{"count": 4}]
    hanging.released.set()
    assert hanging.ended.wait(30)
    harness.append([{"payload": "2"}])
    harness.restart()
    harness.run()
    assert harness.state("seen") == [{"count": 5}]
    assert [row["messages_read"] for row in harness.history() if row["kind"] == "data"] == [1, 3, 1]
    assert verify_topology(harness.topology, settings, replay=True).ok
