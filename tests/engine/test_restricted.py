"""Databricks' serverless compute, as its documentation has it: a Connect server that refuses what is refused there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.apart import run_apart
from tests.engine.restricted.server import Server, restricted_server

pytestmark = [pytest.mark.slow, pytest.mark.spark]

DAILY = Path(__file__).parent / "restricted" / "daily.py"
TESTS = re.findall(r"^def (test_\w+)", DAILY.read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server, for all tests of this module."""
    with restricted_server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.mark.parametrize("name", TESTS)
def test_daily(name: str, server: Server, tmp_path: Path) -> None:
    """
    What is done each day passes on a session that is refused what serverless compute refuses, in a process without a
    JVM.
    """
    environment = {"TEST_SPARK_REMOTE": server.remote, "SPARK_REMOTE": server.remote}
    run_apart([f"{DAILY}::{name}"], tmp_path, environment, least=1)
