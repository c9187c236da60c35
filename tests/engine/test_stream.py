"""What comes back from another process: errors as they were, and runners without what belongs to this one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log
from windrow.errors import ConcurrentCommitError, DepotChangedError
from windrow.runtime.wall_clock import WallClock
from windrow.source.spark import _marked, failure_in
from windrow.testing.points import Point


@pytest.mark.parametrize(
    "error", [ConcurrentCommitError('a "quoted"\nmessage', "and\na hint"), DepotChangedError("x")], ids=repr
)
def test_our_errors_come_back(error: ConcurrentCommitError | DepotChangedError) -> None:
    """An error of ours is found again in the text of a stream's error, with its type, message and hint."""
    failure = failure_in(f"[STREAM_FAILED] Query terminated: Traceback\nRuntimeError: {_marked(error)} SQLSTATE: 38000")
    assert failure is not None
    assert (type(failure), failure.args) == (type(error), error.args)


def test_other_errors_come_back() -> None:
    """Any other error keeps its name and first line; a text that holds none gives none."""
    assert str(failure_in(_marked(OSError("the disk\nis full")))) == "OSError: the disk"
    assert failure_in("Query terminated") is None


def test_runner_in_another_process(world: World, embedded: EngineFactory) -> None:
    """A copy of a runner goes on where the runner stood, with a clock of its own, and reports nothing here."""
    world.publish(*log(versions=1))
    runner = world.runner(embedded)
    runner.driver.clock = WallClock()
    runner.driver.clock.stop()
    reported: list[object] = []
    runner.driver.report = reported.append
    copy = pickle.loads(pickle.dumps(runner))  # noqa: S301 - our own
    assert copy.once().total("message_count") == 30
    assert (reported, runner.summary.microbatches) == ([], [])


@pytest.mark.slow
def test_checkpoints_are_used_once(world: World, spark_engine: EngineFactory, tmp_path: Path) -> None:
    """A checkpoint that is ahead of the ledger, which was RESTOREd, costs no message: each start takes a fresh one."""
    world.publish(*log(versions=2))
    world.runner(spark_engine, checkpoint_location=str(tmp_path / "checkpoints")).once()
    DeltaTable(world.ledger).restore(0)
    world.publish(log(versions=1, seed=5, start=NOW + 8 * SECOND)[0])
    world.runner(spark_engine, checkpoint_location=str(tmp_path / "checkpoints")).once()
    assert world.canonical() == world.expected()


@pytest.mark.ci
def test_a_function_that_exits(world: World, spark_engine: EngineFactory) -> None:
    """What asks to exit within a batch of Spark's stream ends the run, which does not wait for the batch forever."""
    world.publish(*log(versions=1))

    def leave(here: Point) -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        world.probed(spark_engine, leave).once()
    world.runner(spark_engine).once()
    assert world.canonical() == world.expected()


@pytest.mark.slow
def test_a_backlog_is_read_once(world: World, spark_engine: EngineFactory, spark: SparkSession) -> None:
    """A backlog that is too large for the driver is kept on disks while its slices are taken, and let go afterwards."""
    world.publish(*log(versions=3))
    kept: list[int] = []

    def count(here: Point) -> None:
        if here is Point.BEFORE_COMMIT:
            kept.append(on_disks(spark))

    before = on_disks(spark)
    world.probed(spark_engine, count, max_messages=30, max_driver_messages=40).once()
    assert kept == [before + 1] * 3
    assert on_disks(spark) == before
    assert world.canonical() == world.expected()


def on_disks(spark: SparkSession) -> int:
    """Count what Spark keeps on disks alone: Delta's states of tables, and checkpoints, are in memory as well."""
    kept = spark.sparkContext._jsc.getPersistentRDDs().values()
    return sum(not rdd.getStorageLevel().useMemory() for rdd in kept)
