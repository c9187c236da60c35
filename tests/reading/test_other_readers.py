"""A ledger read by DuckDB and Polars: through its Delta log as it is, by a glob of its files too often."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

import windrow
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log
from windrow.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "downstream.md"


def block(package: str) -> str:
    """Return the block of the page that uses a package."""
    matches = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [only] = [text for text in matches if f"import {package}" in text]
    return only


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger at data/ledger, written by several microbatches and then compacted."""
    (tmp_path / "data").mkdir()
    world = World(tmp_path / "data", clock)
    for rows in log(versions=6, seed=3):
        world.publish(rows)
        world.runner(embedded).once()
    monkeypatch.chdir(tmp_path)
    assert main(["maintain", "--depot", world.depot, "--ledger", world.ledger]) == 0
    return world.ledger


def test_duckdb(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the Delta log DuckDB finds each closed batch once, with its messages."""
    names: dict[str, Any] = {}
    exec(block("duckdb"), names)  # noqa: S102 - our own page
    assert "batches" in capsys.readouterr().out
    batches = windrow.read_closed(ledger).batches
    query = "SELECT id, len(messages) AS messages FROM ledger_rows WHERE state = 'closed' ORDER BY id"
    ledger_rows = names["ledger"]  # noqa: F841 - DuckDB finds it
    rows = duckdb.sql(query).fetchall()
    assert rows == sorted(zip(batches["id"].to_pylist(), batches["message_count"].to_pylist(), strict=True))


def test_polars(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the Delta log Polars finds each closed batch once, with its messages."""
    names: dict[str, Any] = {}
    exec(block("polars"), names)  # noqa: S102 - our own page
    assert "message_count" in capsys.readouterr().out
    rows = names["closed"].select("id", pl.col("messages").list.len()).collect().rows()
    batches = windrow.read_closed(ledger).batches
    assert sorted(rows) == sorted(zip(batches["id"].to_pylist(), batches["message_count"].to_pylist(), strict=True))


def test_glob_counts_twice(ledger: str) -> None:
    """After compactions a glob of the files counts batches more than once: the warning of the page is true."""
    files = f"read_parquet('{ledger}/state=*/*/*.parquet', hive_partitioning = true)"
    rows, ids = duckdb.sql(f"SELECT count(*), count(DISTINCT id) FROM {files} WHERE state = 'closed'").fetchall()[0]
    assert rows > ids == windrow.read_closed(ledger).batches.num_rows
    both = f"SELECT count(*) FROM {files} AS a SEMI JOIN {files} AS b ON a.id = b.id AND b.state = 'closed'"
    assert duckdb.sql(f"{both} WHERE a.state = 'open'").fetchall()[0][0] > 0
