from shutil import rmtree

import pytest
from deltalake import write_deltalake

from tests.messages import message, table
from windrow.engine.spark.log import SparkLog

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path):
    """A table of two versions."""
    return write(str(tmp_path / "depot"), 2)


def write(place, versions):
    """Write a table, and return where it is."""
    for _ in range(versions):
        write_deltalake(place, table([message()]), mode="append")
    return place


class TestKept:
    @pytest.mark.slow
    def test_followed(self, spark, place):
        """A log that has answered before answers like one that has not, also after commits, from any version on."""
        log = SparkLog(spark, f"delta.`{place}`")
        for _ in range(3):
            for since, last_version in ((0, 0), (1, 1), (0, 1), (1, None), (0, None)):
                fresh = SparkLog(spark, f"delta.`{place}`")
                assert (log.table(), log.latest()) == (fresh.table(), fresh.latest())
                commits = [
                    commit for commit in log.commits(since, last_version) if commit.version <= (last_version or 9)
                ]
                assert commits == [
                    commit for commit in fresh.commits(since, last_version) if commit.version <= (last_version or 9)
                ]
            write(place, 2)

    def test_replaced(self, spark, place):
        """Commits of a table that was in this place before are forgotten."""
        log = SparkLog(spark, f"delta.`{place}`")
        log.table()
        before = log.commits(0, 1)
        rmtree(place)
        write(place, 3)
        log.table()
        after = log.commits(0, 2)
        assert [commit.version for commit in after] == [0, 1, 2]
        assert min(commit.committed_at for commit in after) > max(commit.committed_at for commit in before)
