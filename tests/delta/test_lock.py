"""The lock beside a local table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, log
from windrow.delta import lock
from windrow.delta.lock import commit_lock
from windrow.errors import TableLockedError


def test_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has one lock, whichever path its writers use."""
    monkeypatch.setattr(lock, "LOCK_TIMEOUT_SECONDS", 0.05)
    (tmp_path / "table").mkdir()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(tmp_path / "table")
    with commit_lock(str(tmp_path / "table")), pytest.raises(TableLockedError), commit_lock(str(link)):
        pass
    with commit_lock(str(link)), pytest.raises(TableLockedError), commit_lock(f"file:{tmp_path}/table"):
        pass


@pytest.mark.slow_on_executors
def test_around_a_commit(world: World, engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the lock of the ledger, neither engine commits to it."""
    world.publish(*log(versions=2))
    world.runner(EngineFactory("embedded")).once()
    microbatch, version = world.microbatch(engine), world.version()
    monkeypatch.setattr(lock, "LOCK_TIMEOUT_SECONDS", 0.05)
    with commit_lock(world.ledger), pytest.raises(TableLockedError):
        microbatch.run_tick(microbatch.primed.sources.floors.at_least(NOW + HOUR))
    assert world.version() == version
