"""`--engine spark` of the commands that read: tables and mappings that only Spark knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from windrow.cli import main

ONLY_SPARK = "'delta.enableTypeWidening' = 'true'"
AT = "2026-01-31T12:00:{:02}Z"


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A depot and a ledger with a feature that delta-rs does not know, and a mapping that only Spark runs."""
    root = tmp_path_factory.mktemp("only-spark")
    depot, ledger = f"delta.`{root}/depot`", f"delta.`{root}/ledger`"
    spark.sql(
        f"CREATE TABLE {depot} (device STRING, reading STRUCT<metric STRING, at TIMESTAMP>, value STRING) USING delta "
        f"TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', {ONLY_SPARK})"
    )
    for first in (0, 30):
        times = [(second, AT.format(first + second)) for second in range(0, 30, 7)]
        rows = ", ".join(f"('pump', struct('heat', timestamp'{time}'), '{second}')" for second, time in times)
        spark.sql(f"INSERT INTO {depot} VALUES {rows}")
    (root / "windrow.toml").write_text(
        f"""
        ledger = "{root}/ledger"
        [depot]
        table = "{root}/depot"
        [depot.columns]
        key = "soundex(device)"
        type = "reading.metric"
        event_time = "reading.at"
        received_at = "reading.at"
        payload = "value"
        """
    )
    assert main(["run", "--engine", "spark", "--config", f"{root}/windrow.toml"]) == 0
    spark.sql(f"ALTER TABLE {ledger} SET TBLPROPERTIES ({ONLY_SPARK})")
    return root


def answer(tables: Path, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """Return the JSON with which a command answers."""
    capsys.readouterr()
    assert main([*arguments, "--config", f"{tables}/windrow.toml", "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_verify(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Every message is found and decided again, and the report says that nobody looked at files and logs.
    """
    found = answer(tables, capsys, "verify", "--engine", "spark")
    [books] = found["books"]
    assert (books["messages_read"], books["ok"], books["decided"], books["lost"]) == (10, 10, 10, 0)
    assert found["differences"] == []
    assert [finding for finding in found["findings"] if "files and logs" in finding]
    assert books["ledger_version"] == 2


def test_verify_finds_a_lost_batch(tables: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """
    A batch that somebody deleted is missed.
    """
    ledger = f"delta.`{tables}/ledger`"
    [batch, *_] = answer(tables, capsys, "show", "--engine", "spark", "--closed")
    spark.sql(f"DELETE FROM {ledger} WHERE id = '{batch['id']}'")
    try:
        found = answer(tables, capsys, "verify", "--engine", "spark", status=1)
        assert found["books"][0]["lost"] == batch["message_count"]
    finally:
        spark.sql(f"RESTORE {ledger} TO VERSION AS OF 2")


def test_show(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Batches are shown, and what became of a message.
    """
    [arrival] = answer(tables, capsys, "show", "--engine", "spark", "--key", "P510", "--at", AT.format(7))
    assert (arrival["outcome"], arrival["depot_version"], arrival["payload"]) == ("closed", 1, "7")
    assert answer(tables, capsys, "show", "--engine", "spark", "--closed")


def test_tune(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Other windows are tried on the messages of the depot.
    """
    found = answer(tables, capsys, "tune", "--engine", "spark", "--windows", "10s,30s", "--delays", "5s")
    assert (found["messages"], found["depot_versions"]) == (10, [1, 2])


def test_delta_rs_names_the_way_out(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Without the option the error says what to add.
    """
    for command in ("verify", "show", "tune"):
        assert main([command, "--config", f"{tables}/windrow.toml"]) == 3
        assert "--engine spark" in capsys.readouterr().err
