from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.probes import no_op, open_tables, runner_on, with_probe
from windrow.operate import Observer, RunInfo, notify_observers
from windrow.testing.points import Probe


class Ticking(ManualClock):
    """A clock that moves by a millisecond at each reading, so that every phase takes some time."""

    def elapsed(self) -> float:
        """Move by a millisecond, and return the time in seconds."""
        self.advance(1_000)
        return super().elapsed()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, Ticking())


def watch(
    world: World, factory: EngineFactory, observers: Iterable[Observer], at: Probe = no_op, **settings: Any
) -> None:
    """Run what is new with observers, on an engine with a probe."""
    chosen = world.settings(factory, **({"idle_timeout": "never"} | settings))
    with notify_observers(RunInfo(factory.name, chosen, world.clock, {"": chosen.depot}), observers) as together:
        tables = with_probe(at)(open_tables(chosen, factory.session))
        runner_on(tables, world.clock, report=together.committed, retrying=together.retrying).once()
