"""What a killed process left in the directory for temporary files is removed by the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import log

OF_DATABASE = """
import os, signal
from windrow.delta.database import database
with database() as connection:
    os.kill(os.getpid(), signal.SIGKILL)
"""
OF_REPLAY = """
import os, signal, sys
from windrow.replaying import replay
from windrow.settings.settings import Settings
replay(Settings(depot=sys.argv[1], ledger=sys.argv[2]), progress=lambda *done: os.kill(os.getpid(), signal.SIGKILL))
"""
USED = """
import os, time
from windrow.delta.scratch import scratch_directory
with scratch_directory() as at_work:
    os.utime(at_work, (time.time() - 100,) * 2)
    with scratch_directory():
        print(at_work.is_dir())
"""


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """Tables after a microbatch."""
    world = World(tmp_path / "tables", clock)
    world.publish(*log(versions=2, seed=3))
    world.runner(EMBEDDED).once()
    return world


@pytest.mark.parametrize("killed", [OF_DATABASE, OF_REPLAY], ids=["database", "replay"])
def test_killed(tmp_path: Path, world: World, killed: str) -> None:
    """The directory of a process that was killed is removed by the next one, that of a process at work is not."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", killed, world.depot, world.ledger], env=environment, check=False)
    left = list(temporary.iterdir())
    assert left
    for directory in left:
        os.utime(directory, (time.time() - 100,) * 2)
    assert subprocess.check_output([sys.executable, "-c", USED], env=environment, text=True) == "True\n"
    assert list(temporary.iterdir()) == []
