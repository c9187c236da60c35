from pathlib import Path

import pytest

from tests.cli.conftest import windrow  # noqa: F401 - a fixture
from tests.clocks import ManualClock
from tests.engine.world import World


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)
