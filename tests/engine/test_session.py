"""What the Spark engine does with a session's settings."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log
from windrow.engine import choose, require_spark
from windrow.rows.session_settings import session_with
from windrow.settings.settings import Settings
from windrow.topology import Topology
from windrow.topology.running import tables_of

PARTITIONS, STATIC = "spark.sql.shuffle.partitions", "spark.sql.warehouse.dir"


def test_settings_for_one_statement(spark: Any) -> None:
    """
    What is set for a statement is gone after it: a setting that was there comes back, another one is unset.
    """
    before = spark.conf.get(PARTITIONS)
    with session_with(spark, {PARTITIONS: "7", "spark.windrow.test": "x"}):
        assert (spark.conf.get(PARTITIONS), spark.conf.get("spark.windrow.test")) == ("7", "x")
    assert spark.conf.get(PARTITIONS) == before
    assert spark.conf.get("spark.windrow.test", None) is None


def test_refused_setting(spark: Any) -> None:
    """
    A setting that the session refuses, as serverless refuses most, does not drop the others, whatever their order.
    """
    before, static = spark.conf.get(PARTITIONS), spark.conf.get(STATIC)
    with session_with(spark, {"spark.windrow.test": "x", STATIC: "/elsewhere", PARTITIONS: "7"}):
        assert (spark.conf.get("spark.windrow.test"), spark.conf.get(PARTITIONS)) == ("x", "7")
        assert spark.conf.get(STATIC) == static
    assert spark.conf.get(PARTITIONS) == before
    assert spark.conf.get("spark.windrow.test", None) is None


def test_private_scratch(tmp_path: Path) -> None:
    """
    What Java prints as Spark starts goes to a directory of its own, which nobody else can have prepared or read.
    """
    start = "from windrow.engine.spark.session import local_session; local_session()"
    environment = os.environ | {"JAVA_HOME": "/nowhere", "TMPDIR": str(tmp_path)}
    started = subprocess.run(
        [sys.executable, "-c", start], env=environment, capture_output=True, text=True, check=False
    )
    [place] = tmp_path.glob("windrow-spark-*")
    assert str(place / "java.log") in started.stderr
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IRWXU


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "DATABRICKS_RUNTIME_VERSION", "PYSPARK_GATEWAY_PORT"])
def test_platform_gives_the_session(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """
    Where a platform gives the session, Spark is chosen, and neither Java nor packages are asked for here.
    """
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert choose("auto") == "embedded"
    monkeypatch.setenv(name, "x")
    assert choose("auto") == "spark"
    require_spark()


@pytest.mark.slow
def test_paths_on_databricks(
    world: World, spark_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    On Databricks nothing is looked at behind Spark's back, because a path there is none of this disk: the ledger is
    made by Spark, in one commit, and the result is the same. Its streams begin in the directory that `checkpoints`
    names, a fresh one each.
    """
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17")
    world.publish(*log(versions=2))
    for _ in range(2):
        world.runner(spark_engine, checkpoint_location=str(tmp_path / "checkpoints")).once()
        world.publish(*log(versions=1, seed=3))
    history = spark_engine.session.sql(f"DESCRIBE HISTORY delta.`{world.ledger}`").orderBy("version").collect()
    assert [row.operation for row in history] == ["CREATE TABLE AS SELECT", "WRITE", "WRITE"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert [row["messages_read"] for row in world.history()] == [60, 30]
    world.assert_balanced()


def test_starts_for_all_depots(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The session of a topology is started for the tables of all its depots, so that it has the jars for each.
    """
    table_paths: list[str] = []
    monkeypatch.setattr(
        "windrow.engine.spark.engine.find_session", lambda *tables: (table_paths.extend(tables), spark)[1]
    )
    places = {name: str(tmp_path / name) for name in ("a", "b", "states")}
    topology = Topology("both", depots=[places["a"], places["b"]], states=places["states"])
    tables_of(topology, Settings(engine="spark"))
    assert {*table_paths} == {*places.values()}
