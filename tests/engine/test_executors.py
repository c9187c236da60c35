"""Spark's two ways of processing, and what its MERGE does not touch."""

import shutil
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import PythonException

from tests.clocks import NOW
from tests.engine.forms import have_spark
from tests.faults.mishaps import forget_tables
from tests.messages import HOUR, SECOND, log
from windrow.engine.spark_errors import translated
from windrow.errors import DepotChanged, EngineUnavailable


class TestExecutors:
    def test_same_result(self, world, spark_engine):
        """
        Messages processed on the executors, over live rows of an earlier microbatch, give the result of one call; the
        history names the path.
        """
        versions = log(versions=3, size=60)
        world.publish(versions[0])
        world.runner(spark_engine, max_driver_messages=500).once()
        world.publish(*versions[1:])
        world.runner(spark_engine, max_driver_messages=0, max_messages=60).once()
        assert [row["path"] for row in world.history()] == ["driver", "executors", "executors"]
        assert world.canonical() == world.expected()
        world.assert_balanced()

    def test_deletion_stops(self, world, spark_engine, embedded):
        """
        A deletion in the depot stops the run also where the executors read, and nothing of it is written.
        """
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        before = world.version()
        DeltaTable(world.depot).delete("key = 'k'")
        world.publish(log(versions=1, seed=7)[0])
        with pytest.raises(DepotChanged, match="version 3"):
            world.runner(spark_engine, max_driver_messages=0).once()
        assert world.version() == before

    def test_missing_package(self, spark):
        """
        What the Python of the executors has not installed is named, and not tried again.
        """

        def without(batches):
            import_module("nowhere_installed")
            yield from batches

        with pytest.raises(PythonException) as raised:
            spark.range(1).mapInArrow(without, "id long").collect()
        error = translated(raised.value)
        assert isinstance(error, EngineUnavailable)
        assert "'nowhere_installed'" in error.message
        assert not error.retryable


@contextmanager
def without_final_files(ledger):
    """Hide the files of final rows."""
    hidden = Path(f"{ledger}.hidden")
    folders = [Path(ledger) / f"state={state}" for state in ("closed", "rejected", "microbatch")]
    for folder in folders:
        shutil.move(folder, hidden / folder.name)
    yield
    for folder in folders:
        shutil.copytree(hidden / folder.name, folder, dirs_exist_ok=True)


class TestMerge:
    def test_final_files_stay_closed(self, world, engine, embedded, monkeypatch):
        """
        A microbatch opens no file of final rows. Holds the literal condition on the partition column.
        """
        have_spark("merging", monkeypatch)
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        world.runner(embedded).tick(to=NOW + 8 * SECOND)
        with without_final_files(world.ledger):
            forget_tables()
            world.publish(log(versions=1, seed=7, begin=NOW + 8 * SECOND)[0])
            world.runner(engine).once()
            world.runner(engine).tick(to=NOW + HOUR)
        world.assert_balanced()
        assert world.rows("open") == []
