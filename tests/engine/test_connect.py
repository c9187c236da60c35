"""Spark Connect, as on Databricks serverless: the same tests, unchanged, in a process with a Connect session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.apart import run_apart

pytestmark = pytest.mark.spark

CONNECT = {"TEST_SPARK_REMOTE": "local[2]"}
END_TO_END = ["tests/engine/test_contract.py::TestResult::test_equals_one_call"]  # the driver and the executors
OTHERS = [
    "tests/engine/test_contract.py::TestResult",
    "tests/engine/test_contract.py::TestProgress::test_nothing_new",
    "tests/engine/test_catalog.py",
    "tests/engine/test_columns.py",
    "tests/engine/test_executors.py",
    "tests/ingest/test_ingest.py::TestDelta",
    "tests/reading/test_stream_closed.py",
    "tests/topology/test_frames.py",
]
# Connect reads the history of what it did, and its microbatches run in a process of the server, where nobody counts
# and what is asked of the rule for forms does not arrive.
HERE_ALONE = (
    "tests/engine/test_contract.py::TestResult::test_any_form_of_sparks_commit",
    "tests/engine/test_executors.py::TestMerge",
    "tests/engine/test_executors.py::TestRowsStayThere",
)


@pytest.mark.slow
def test_end_to_end(tmp_path: Path) -> None:
    """The end-to-end test passes unchanged on a Connect session of a local server, on the driver and on the
    executors.
    """
    run_apart(END_TO_END, tmp_path, CONNECT, least=2)


@pytest.mark.slow
def test_everything(tmp_path: Path) -> None:
    """So do the contract, catalogs, mapped depots, the executors, tables to ingest, the stream of closed batches and
    topologies.
    """
    run_apart([*OTHERS, *(f"--deselect={test}" for test in HERE_ALONE)], tmp_path, CONNECT, least=len(OTHERS))
