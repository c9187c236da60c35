from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.proxy import CountingProxy
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.stores.bucket import Bucket
from tests.stores.seaweed import SeaweedFS, variables
from tests.stores.spark_driver import SparkDriver


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingProxy]:
    """The one S3 server of a process, behind the proxy through which everybody asks it."""
    with SeaweedFS(tmp_path_factory.mktemp("seaweed")) as server, CountingProxy(server.port) as listening:
        yield listening


@pytest.fixture
def store(proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of the server, and an address in it where nothing is."""
    for name, value in variables(proxy.port).items():
        monkeypatch.setenv(name, value)
    return f"s3a://windrow/{uuid4().hex}"


@pytest.fixture
def bucket(store: str, clock: ManualClock) -> Bucket:
    """An empty depot in a bucket, and a ledger that does not exist yet."""
    return Bucket(store, clock)


@pytest.fixture
def spark_engine(spark: Any) -> EngineFactory:
    """A session that knows nothing of S3."""
    return EngineFactory("spark", spark)


@pytest.fixture(scope="session")
def spark_driver(proxy: CountingProxy) -> Iterator[SparkDriver]:
    """The one Spark driver of a process."""
    driver = SparkDriver(variables(proxy.port))
    assert driver.answer() == "ready"
    yield driver
    driver.close()
