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


@pytest.mark.ci
def test_relative_paths(tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is relative, as in the `windrow.toml` of `windrow init`, is one in the directory of the command."""
    monkeypatch.chdir(tables)
    places = ("--depot", "depot", "--ledger", "ledger")
    assert answer(tables, capsys, "status", "--engine", "spark", *places)["totals"]["message_count"] == 10
    assert answer(tables, capsys, "show", "--engine", "spark", *places, "--closed")


@pytest.mark.slow
def test_verify(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every message is found and decided again, and the report says that nobody looked at files and logs."""
    document = answer(tables, capsys, "verify", "--engine", "spark")
    [books] = document["books"]
    assert (books["messages_read"], books["matched"], books["redecided"], books["lost"]) == (10, 10, 10, 0)
    assert document["differences"] == []
    assert [finding for finding in document["findings"] if "files and logs" in finding]
    assert books["ledger_version"] == 2


@pytest.mark.slow
def test_verify_of_a_value_that_cannot_be_cast(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message that was rejected for such a value is expected where Spark maps the depot, too."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}/depot` USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') "
        f"AS SELECT 'pump' AS device, value, timestamp'{AT.format(1)}' AS at FROM VALUES ('1'), ('x') AS given(value)"
    )
    (tmp_path / "windrow.toml").write_text(
        f"""
        ledger = "{tmp_path}/ledger"
        [depot]
        table = "{tmp_path}/depot"
        [depot.columns]
        key = "soundex(device)"
        type = "value"
        event_time = "at"
        received_at = "at"
        sequence = "value"
        """
    )
    assert main(["run", "--engine", "spark", "--config", f"{tmp_path}/windrow.toml"]) == 0
    document = answer(tmp_path, capsys, "verify", "--engine", "spark")
    assert document["differences"] == []
    [refused] = answer(tmp_path, capsys, "show", "--engine", "spark", "--rejected")
    assert refused["detail"] == "sequence: 'x' is not a valid BIGINT"


@pytest.mark.slow
def test_verify_finds_a_lost_batch(tables: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch that somebody deleted is missed."""
    ledger = f"delta.`{tables}/ledger`"
    [batch, *_] = answer(tables, capsys, "show", "--engine", "spark", "--closed")
    spark.sql(f"DELETE FROM {ledger} WHERE id = '{batch['id']}'")
    try:
        document = answer(tables, capsys, "verify", "--engine", "spark", status=1)
        assert document["books"][0]["lost"] == batch["message_count"]
    finally:
        spark.sql(f"RESTORE {ledger} TO VERSION AS OF 2")


@pytest.mark.ci
def test_show(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches are shown, and what became of a message."""
    [arrival] = answer(tables, capsys, "show", "--engine", "spark", "--key", "P510", "--event-time", AT.format(7))
    assert (arrival["outcome"], arrival["depot_version"], arrival["payload"]) == ("closed", 1, "7")
    assert answer(tables, capsys, "show", "--engine", "spark", "--closed")


@pytest.mark.ci
def test_tune(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other windows are tried on the messages of the depot."""
    document = answer(tables, capsys, "tune", "--engine", "spark", "--windows", "10s,30s", "--delays", "5s")
    assert (document["message_count"], document["depot_versions"]) == (10, [1, 2])


@pytest.mark.slow
def test_topology(tables: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Status and history of a topology whose tables only Spark can read."""
    (tables / "readings.py").write_text(
        f"""
from windrow.topology import Microbatch, Topology
topology = Topology("readings", depots={{"readings": "{tables}/depot"}}, states="{tables}/states")
topology.state("counts", key="device STRING", value="count BIGINT")
@topology.function
def count(microbatch: Microbatch) -> None:
    microbatch.state("counts").combine(microbatch.rows("readings"), count="count")
"""
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(tables))
        assert main(["run", "readings:topology", "--engine", "spark", "--config", f"{tables}/windrow.toml"]) == 0
        spark.sql(f"ALTER TABLE delta.`{tables}/states` SET TBLPROPERTIES ({ONLY_SPARK})")
        document = answer(tables, capsys, "status", "readings:topology", "--engine", "spark")
        assert (document["states"], document["lag"]["message_count"], document["totals"]["message_count"]) == (
            {"counts": 1},
            0,
            10,
        )
        [row] = answer(tables, capsys, "status", "readings:topology", "--history", "20", "--engine", "spark")[
            "microbatches"
        ]
        assert (row["kind"], row["depot"], row["message_count"]) == ("data", "readings", 10)


@pytest.mark.slow
def test_status(tables: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """What waits, the clocks and the reach of both tables come from the logs as Spark reads them."""
    document = answer(tables, capsys, "status", "--engine", "spark")
    assert (
        document["depots"][0]["version"],
        document["depots"][0]["read_version"],
        document["lag"]["message_count"],
    ) == (
        2,
        2,
        0,
    )
    assert document["ledger"]["version"] >= 2
    assert (document["totals"]["message_count"], len(document["clocks"])) == (10, 1)
    assert document["ledger"]["readable_range"] == {"version": 0, "retention": "90d"}
    depot = f"delta.`{tables}/depot`"
    spark.sql(f"INSERT INTO {depot} VALUES ('pump', struct('heat', timestamp'{AT.format(59)}'), 'x')")
    spark.sql(f"DELETE FROM {depot} WHERE value = 'x'")
    try:
        waits = answer(tables, capsys, "status", "--engine", "spark", "--fail-if", "lag_messages>0", status=1)
        assert (waits["depots"][0]["messages_waiting"], waits["depots"][0]["changed_version"]) == (1, 4)
        [offset] = answer(tables, capsys, "status", "--engine", "spark")["depots"]
        assert (offset["read_version"], offset["version"], offset["versions_waiting"]) == (2, 4, 1)
    finally:
        spark.sql(f"RESTORE {depot} TO VERSION AS OF 2")


def test_history(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The microbatches are listed."""
    rows = answer(tables, capsys, "status", "--history", "20", "--engine", "spark")["microbatches"]
    assert [row["message_count"] for row in rows if row["kind"] == "data"] == [10]  # a slow run ticks as well


@pytest.mark.ci
def test_export_and_plot(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Closed batches are written with their messages, and drawn."""
    exported = answer(tables, capsys, "export", "--engine", "spark", "--messages", "--out", f"{tables}/out.json")
    rows = [json.loads(line) for line in (tables / "out.json").read_text().splitlines()]
    assert exported["row_count"] == len(rows) > 0
    assert {row["type"] for row in rows} == {"heat"}
    drawn = answer(tables, capsys, "plot", "--engine", "spark", "--out", f"{tables}/plot.json")
    assert Path(drawn["file"]).exists()


def test_delta_rs_names_the_way_out(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option the error says what to add."""
    commands = (
        ["verify"],
        ["show"],
        ["tune"],
        ["status"],
        ["status", "--history", "9"],
        ["export", "--out", f"{tables}/no.json"],
    )
    for command in commands:
        assert main([*command, "--config", f"{tables}/windrow.toml"]) == 3
        assert "--engine spark" in capsys.readouterr().err
