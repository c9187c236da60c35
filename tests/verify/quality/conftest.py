import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message
from windrow.rows.frame import PersistedFrame

RULES = {"max_delay": "6s", "max_batch_bytes": 40}


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that saw data with every kind of rejection, a change of the rules, a tick, a flush, and data again."""
    root, clock = tmp_path_factory.mktemp("written"), ManualClock()
    world, engine = World(root, clock), EngineFactory("embedded")
    *before, last = log(versions=5, seed=3)
    for rows in before:
        world.publish(rows)
        world.runner(engine).once()
    clock.advance(20 * SECOND)
    world.runner(engine, rules=RULES).tick(NOW + 16 * SECOND)
    world.runner(engine, rules=RULES).flush()
    world.publish(last, [message(kind, NOW + 40 * SECOND, NOW + 40 * SECOND) for kind in "ab"])
    world.runner(engine, rules=RULES, max_messages=10).once()
    return root


@pytest.fixture
def world(written: Path, tmp_path: Path, clock: ManualClock) -> World:
    """A copy of these tables."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return World(tmp_path, clock)


@pytest.fixture(params=["embedded", "spark", "spark-uncached"])
def session(request: pytest.FixtureRequest) -> Any:
    """What `quality.check` looks with: none, a session of Spark, or one that keeps no rows on its executors."""
    if request.param == "embedded":
        return None
    if request.param == "spark-uncached":
        request.getfixturevalue("uncached")
    return request.getfixturevalue("spark")


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are not persisted, as where a platform refuses it."""
    monkeypatch.setattr(PersistedFrame, "keep", lambda _, frame: frame)
