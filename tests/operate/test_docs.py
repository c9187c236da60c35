"""docs/operations.md names what there is."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from tests.messages import log
from tests.operate.conftest import watch
from windrow.operate import LogObserver
from windrow.operate.log import logging_to
from windrow.operate.metrics import PrometheusMetrics


@pytest.fixture
def page():
    """The text of the page."""
    return (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_line_of_a_microbatch(page, world, embedded):
    """The example of a microbatch's line has the fields of a real one, in their order."""
    [example] = re.findall(r"^```json\n(.*?)\n```", page, re.DOTALL | re.MULTILINE)
    world.publish(*log(versions=1))
    out = Console(file=StringIO(), width=80)
    with logging_to(out):
        watch(world, embedded, [LogObserver()])
    lines = [json.loads(line) for line in out.file.getvalue().splitlines()]
    [real] = [line for line in lines if line["event"] == "microbatch"]
    assert list(json.loads(example)) == list(real)


def test_metrics(page):
    """The table has every metric, and no other."""
    registered = set(
        re.findall(r"^# TYPE (windrow_\w+)", generate_latest(PrometheusMetrics().registry).decode(), re.MULTILINE)
    )
    table = "".join(line for line in page.splitlines() if line.startswith("| `windrow_"))
    assert set(re.findall(r"`(windrow_\w+)`", table)) == registered
