"""A cluster of two workers on this machine with small heaps: the same tests, unchanged, as on a cluster of a platform.

Driver and executors are processes of their own, so whatever is to go from one to the other must be sent, and none of
them has room for more than its part.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.apart import run_apart
from tests.engine.cluster import SPARK_HOME
from windrow.engine.spark.session import LOOPBACK

pytestmark = pytest.mark.spark

HEAPS = {"spark.driver.memory": "1g", "spark.executor.memory": "640m"}
CLUSTER = {
    "TEST_SPARK_MASTER": "local-cluster[2,1,1024]",
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": LOOPBACK,
    "PYSPARK_SUBMIT_ARGS": " ".join([*(f"--conf {name}={size}" for name, size in HEAPS.items()), "pyspark-shell"]),
}


@pytest.mark.slow
def test_end_to_end(tmp_path: Path) -> None:
    """The end-to-end test passes unchanged on a cluster, with what its driver processes and with what its executors
    do.
    """
    run_apart(["tests/engine/test_contract.py::TestResult::test_equals_one_call"], tmp_path, CLUSTER, least=2)


@pytest.mark.slow
def test_contract(tmp_path: Path) -> None:
    """So does the whole contract."""
    run_apart(["tests/engine/test_contract.py"], tmp_path, CLUSTER, least=10)
