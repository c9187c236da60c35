from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clocks import ManualClock
from tests.conftest import factory_of
from tests.engine.factory import EngineFactory
from tests.engine.histories import BatcherHistories, Histories
from tests.engine.world import World


class Drivers(NamedTuple):
    """Two drivers of one ledger."""

    first: EngineFactory
    second: EngineFactory


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture
def reference(tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> Callable[[World], World]:
    """Run the depot of a world undisturbed into another ledger."""

    def run(world: World) -> World:
        other = type(world)(tmp_path, clock, world.payload, ledger="reference")
        other.runner(embedded).once()
        return other

    return run


@pytest.fixture
def histories() -> type[Histories]:
    """The machine that makes up histories of the batcher."""
    return BatcherHistories


@pytest.fixture(params=["embedded", "spark", "spark-executors", "spark-files", "spark-files-executors"])
def engine(request: pytest.FixtureRequest) -> EngineFactory:
    """Each engine in turn, Spark with what its driver processes and with what its executors do."""
    return factory_of(request.param, request)


PAIRS = (
    "embedded+embedded",
    "spark+spark",
    "embedded+spark",
    pytest.param("spark+embedded", marks=pytest.mark.slow),
    "spark-files+spark",
    pytest.param("spark+spark-files-executors", marks=pytest.mark.slow),
    pytest.param("spark-executors+spark", marks=pytest.mark.slow),
    pytest.param("spark+spark-executors", marks=pytest.mark.slow),
    pytest.param("embedded+spark-executors", marks=pytest.mark.slow),
)


@pytest.fixture(params=PAIRS)
def drivers(request: pytest.FixtureRequest) -> Drivers:
    """Two drivers on each pair of engines, and of the places where Spark processes."""
    return Drivers(*(factory_of(kind, request) for kind in request.param.split("+")))


@pytest.fixture
def spark_engine(spark: Any) -> EngineFactory:
    """Spark alone."""
    return EngineFactory("spark", spark)
