"""On Spark the driver commits by files what it processed to a ledger on its disk; Spark commits all else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.clocks import NOW
from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, log
from windrow.api import batching_runner
from windrow.engine import open_engine
from windrow.engine.late import LateSpark
from windrow.engine.session import bare_is_local
from windrow.engine.spark import ON_DATABRICKS
from windrow.settings import Settings


@pytest.fixture
def local(spark_engine: EngineFactory) -> EngineFactory:
    """Spark as it is unless told otherwise."""
    return replace(spark_engine, driver_commits=True)


@pytest.fixture
def started(world: World, local: EngineFactory) -> World:
    """A ledger that has read one of three versions of its depot."""
    first, *others = log(versions=3)
    world.publish(first)
    world.runner(local).once()
    world.publish(*others)
    return world


def committers(world: World) -> list[str]:
    """Return who made each commit since the first microbatch, as the log has it, latest first."""
    return [re.split("[:/]", commit["engineInfo"])[0] for commit in DeltaTable(world.ledger).history()][:-2]


def assert_result(world: World) -> None:
    """All is as if read in one call, whoever committed."""
    assert world.canonical() == world.expected()
    world.assert_balanced()


def test_by_default(started: World, local: EngineFactory) -> None:
    """
    Nobody has to ask for it, and the result is that of one call.
    """
    assert Settings.model_fields["driver_commits"].default is True
    started.runner(local, max_messages=30).once()
    assert committers(started) == ["delta-rs", "delta-rs"]
    assert_result(started)


@pytest.mark.parametrize(
    "setting", [{"driver_commits": False}, {"max_driver_messages": 0}], ids=["not asked for", "executors"]
)
def test_not_the_drivers(started: World, local: EngineFactory, setting: dict[str, Any]) -> None:
    """
    Spark commits where the setting says so, and what executors processed.
    """
    started.runner(local, **setting).once()
    assert set(committers(started)) == {"Apache-Spark"}
    assert_result(started)


def test_not_on_databricks(started: World, local: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A path without a scheme is none of the driver's disk there.
    """
    monkeypatch.setenv(ON_DATABRICKS, "17.3")
    started.runner(local).once()
    assert set(committers(started)) == {"Apache-Spark"}
    assert_result(started)


def test_cached_ledger(started: World, local: EngineFactory) -> None:
    """
    What somebody cached of the ledger shows each commit, of the driver and of Spark, and stops neither.
    """
    cached = local.session.read.format("delta").load(started.ledger).cache()
    try:
        for setting in ({"max_messages": 30}, {"driver_commits": False, "max_messages": 30}):
            cached.count()
            started.publish(*log(versions=1, seed=len(setting), begin=NOW + len(setting) * HOUR))
            started.runner(local, **setting).once()
            assert (
                local.session.read.format("delta").load(started.ledger).count()
                == DeltaTable(started.ledger).to_pyarrow_table().num_rows
            )
    finally:
        cached.unpersist()
    started.assert_balanced()


def test_not_on_another_file_system(world: World, local: EngineFactory, tmp_path: Path) -> None:
    """
    Where the session takes a path without a scheme for one of another file system, the ledger is made there.
    """
    world.publish(*log(versions=2))
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    elsewhere = local.session.newSession()
    elsewhere.conf.set("fs.defaultFS", "viewfs://elsewhere/")
    elsewhere.conf.set(f"fs.viewfs.mounttable.elsewhere.link.{here}", f"file://{there}")
    assert (bare_is_local(local.session), bare_is_local(elsewhere)) == (True, False)
    places = {"depot": f"file:{world.depot}", "ledger": f"{here}/ledger", "checkpoints": f"file:{tmp_path}/checkpoints"}
    settings = world.settings(local).model_copy(update=places)
    batching_runner(open_engine(settings, elsewhere), settings, world.clock).once()
    microbatches = elsewhere.read.format("delta").load(f"{here}/ledger").where("state = 'microbatch'").count()
    assert (here.exists(), microbatches) == (False, 1)


def test_tick_without_a_session(started: World, local: EngineFactory) -> None:
    """
    What needs no reading needs no session of Spark: a tick closes batches, and none was started.
    """
    started.runner(local).once()
    engine = LateSpark(started.settings(local))
    started.runner(local, engine).tick(to=NOW + HOUR)
    assert engine.session_at_work is None
    assert (committers(started)[0], started.rows("open")) == ("delta-rs", [])
    started.assert_balanced()
