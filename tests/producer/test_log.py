"""Every Delta reader can read a producer's commits, whatever the depot's layout."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_whole
from tests.producer.conftest import messages
from windrow import Producer
from windrow.delta.creation import create_depot
from windrow.delta.table import history
from windrow.model.commits import rows_added
from windrow.model.messages import schema


def test_log_tells_of_it(depot):
    """A commit records its number of rows, and its file the range of numbers and times, so that readers can skip it."""
    with Producer(depot, "p") as producer:
        for number in range(2):
            producer.send(key="k", type="t", event_time=NOW + number, received_at=NOW).result(60)
    assert [rows_added(commit) for commit in history(DeltaTable(depot), 1)] == [1, 1]
    added = pa.table(DeltaTable(depot).get_add_actions(flatten=True)).sort_by("min.sequence").to_pylist()
    assert [(row["num_records"], row["min.sequence"], row["max.sequence"]) for row in added] == [(1, 1, 1), (1, 2, 2)]
    assert all(row["min.event_time"] == row["max.event_time"] is not None for row in added)


def test_checkpoints(depot):
    """Every tenth commit has a checkpoint; readers and producers work with it when the entries before it are gone."""
    with Producer(depot, "p") as producer:
        for number in range(45):
            producer.send(key=str(number), type="t").result(60)
        log = Path(depot, "_delta_log")
        assert sorted(int(file.name[:20]) for file in log.glob("*.checkpoint.parquet")) == [9, 19, 29, 39]
        for version in range(39):
            (log / f"{version:020}.json").unlink()
        assert producer.send(key="45", type="t").result(60).sequence == 46
    assert messages(depot)["key"].to_pylist() == [str(number) for number in range(46)]
    assert DeltaTable(depot).transaction_version("producer:p") == 46


@pytest.mark.parametrize("interval", ["0", "10.0", "often"])
def test_senseless_interval(depot, interval):
    """An invalid checkpoint interval does not stop a producer, and no message is sent twice."""
    create_depot(depot, pa.string())
    DeltaTable(depot).alter.set_table_properties({"delta.checkpointInterval": interval})
    with Producer(depot, "p") as producer:
        assert [producer.send(key="k", type="t").result(60).sequence for _ in range(3)] == [1, 2, 3]
    assert messages(depot).num_rows == 3


def partitioned(depot):
    """Make the depot anew, with a directory for each type."""
    settings = {"partition_by": ["type"], "configuration": {"delta.enableChangeDataFeed": "true"}}
    write_deltalake(depot, schema(pa.string()).empty_table(), **settings)


def constrained(depot):
    """Make the depot anew, with a condition on its rows."""
    create_depot(depot, pa.string())
    DeltaTable(depot).alter.add_constraint({"c": "sequence > 0"})


@pytest.mark.parametrize("made", [partitioned, constrained])
def test_other_depots(depot, made):
    """A producer can write a depot with partitions or constraints."""
    made(depot)
    with Producer(depot, "p") as producer:
        for type_ in ("a", "b", "a"):
            producer.send(key="k", type=type_).result(60)
    assert messages(depot)["type"].to_pylist() == ["a", "b", "a"]


@pytest.mark.ci
@pytest.mark.spark
def test_on_spark(tmp_path: Path, clock: ManualClock, spark: Any) -> None:
    """A run on Spark reads every message of commits of ours, of delta-rs and of Spark between each other."""
    world = World(tmp_path, clock)
    with Producer(world.depot, "p") as producer:
        for number in range(9):
            producer.send(key="k", type=str(number % 3), event_time=NOW + number, received_at=NOW + number).result(60)
            if number == 3:
                write_deltalake(world.depot, messages(world.depot), mode="append")
            if number == 6:
                few = spark.read.format("delta").load(world.depot).limit(5)
                few.write.format("delta").mode("append").save(world.depot)
    world.runner(EngineFactory("spark", spark)).once()
    assert world.history()[-1]["depot_version"] == DeltaTable(world.depot).version() == 11
    assert_whole(world)
