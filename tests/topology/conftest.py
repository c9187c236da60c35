from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.conftest import EngineFactory
from tests.engine.conftest import drivers, spark_engine
from tests.topology.world import BankWorld

__all__ = ["drivers", "spark_engine"]


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> BankWorld:
    """A depot without transfers, and a bank that does not exist yet."""
    return BankWorld(tmp_path, clock)


@pytest.fixture
def reference(tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> Callable[[BankWorld], BankWorld]:
    """Run the depot of a world undisturbed into other states."""

    def run(world: BankWorld) -> BankWorld:
        other = BankWorld(tmp_path, clock, world.payload, ledger="reference")
        other.runner(embedded).once()
        return other

    return run
