from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command


def check(document: dict[str, Any], directory: Path) -> None:
    assert document["messages"] == 51_004
    assert document["closed_batches"] + document["open_batches"] == 454
    assert document["rejected"] == {"too_old": 3_080, "duplicate": 16}
    assert document["needed_delay"]["needed_us"] == 55_922_104
    html = (directory / document["picture"]).read_text(encoding="utf-8")
    assert "edge-c" in html


def test_embedded(windrow: Command, tmp_path: Path) -> None:
    """
    The demo batches the sample, verifies, says which host stalls, and run again it reads nothing twice.
    """
    check(windrow("demo", "--engine", "embedded", "--json").json(), tmp_path)
    said = windrow("demo", "--engine", "embedded")
    assert "nothing new" in said.out
    assert "edge-c stalls" in said.out
    assert 'max_delay = "56s" would keep every message' in said.out
    assert windrow("verify", "--config", "demo/windrow.toml").status == 0


@pytest.mark.spark
def test_spark(windrow: Command, tmp_path: Path, spark: Any) -> None:
    """
    On Spark the demo finds the same.
    """
    check(windrow("demo", "--engine", "spark", "--json").json(), tmp_path)
    assert windrow("verify", "--config", "demo/windrow.toml").status == 0
