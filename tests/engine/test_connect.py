"""Spark Connect, as on Databricks serverless: the same tests, unchanged, in a process with a Connect session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
END_TO_END = ["tests/engine/test_contract.py::TestResult::test_equals_one_call"]
OTHERS = [
    "tests/engine/test_contract.py::TestResult",
    "tests/engine/test_contract.py::TestProgress::test_nothing_new",
    "tests/engine/test_catalog.py",
    "tests/engine/test_columns.py",
    "tests/engine/test_executors.py",
    "--deselect=tests/engine/test_executors.py::TestMerge",  # Connect reads the history of what it did
    "tests/test_stream_closed.py",
]


def run_connected(tests: list[str], directory: Path) -> None:
    """Run tests of Spark in a process with a Connect session, and require that all of them pass."""
    environment = os.environ | {"TEST_SPARK_REMOTE": "local[2]", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "spark",
        "-p",
        "no:cacheprovider",
        f"--basetemp={directory / 'run'}",
    ]
    with (directory / "output.txt").open("wb") as output:
        status = subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    said = (directory / "output.txt").read_text(errors="replace")
    assert status == 0, said[-6_000:]
    passed = re.search(r"(\d+) passed", said)
    assert passed
    assert int(passed[1]) >= len(tests)


def test_end_to_end(tmp_path: Path) -> None:
    """
    The end-to-end test passes unchanged on a Connect session of a local server.
    """
    run_connected(END_TO_END, tmp_path)


@pytest.mark.slow
def test_everything(tmp_path: Path) -> None:
    """
    So do the contract, catalogs, mapped depots, the executors and the stream of closed batches.
    """
    run_connected(OTHERS, tmp_path)
