"""A ledger to look at, and no pictures, which take seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.engine.world import World
from windrow.reading.plot import extra


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the packages that draw, which take seconds."""
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "vl_convert" else find_spec(name))


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)
