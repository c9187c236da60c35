from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.proxy import CountingProxy
from tests.clocks import ManualClock
from tests.conftest import FAST_JAVA, EngineFactory
from tests.stores.bucket import Bucket
from tests.stores.seaweed import SeaweedFS, variables

ROOT = Path(__file__).parents[2]


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


class SparkDriver:
    """A driver in a process of its own (`driver.py`), with the local session that Windrow starts for S3."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.driver"],
            cwd=ROOT,
            env=dict([FAST_JAVA]) | os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def do(self, bucket: Bucket, what: str, now: int | None = None, **settings: Any) -> Any:
        """Have an order carried out, and return the answer."""
        self.begin(bucket, what, now, **settings)
        return self.answer()

    def begin(self, bucket: Bucket, what: str, now: int | None = None, **settings: Any) -> None:
        """Give an order."""
        given = {"depot": bucket.depot, "ledger": bucket.ledger, "engine": "spark", "idle_timeout": "never"} | settings
        order = {"do": what, "settings": given, "now": bucket.clock.now() if now is None else now}
        self._process.stdin.write(f"{json.dumps(order)}\n")

    def answer(self) -> Any:
        """Return the next answer."""
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise EOFError("the driver ended")

    def answers_so_far(self) -> list[Any]:
        """Return the next answer if there is one already."""
        return [self.answer()] if select([self._process.stdout], [], [], 0)[0] else []

    def close(self) -> None:
        """End the process; its JVM ends with it."""
        with self._process.stdin, self._process.stdout:
            self._process.stdin.close()
            self._process.wait(60)


@pytest.fixture(scope="session")
def spark_driver(proxy: CountingProxy) -> Iterator[SparkDriver]:
    """The one Spark driver of a process."""
    driver = SparkDriver(variables(proxy.port))
    assert driver.answer() == "ready"
    yield driver
    driver.close()
