"""What appends added is read from the files that the log names, and is what the change feed says."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.clocks import NOW
from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.messages import log, message, table
from windrow import Producer
from windrow.arrow import plain
from windrow.commits import COMMITTED_AT, VERSION
from windrow.engine.appended import appended
from windrow.storage import Seen, seen_table


@pytest.fixture
def seen(world: World) -> World:
    """A depot that was opened, and may be followed from now on."""
    world.publish(*log(versions=2))
    seen_table(world.depot, "depot")
    return world


def feed(depot: str, first: int, last: int) -> pa.Table:
    """Return the change feed as delta-rs tells it, in an order of its own."""
    told = plain(pa.table(DeltaTable(depot).load_cdf(starting_version=first, ending_version=last)))
    return ordered(told.drop_columns([COMMITTED_AT]))


def ordered(rows: pa.Table) -> pa.Table:
    """Return rows in the order of their values."""
    order = [(name, "ascending") for name in rows.column_names]
    return rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()


def added(world: World, first: int) -> pa.Table | None:
    """Return what is read from files of the versions from one on."""
    depot: Seen = seen_table(world.depot, "depot")
    return appended(depot, first, depot.version)


def test_as_the_feed_says(seen: World) -> None:
    """
    Whoever appended, delta-rs or a producer, the rows of several versions are those of the change feed; of a column
    that a file does not have they have NULL.
    """
    seen.publish(*log(versions=2, seed=7))
    with Producer(seen.depot, "p") as producer:
        producer.send(key="k", type="t", event_time=NOW, received_at=NOW).result(60)
    write_deltalake(seen.depot, table([message()]).drop_columns(["sequence"]), mode="append", schema_mode="merge")
    found = added(seen, 3)
    assert found is not None
    assert ordered(found).equals(feed(seen.depot, 3, 6))
    assert found[VERSION].unique().to_pylist() == [3, 4, 5, 6]


@pytest.mark.spark
def test_of_spark(seen: World, embedded: EngineFactory, spark: Any) -> None:
    """
    What Spark appended is read as the feed says it, or the feed is asked.
    """
    few = spark.read.format("delta").load(seen.depot).limit(5)
    few.write.format("delta").mode("append").save(seen.depot)
    found = added(seen, 3)
    assert found is None or ordered(found).equals(feed(seen.depot, 3, 3))
    seen.runner(embedded).once()
    assert seen.canonical() == seen.expected()


def test_the_run_reads_it(seen: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A run over versions that were followed asks for no feed, and batches what one that asks for it does.
    """
    seen.runner(embedded).once()
    seen.publish(*log(versions=2, seed=7, begin=NOW + 10_000_000))

    def load_cdf(*given: object, **named: object) -> None:
        pytest.fail("the feed was asked for")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "load_cdf", load_cdf)
        seen.runner(embedded).once()
    assert seen.canonical() == seen.expected()
    seen.assert_balanced()


@pytest.mark.parametrize(
    "change",
    [
        lambda depot: DeltaTable(depot).delete("type IS NOT NULL"),
        lambda depot: DeltaTable(depot).optimize.compact(),
        lambda depot: DeltaTable(depot).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "3"}),
        lambda depot: DeltaTable(depot).alter.add_columns([Field("more", PrimitiveType("string"))]),
        lambda depot: write_deltalake(depot, table([message()]), mode="overwrite"),
    ],
    ids=["deletion", "compaction", "properties", "columns", "overwrite"],
)
def test_more_than_appends(seen: World, change: Any) -> None:
    """
    Where a version did anything but append, the feed is asked.
    """
    seen.publish(*log(versions=1, seed=7))
    change(seen.depot)
    assert added(seen, 3) is None


def test_versions_before(seen: World) -> None:
    """
    So it is for versions from before the table was opened, of which nobody knows what it was then.
    """
    seen.publish(*log(versions=1, seed=7))
    assert added(seen, 2) is None
    assert added(seen, 3) is not None


def test_a_file_of_other_types(seen: World) -> None:
    """
    A file whose columns are of other types than the table's, or that is gone, is left to the feed.
    """
    seen.publish([message()])
    assert added(seen, 3) is not None
    path = newest(seen)
    pq.write_table(pa.table({"key": [1]}), path)
    assert added(seen, 3) is None
    path.unlink()
    assert added(seen, 3) is None


def newest(world: World) -> Path:
    """Return the file that the last version of the depot added."""
    (entry,) = seen_table(world.depot, "depot").since[-1:]
    (one,) = entry.of("add")
    return Path(world.depot, one["path"])
