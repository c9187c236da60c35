"""Closed batches as a Spark stream. One target table gathers what each start of the stream gave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

import windrow
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import Row, log
from windrow.columnar.arrow import to_plain_types
from windrow.errors import IncompatibleTableError, TableMissingError
from windrow.model import tables

LOG = log(versions=10, seed=4)
COLUMNS = [name for name, _ in tables.batch_fields(pa.string())]


class Reader:
    """A consumer of a ledger, with a checkpoint and a target; each `read` is another start of its stream."""

    def __init__(self, spark: Any, world: World, root: Path) -> None:
        self._spark, self._world = spark, world
        self._target, self._checkpoint = str(root / "target"), str(root / "checkpoint")

    def read(self, narrow: Callable[[Any], Any] = lambda frame: frame, **options: Any) -> None:
        """Take what is new, as an append to the target."""
        frame = narrow(windrow.stream_closed(self._spark, self._world.ledger, **options))
        written = frame.writeStream.format("delta").option("checkpointLocation", self._checkpoint)
        written.trigger(availableNow=True).start(self._target).awaitTermination()

    def got(self) -> list[Row]:
        """Return all that arrived."""
        return to_plain_types(DeltaTable(self._target).to_pyarrow_table()).select(COLUMNS).sort_by("id").to_pylist()


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture
def reader(spark: Any, world: World, tmp_path: Path) -> Reader:
    """A consumer that has read nothing."""
    return Reader(spark, world, tmp_path)


def work(world: World, factory: EngineFactory, microbatches: int) -> None:
    """Go on with the log, a version a microbatch."""
    published = DeltaTable(world.depot).version()
    for version in LOG[published : published + microbatches]:
        world.publish(version)
        world.runner(factory, max_messages=1).once()


def scatter(location: str, files: int) -> None:
    """Add copies of a file of closed rows to the ledger."""
    ledger = DeltaTable(location)
    known = pa.table(ledger.get_add_actions()).to_pylist()
    first = next(file for file in known if file["path"].startswith("state=closed/"))
    adds = []
    for number in range(files):
        path = f"state=closed/copy-{number}.parquet"
        shutil.copy(Path(location) / first["path"], Path(location) / path)
        adds.append(AddAction(path, first["size_bytes"], {"state": "closed"}, 0, True, "{}"))
    ledger.create_write_transaction(adds, "append", ledger.schema(), ["state"])


def stopped(code: str) -> Any:
    """Expect the stream to stop with an error that has a code."""
    from pyspark.errors import StreamingQueryException

    return pytest.raises(StreamingQueryException, match=code)


def closed(world: World) -> list[Row]:
    """Return the closed rows of the ledger, read without Spark."""
    return [{name: row[name] for name in COLUMNS} for row in world.rows("closed")]


class TestEachOnce:
    @pytest.mark.ci
    def test_restarts(self, spark, world, reader, embedded):
        """Each closed batch arrives exactly once, over restarts of the stream, writes of both engines and upkeep."""
        work(world, embedded, 4)
        DeltaTable(world.ledger).create_checkpoint()
        for file in sorted((Path(world.ledger) / "_delta_log").glob("*.json"))[:-1]:
            file.unlink()
        reader.read()
        first = len(reader.got())
        assert reader.got() == closed(world)
        work(world, EngineFactory("spark", spark), 1)
        DeltaTable(world.ledger).optimize.compact()
        spark.sql(f"OPTIMIZE delta.`{world.ledger}` WHERE state = 'closed'")
        work(world, embedded, 1)
        world.runner(embedded).flush()  # also inserts rows that were never open
        reader.read()
        assert reader.got() == closed(world)
        assert len(reader.got()) > first > 0
        reader.read()
        assert reader.got() == closed(world)
        assert windrow.read_closed(world.ledger).batches.sort_by("id").to_pylist() == closed(world)

    @pytest.mark.slow
    def test_since(self, spark, world, reader, embedded):
        """With `since` the stream begins behind a microbatch, where read_closed ended."""
        work(world, embedded, 4)
        position = windrow.read_closed(world.ledger).position
        work(world, embedded, 2)
        expected = windrow.read_closed(world.ledger, position).batches.sort_by("id").to_pylist()
        reader.read(since=int(position.split("@")[0]))
        assert expected
        assert reader.got() == expected


class TestTakenBack:
    @pytest.mark.slow
    def test_restored(self, world, reader, embedded):
        """A RESTORE that takes closed batches back stops the stream with our code, and nothing arrives twice."""
        work(world, embedded, 6)
        reader.read()
        rows = reader.got()
        DeltaTable(world.ledger).restore(4)
        world.runner(embedded, max_messages=1).once()
        for _ in range(2):
            with stopped("WINDROW-LEDGER-RESTORED"):
                reader.read(lambda frame: frame.where("message_count > 1000"))
        assert reader.got() == rows

    @pytest.mark.slow
    def test_restored_as_a_whole(self, world, reader, embedded):
        """Of a RESTORE that puts back more files than Delta reads at once nothing arrives."""
        work(world, embedded, 4)
        scatter(world.ledger, files=1_001)
        scattered = world.version()
        reader.read()
        rows = reader.got()
        DeltaTable(world.ledger).optimize.compact()
        DeltaTable(world.ledger).restore(scattered)
        with stopped("WINDROW-LEDGER-RESTORED"):
            reader.read()
        assert reader.got() == rows

    @pytest.mark.slow
    @pytest.mark.parametrize("change", ["delete", "update"])
    def test_changed_by_hand(self, world, reader, embedded, change):
        """Closed rows that are deleted or changed stop the stream; what happens to other rows does not."""
        work(world, embedded, 4)
        reader.read()
        rows = reader.got()
        DeltaTable(world.ledger).delete("state = 'rejected'")
        DeltaTable(world.ledger).update(updates={"bytes": "bytes + 1"}, predicate="state = 'open'")
        reader.read()
        assert reader.got() == rows
        whole = f"state = 'closed' AND id = '{rows[0]['id']}'"
        if change == "delete":
            DeltaTable(world.ledger).delete(whole)
        else:
            DeltaTable(world.ledger).update(updates={"bytes": "bytes + 1"}, predicate=whole)
        with stopped("WINDROW-LEDGER-RESTORED"):
            reader.read()

    @pytest.mark.slow
    def test_made_anew(self, world, reader, embedded):
        """Another ledger at the same place stops the stream."""
        work(world, embedded, 4)
        reader.read()
        rows = reader.got()
        shutil.rmtree(world.ledger)
        world.runner(embedded).once()
        with stopped("DIFFERENT_DELTA_TABLE"):
            reader.read()
        assert reader.got() == rows


class TestLedger:
    def test_refused(self, spark, world, tmp_path):
        """No table, a name that is in no catalog, or a table that is no ledger is named."""
        with pytest.raises(TableMissingError):
            windrow.stream_closed(spark, os.fspath(tmp_path / "nowhere"))
        with pytest.raises(TableMissingError):
            windrow.stream_closed(spark, "default.nowhere")
        with pytest.raises(IncompatibleTableError):
            windrow.stream_closed(spark, world.depot)

    @pytest.mark.slow
    def test_catalog_name(self, spark, world, embedded):
        """A name of a catalog is looked up there."""
        work(world, embedded, 1)
        spark.sql(f"CREATE TABLE default.windrow_closed USING delta LOCATION '{world.ledger}'")
        try:
            for name in ("default.windrow_closed", "spark_catalog.default.windrow_closed"):
                assert windrow.stream_closed(spark, name).columns == COLUMNS
        finally:
            spark.sql("DROP TABLE default.windrow_closed")
