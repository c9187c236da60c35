"""A ledger that saw everything: every kind of rejection, both ways to begin a window, sizes, ticks, a flush."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message

# The checks of `verify.decisions`, and those of `verify.log`, which find changes that contradict nothing else.
BY_DECISIONS = {
    "rules", "clocks by the log", "ticks", "clock_ahead", "decisions", "windows by the rules", "messages by the rules",
}  # fmt: skip
BY_LOG = {"notes", "by hand", "chain"}
LATER = {"max_delay": "6s", "max_batch_bytes": 40, "window_anchor": "event_time"}


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables as two runs before and two after a change of the rules left them, with ticks and a flush between."""
    root, clock = tmp_path_factory.mktemp("written"), ManualClock()
    world, engine = World(root, clock), EngineFactory("embedded")
    versions = log(versions=10, seed=3)
    world.publish(*versions[:4])
    world.runner(engine, max_messages=60).once()
    clock.advance(11 * SECOND)
    world.runner(engine, idle_timeout="1s").tick()
    world.publish(*versions[4:6])
    world.runner(engine).once()
    world.runner(engine, rules=LATER).tick(NOW + 25 * SECOND)
    alike = [message(kind, NOW + 27 * SECOND, NOW + 27 * SECOND, payload="x" * 19) for kind in "pqr"]
    world.publish([*versions[6], *alike])
    world.runner(engine, rules=LATER).once()
    clock.advance(2 * SECOND)
    world.runner(engine, rules=LATER).flush()
    world.publish(*versions[7:])
    world.runner(engine, rules=LATER, max_messages=10).once()
    return root


@pytest.fixture
def world(written: Path, tmp_path: Path, clock: ManualClock) -> World:
    """A copy of these tables."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return World(tmp_path, clock)
