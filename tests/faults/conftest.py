import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import windrow  # noqa: F401 - a fixture
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture
def full(world: World) -> World:
    """A depot with three versions of messages."""
    world.publish(*log(versions=3))
    return world


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that every user may enter and write to; a test's own may be closed to all but root."""
    path = Path(tempfile.mkdtemp(prefix="windrow-"))
    path.chmod(0o777)
    before = os.umask(0)
    yield path
    os.umask(before)
    shutil.rmtree(path)


@pytest.fixture
def spark_engine(spark: Any) -> EngineFactory:
    """Spark alone."""
    return EngineFactory("spark", spark)
