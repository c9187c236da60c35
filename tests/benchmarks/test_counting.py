from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.counting import Opened, counted, passing


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux")
class TestOpened:
    def test_files(self, tmp_path: Path) -> None:
        """A file that is written or read counts once each time; Hadoop's checksum beside it does not."""
        (tmp_path / "part").write_text("old")
        with Opened([tmp_path]) as opened:
            (tmp_path / "part").read_text()
            (tmp_path / "part").read_text()
            (tmp_path / "new").write_text("new")
            (tmp_path / ".new.crc").write_text("sum")
            seen = opened.seen()
        assert (seen["files"], seen["log"], seen["listings"]) == (3, 0, 0)

    def test_log(self, tmp_path: Path) -> None:
        """Entries, checkpoints and checksums of a log count where they are read, not where they are written."""
        log = tmp_path / "_delta_log"
        log.mkdir()
        names = [f"{0:020}.json", f"{0:020}.checkpoint.parquet", f"{0:020}.crc", "_last_checkpoint"]
        for name in names:
            (log / name).write_text("")
        with Opened([tmp_path]) as opened:
            for name in names:
                (log / name).read_text()
            (log / f"{1:020}.json").write_text("")
            (log / "part.tmp").write_text("")
            seen = opened.seen()
        assert (seen["log"], seen["files"]) == (4, 6)

    def test_listings(self, tmp_path: Path) -> None:
        """A directory that is listed counts once, though the kernel tells of it in its parent too."""
        (tmp_path / "inside").mkdir()
        with Opened([tmp_path]) as opened:
            list((tmp_path / "inside").iterdir())
            assert opened.seen() == {"listings": 1}

    def test_asked_again(self, tmp_path: Path) -> None:
        """What is seen begins anew at each question."""
        with Opened([tmp_path]) as opened:
            (tmp_path / "new").write_text("new")
            assert opened.seen()["files"] == 1
            assert opened.seen()["files"] == 0


@pytest.mark.slow
class TestSpark:
    def test_rows(self, spark: Any) -> None:
        """Rows count on their way to Python and from it, once each, whatever a call is made of."""
        with passing() as rows:
            for number, ask in enumerate(("toArrow", "collect", "toPandas"), 1):
                getattr(spark.range(7), ask)()
                assert rows[0] == 7 * number
            spark.createDataFrame(pa.table({"a": [1, 2, 3]}))
            assert rows[0] == 24
        spark.range(7).collect()
        assert rows[0] == 24

    def test_jobs(self, spark: Any, tmp_path: Path) -> None:
        """What a call has Spark run counts, however many jobs came before it."""

        def seven() -> None:
            spark.range(7).collect()

        spark.range(7).repartition(2).collect()
        once = counted(spark, [tmp_path], seven)
        assert (once.jobs, once.stages, once.rows) == (1, 1, 7)
        assert counted(spark, [tmp_path], spark.range(7).repartition(2).collect).stages == 2
        assert counted(spark, [tmp_path], lambda: None).jobs == 0
