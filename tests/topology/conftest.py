from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.engine.conftest import drivers, reference, spark_engine
from tests.engine.histories import Histories
from tests.topology.histories import BankHistories
from tests.topology.world import BankWorld

__all__ = ["drivers", "reference", "spark_engine"]


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> BankWorld:
    """A depot without transfers, and a bank that does not exist yet."""
    return BankWorld(tmp_path, clock)


@pytest.fixture
def histories() -> type[Histories]:
    """The machine that makes up histories of the bank."""
    return BankHistories
