from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow.parquet import ParquetFile

from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import NOW, log, message, table
from windrow.errors import IncompatibleTableError
from windrow.ledger import file_writer, files
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter
from windrow.runtime.ledger_state import prime

LATER = NOW + 60_000_000
KEYS = [f"key{number:02}" for number in range(40)]


@pytest.fixture
def many(world: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> World:
    """A ledger with forty open batches in five files."""
    monkeypatch.setattr(files, "SMALL_BYTES", 0)
    world.publish([message(key=key) for key in KEYS])
    world.runner(embedded).once()
    world.publish([message("other", key=key) for key in KEYS])
    world.runner(embedded).once()
    ledger = world.tables(embedded).ledger
    monkeypatch.setattr(file_writer, "OPEN_BYTES", ledger.live().batches(None).nbytes // 4 + 1)
    ledger.fold(ledger.live(), "large")
    return world


def open_files(world: World) -> dict[str, int]:
    """Return the files of open batches with their numbers of rows."""
    added = pa.table(DeltaTable(world.ledger).get_add_actions(flatten=True)).to_pylist()
    return {row["path"]: row["num_records"] for row in added if row["partition.state"] == "open"}


class TestOpenBatches:
    def test_only_what_changes_is_written(self, many: World, embedded: EngineFactory) -> None:
        """A microbatch that touches one of many open batches adds one file with one row, and leaves the others."""
        before = open_files(many)
        many.publish([message("third", key=KEYS[15])])
        many.runner(embedded).once()
        after = open_files(many)
        assert before.keys() < after.keys()
        assert sum(after.values()) == sum(before.values()) + 1
        assert many.canonical() == many.expected()

    def test_latest_version_in_a_file_that_is_not_read(
        self, world: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that is read for one batch may have an earlier version of another one, whose latest is in a file that
        is not read: it is left out, and the next microbatch changes the right one alone.
        """
        monkeypatch.setattr(files, "SMALL_BYTES", 0)
        for sent in ([message(key="a"), message(key="b")], [message("other", key="b")]):
            world.publish(sent)
            world.runner(embedded).once()
        stream = table([message(key="a")]).select(["source", "key", "event_time"])
        batches = world.tables(embedded).ledger.live().batches(BatchFilter(lambda: stream, Floors.empty()))
        assert batches["key"].to_pylist() == ["a"]
        world.publish([message("third", key="a")])
        world.runner(embedded).once()
        assert [row["message_count"] for row in world.rows("open")] == [2, 2]
        assert world.canonical() == world.expected()
        world.assert_balanced()

    def test_a_clock_reaches_what_no_message_touches(self, many: World, embedded: EngineFactory) -> None:
        """When a clock passes the end of their windows, batches close whose files hold no stream with messages."""
        many.clock.set(LATER)
        many.publish([message(key=KEYS[0], event_time=LATER, received_at=LATER)])
        many.runner(embedded).once()
        assert [row["key"] for row in many.rows("open")] == [KEYS[0]]
        assert many.canonical() == many.expected()

    def test_folded_into_one(self, world: World, embedded: EngineFactory) -> None:
        """However many microbatches opened batches, a fold puts those that are small together into one file."""
        for key in KEYS[:6]:
            world.publish([message(key=key)])
            world.runner(embedded).once()
        ledger = world.tables(embedded).ledger
        ledger.fold(ledger.live(), "large")
        assert list(open_files(world).values()) == [6]

    def test_replaced_whatever_their_size(
        self, world: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch that changes is in the ledger once, also where its file is too large to be put together with
        others.
        """
        monkeypatch.setattr(files, "SMALL_BYTES", 0)
        for type_ in ("first", "second"):
            world.publish([message(type_)])
            world.runner(embedded).once()
        assert world.canonical() == world.expected()


class TestColumns:
    def test_what_is_null_everywhere_is_not_there(self, many: World, embedded: EngineFactory) -> None:
        """A file of open batches has no column of the history, and every reader finds NULL in it."""
        path = next(iter(open_files(many)))
        assert "depot_id" not in ParquetFile(Path(many.ledger) / path).schema_arrow.names
        query = QueryBuilder().register("ledger", DeltaTable(many.ledger))
        rows = pa.table(query.execute("SELECT DISTINCT depot_id FROM ledger WHERE state = 'open'").read_all())
        assert rows.to_pylist() == [{"depot_id": None}]


@pytest.mark.ci
def test_rows_that_only_spark_can_tell(world: World, embedded: EngineFactory, spark: Any) -> None:
    """A ledger with deletion vectors, which others switched on, is left to Spark: in its files stand rows that are
    gone.
    """
    world.publish([message(key=key) for key in KEYS[:3]])
    world.runner(embedded).once()
    ledger = f"delta.`{world.ledger}`"
    spark.sql(f"ALTER TABLE {ledger} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {ledger} WHERE state = 'open' AND key = '{KEYS[1]}'")
    with pytest.raises(IncompatibleTableError, match="deletionVectors"):
        prime(world.tables(embedded).ledger)
    primed = prime(world.tables(EngineFactory("spark", spark)).ledger)
    assert primed.fence.batches(None)["key"].to_pylist() == [KEYS[0], KEYS[2]]


def test_spark_reads_what_was_written(many: World, spark: Any) -> None:
    """Spark reads the same rows from the files as delta-rs does, NULL where a file has no column."""
    names = [field.name for field in DeltaTable(many.ledger).schema().fields]
    query = tables.spark_rows_that_count(f"delta.`{many.ledger}`", names)
    theirs = spark.sql(query).orderBy("id").toArrow().to_pylist()
    assert theirs == sorted(
        many.rows("open", "closed", "rejected", "progress", "microbatch"), key=lambda row: row["id"]
    )


class TestKept:
    @pytest.mark.parametrize("small", [100_000, 0])
    def test_nothing(self, world: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
        """Without room to keep it nothing stays in memory between microbatches, and the result is the same, whether
        files are read whole or by their row groups.
        """
        monkeypatch.setattr(files, "SMALL_BYTES", small)
        monkeypatch.setattr("windrow.ledger.encoding.GROUP_BYTES", 1)
        monkeypatch.setattr("windrow.settings.settings.Settings.max_cached_bytes", 0)
        opened = world.tables(embedded)
        runner = world.runner(embedded, lambda _: opened)
        for version in log(versions=6):
            world.publish(version)
            runner.once()
            opened.ledger.live()
            cache = opened.ledger._cache
            assert not {*cache.headers.rows, *cache.messages.rows} - opened.ledger._opened.control
            assert not cache.groups.kept.rows
        assert world.canonical() == world.expected()

    def test_live_rows_hold_no_others(self, world: World, embedded: EngineFactory) -> None:
        """The live rows that are kept for the next microbatch keep no closed batch in memory, whose payloads are
        larger.
        """
        payload = "x" * 100_000
        world.publish([message(key=f"closed{number}", payload=payload) for number in range(50)])
        world.publish([message(key="open", event_time=LATER, received_at=LATER)])
        opened = world.tables(embedded, idle_timeout="never")
        world.runner(embedded, lambda _: opened).once()
        cache = opened.ledger._cache
        parts = cache.headers.rows.values()
        columns = [*cache.messages.rows.values(), *(column for part in parts for column in part.columns)]
        buffer_sizes = {buffer.address: buffer.size for column in columns for buffer in buffers(column)}
        assert sum(part.num_rows for part in parts) >= 3
        assert sum(buffer_sizes.values()) < 1_000_000


def buffers(column: pa.ChunkedArray) -> list[pa.Buffer]:
    """Return the memory that a column holds, whatever part of it is used."""
    return [buffer for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None]
