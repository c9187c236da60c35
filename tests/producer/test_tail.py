"""Entries of the log that the producer writes by itself are what every reader of Delta takes them for."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_whole
from tests.producer.conftest import messages
from windrow import Producer
from windrow.commits import rows_added
from windrow.engine.creation import create_depot
from windrow.entries import Entries
from windrow.producer import Ack
from windrow.producer.tail import Tail
from windrow.storage import history


def entry(depot, version):
    """Return the actions of an entry by their names."""
    lines = Path(depot, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8").splitlines()
    return {name: action for line in lines for name, action in json.loads(line).items()}


def shape(action):
    """Return what an action has, without the values."""
    return {name: shape(value) if isinstance(value, dict) else type(value) for name, value in action.items()}


def test_as_delta_rs_writes_it(depot, monkeypatch):
    """
    An entry has what one of delta-rs has, of the same kind; statistics and the numbers of rows are the same.
    """
    with Producer(depot, "p") as producer:
        for key in ("a", "b"):
            producer.send(key=key, type="t", event_time=NOW, received_at=NOW).result(60)
            monkeypatch.setattr(Tail, "of", lambda table, location: None)
            producer._committer._writer._reload()
    ours, theirs = entry(depot, 1), entry(depot, 2)
    assert "windrow" in ours["commitInfo"]["engineInfo"]
    assert "delta-rs" in theirs["commitInfo"]["engineInfo"]
    for name in ("operation", "operationParameters"):
        assert ours["commitInfo"][name] == theirs["commitInfo"][name]
    assert shape(ours["add"]).items() <= shape(theirs["add"]).items()
    assert shape(theirs["txn"]).items() <= shape(ours["txn"]).items()
    said, wanted = (json.loads(one["add"]["stats"]) for one in (ours, theirs))
    assert said["numRecords"] == wanted["numRecords"] == 1
    assert said["nullCount"] == wanted["nullCount"]
    assert said["minValues"].keys() == wanted["minValues"].keys()
    assert [rows_added(commit) for commit in history(DeltaTable(depot), 1)] == [1, 1]


def test_checkpoints(depot):
    """
    Every twentieth entry has a checkpoint, and what was sent is read with it and without the entries before it.
    """
    with Producer(depot, "p") as producer:
        for number in range(45):
            producer.send(key=str(number), type="t").result(60)
    log = Path(depot, "_delta_log")
    assert sorted(int(file.name[:20]) for file in log.glob("*.checkpoint.parquet")) == [20, 40]
    for version in range(40):
        (log / f"{version:020}.json").unlink()
    assert messages(depot)["key"].to_pylist() == [str(number) for number in range(45)]
    assert DeltaTable(depot).transaction_version("producer:p") == 45
    assert not [file for file in Path(depot).iterdir() if file.suffix == ".tmp"]


class TestLinks:
    def test_reply_lost(self, depot, monkeypatch):
        """
        A link that was made counts, though the file system says that the number is taken; its file stays.
        """
        really_link = os.link

        def link(*given):
            really_link(*given)
            raise FileExistsError(errno.EEXIST, "File exists")

        with Producer(depot, "p") as producer:
            producer.send(key="a", type="t").result(60)
            monkeypatch.setattr(os, "link", link)
            assert producer.send(key="b", type="t").result(60) == Ack(2, 2)
        assert messages(depot)["key"].to_pylist() == ["a", "b"]

    @pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM])
    def test_none(self, depot, monkeypatch, error):
        """
        Where a file system has no links delta-rs writes the entry.
        """

        def link(*given):
            raise OSError(error, "no links")

        monkeypatch.setattr(os, "link", link)
        with Producer(depot, "p") as producer:
            assert [producer.send(key="k", type="t").result(60) for _ in range(2)] == [Ack(1, 1), Ack(2, 2)]
        assert "delta-rs" in entry(depot, 2)["commitInfo"]["engineInfo"]
        assert len(list(Path(depot).glob("*.parquet"))) == 2

    def test_last_entry_cannot_be_seen(self, depot, monkeypatch):
        """
        Where nobody can tell whether the last entry is the same file, delta-rs writes the next one.
        """

        def unknown(log, version):
            return None

        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").result(60)
            monkeypatch.setattr(Entries, "identity", unknown)
            assert producer.send(key="k", type="t").result(60) == Ack(2, 2)
        assert "delta-rs" in entry(depot, 2)["commitInfo"]["engineInfo"]


@pytest.mark.parametrize("interval", ["0", "10.0", "often"])
def test_senseless_interval(depot, interval):
    """
    An interval of checkpoints that means nothing keeps nobody from sending, and no message is sent twice.
    """
    create_depot(depot, pa.string())
    DeltaTable(depot).alter.set_table_properties({"delta.checkpointInterval": interval})
    assert Tail.of(DeltaTable(depot), depot).checkpoint_every == 100
    with Producer(depot, "p") as producer:
        assert [producer.send(key="k", type="t").result(60).sequence for _ in range(3)] == [1, 2, 3]
    assert messages(depot).num_rows == 3


@pytest.mark.spark
def test_on_spark(tmp_path: Path, clock: ManualClock, spark: Any) -> None:
    """
    A run on Spark reads every message of entries of ours, of delta-rs and of Spark between each other.
    """
    world = World(tmp_path, clock)
    with Producer(world.depot, "p") as producer:
        for number in range(30):
            producer.send(key="k", type=str(number % 3), event_time=NOW + number, received_at=NOW + number).result(60)
            if number == 10:
                write_deltalake(world.depot, messages(world.depot), mode="append")
            if number == 20:
                few = spark.read.format("delta").load(world.depot).limit(5)
                few.write.format("delta").mode("append").save(world.depot)
    world.runner(EngineFactory("spark", spark)).once()
    assert world.history()[-1]["depot_version"] == DeltaTable(world.depot).version() == 32
    assert_whole(world)


@pytest.mark.parametrize(
    "made",
    [
        lambda depot: DeltaTable(depot).alter.add_constraint({"c": "sequence > 0"}),
        lambda depot: write_deltalake(
            depot,
            pa.table({name: pa.nulls(0, type_) for name, type_ in [("a", pa.string()), ("b", pa.string())]}),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=["a"],
        ),
    ],
    ids=["constraint", "partitions"],
)
def test_plain_depots_only(depot, made):
    """
    Where an append is more than files and numbers it is left to delta-rs.
    """
    create_depot(depot, pa.string())
    assert Tail.of(DeltaTable(depot), depot) is not None
    made(depot)
    assert Tail.of(DeltaTable(depot), depot) is None
