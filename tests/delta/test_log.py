import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log, message, table
from tests.silence import silence
from windrow.delta.log import DeltaRsLog, count_added_rows
from windrow.engine.spark.log import SparkLog
from windrow.errors import DepotUnreadableError
from windrow.model.commits import differs


class TestGone:
    @pytest.mark.slow_on_spark
    def test_a_version_that_was_cleaned_up_stops_the_run(self, world: World, engine: EngineFactory) -> None:
        """When the log no longer has the next version to read, the run stops instead of skipping it."""
        world.publish(*log(3, size=3))
        world.runner(engine).once()
        version = world.version()
        world.publish(*log(3, seed=2, size=3))
        DeltaTable(world.depot).create_checkpoint()
        for gone in range(5):
            (Path(world.depot) / "_delta_log" / f"{gone:020}.json").unlink()
        with pytest.raises(DepotUnreadableError, match=r'version 4 must be read next.*\n.*"version:5"'):
            world.runner(engine).once()
        assert world.version() == version


class TestAnswers:
    @pytest.mark.ci
    def test_both_readers_say_the_same(self, world: World, embedded: EngineFactory, spark: Any) -> None:
        """delta-rs and Spark give the same identity, version and rows of each commit, whoever wrote it."""
        from windrow.engine.spark.log import SparkLog

        world.publish([message("a"), message("b")])
        frame = spark.createDataFrame(table([message("c")]))
        frame.write.format("delta").mode("append").save(world.depot)
        write_deltalake(world.depot, table([message("d")]), mode="append")
        DeltaTable(world.depot).optimize.compact()
        spark_log = SparkLog(spark, f"delta.`{world.depot}`")
        delta_rs_log = DeltaRsLog(world.depot)
        assert spark_log.table() == delta_rs_log.table()
        assert (
            count_added_rows(spark_log.commits(0), 0, 4)
            == count_added_rows(delta_rs_log.commits(0), 0, 4)
            == {1: 2, 2: 1, 3: 1, 4: 0}
        )

    @pytest.mark.ci
    def test_without_metrics(self, world: World, spark: Any) -> None:
        """Both count the rows of commits without `operationMetrics` by the statistics of the files, and give the bytes
        of files without statistics; a commit that removed rows is not counted.
        """
        world.publish([message("a"), message("b")])
        world.publish([message("c")])
        DeltaTable(world.depot).delete("type = 'b'")
        silence(world.depot, "operationMetrics")
        readers = (DeltaRsLog(world.depot), SparkLog(spark, f"delta.`{world.depot}`"))
        for log_ in readers:
            assert count_added_rows(log_.commits(0), 0, 3) == {1: 2, 2: 1, 3: None}
        silence(world.depot, "operationMetrics", "stats")
        spark_log, delta_rs_log = SparkLog(spark, f"delta.`{world.depot}`"), DeltaRsLog(world.depot)
        assert (
            count_added_rows(spark_log.commits(0), 0, 3)
            == count_added_rows(delta_rs_log.commits(0), 0, 3)
            == {1: None, 2: None, 3: None}
        )
        assert spark_log.bytes_added(0, 2) == delta_rs_log.bytes_added(0, 2)
        assert set(delta_rs_log.bytes_added(0, 2)) == {1, 2}

    def test_no_table(self, tmp_path: Path, spark: Any) -> None:
        """Where there is no table both say None."""
        from windrow.engine.spark.log import SparkLog

        assert DeltaRsLog(str(tmp_path / "absent")).table() is None
        assert SparkLog(spark, f"delta.`{tmp_path / 'absent'}`").table() is None


class TestMarks:
    def test_each_commit_has_its_own(self, spark: Any, world: World) -> None:
        """delta-rs and Spark each give every commit a different, stable fingerprint, and both say how many rows it
        added.
        """
        world.publish([message()])
        rows = spark.createDataFrame(table([message("b")]).combine_chunks())
        rows.write.format("delta").mode("append").save(world.depot)
        DeltaTable(world.depot).optimize.compact()
        for log_ in (DeltaRsLog(world.depot), SparkLog(spark, f"delta.`{world.depot}`")):
            commits = log_.commits()
            assert len({commit.fingerprint for commit in commits}) == 4
            assert log_.commits(2) == commits[2:]
            assert [(commit.version, commit.rows) for commit in commits] == [(0, 0), (1, 1), (2, 1), (3, 0)]

    def test_of_a_copy(self, world: World, tmp_path: Path) -> None:
        """A copy of a table has the same fingerprints."""
        world.publish([message()])
        shutil.copytree(world.depot, tmp_path / "copy")
        for file in (tmp_path / "copy" / "_delta_log").iterdir():
            os.utime(file, (1, 1))
        ours, theirs = (DeltaRsLog(str(place)).commits() for place in (world.depot, tmp_path / "copy"))
        assert [commit.fingerprint for commit in ours] == [commit.fingerprint for commit in theirs]

    @pytest.mark.parametrize(
        ("fingerprint", "known", "other"),
        [
            ("log:1", "log:2", True),
            ("log:1", "log:1", False),
            ("spark:1", "log:2", False),
            (None, "log:1", False),
            ("log:1", None, False),
        ],
    )
    def test_compared(self, fingerprint: str | None, known: str | None, other: bool) -> None:
        """Only fingerprints of the same reader can show that a commit is another one; an unknown fingerprint shows
        nothing.
        """
        assert differs(fingerprint, known) is other
