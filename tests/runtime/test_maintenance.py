"""Maintenance takes files away, and nothing else."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import OLD, age, assert_whole, data_files
from tests.messages import HOUR, log, message
from tests.probes import act_once
from windrow import reading
from windrow.delta.lock import commit_lock
from windrow.delta.maintenance import CompactionResult, DeltaRsMaintenance
from windrow.engine.spark.maintenance import SparkMaintenance
from windrow.errors import IncompatibleTableError
from windrow.model import messages, tables
from windrow.model.results import MaintenanceResult
from windrow.runtime.maintenance import fold, maintain
from windrow.runtime.wall_clock import WallClock
from windrow.testing.points import Point

DAY = 24 * HOUR


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tables of which each test takes a copy."""
    directory = tmp_path_factory.mktemp("ten")
    world = World(directory, ManualClock())
    world.publish(*log(versions=10))
    world.runner(EMBEDDED, max_messages=1).once()
    return directory


@pytest.fixture
def batched(world: World, ten: Path) -> World:
    """A ledger that read ten depot versions, each in a microbatch of its own."""
    return world.filled_from(ten)


def maintained(world: World, factory: EngineFactory, **values: Any) -> dict[str, MaintenanceResult]:
    """Maintain the tables and return what was done to each."""
    settings = {name: values.pop(name) for name in ("maintain", "retention") if name in values}
    opened = world.tables(factory, **settings)
    return {result.table: result for result in maintain([opened.source], opened.ledger, WallClock().now(), **values)}


def disk(*tables_: str) -> dict[str, bytes]:
    """Return every file of some tables."""
    return {str(file): file.read_bytes() for table in tables_ for file in Path(table).rglob("*") if file.is_file()}


def final_files(world: World) -> int:
    """Return how many files of final rows a ledger has."""
    states = DeltaTable(world.ledger).get_add_actions(flatten=True)["partition.state"].to_pylist()
    return sum(state in tables.FINAL for state in states)


class TestCompaction:
    def test_fewer_files_same_rows(self, batched: World, embedded: EngineFactory) -> None:
        """Compaction leaves one file for each final state, and no row changes; a second time there is nothing to do."""
        before, files = batched.canonical(), final_files(batched)
        result = maintained(batched, embedded)
        assert (result["ledger"].files_removed, final_files(batched)) == (files, 3)
        assert {result["ledger"].files_added, result["depot"].files_added} == {3, 1}
        assert len(DeltaTable(batched.depot).file_uris()) == 1
        assert batched.canonical() == before
        assert_whole(batched)
        again = maintained(batched, embedded)
        assert again["ledger"] == MaintenanceResult("ledger", batched.ledger, "90d")
        assert again["depot"] == MaintenanceResult("depot", batched.depot, "90d")

    def test_live_rows_are_folded(self, batched: World, embedded: EngineFactory) -> None:
        """Of live rows those that count are left; a second time there is nothing to fold."""
        batched.publish(log(versions=1, seed=5, start=NOW + 10_000_000)[0])
        batched.runner(embedded).once()
        maintained(batched, embedded)
        rows = DeltaTable(batched.ledger).to_pyarrow_table(filters=[("state", "in", ["open", "progress"])])
        assert rows.num_rows == len(batched.rows("open", "progress"))
        version = batched.version()
        maintained(batched, embedded, only="ledger")
        assert batched.version() == version

    @pytest.mark.ci
    @pytest.mark.slow_on_spark
    def test_beside_a_microbatch(self, batched: World, engine: EngineFactory, embedded: EngineFactory) -> None:
        """A microbatch between prime and commit is not disturbed: it commits at its first attempt."""
        batched.publish(log(versions=1, seed=5, start=NOW + 10_000_000)[0])
        at = act_once(Point.BEFORE_COMMIT, lambda: maintained(batched, embedded))
        batched.probed(engine, at, max_retries=0).once()
        assert batched.history()[-1]["attempt"] == 1
        assert_whole(batched)

    @pytest.mark.slow
    def test_beside_a_batcher(self, batched: World, embedded: EngineFactory) -> None:
        """Maintenance again and again beside a driver that commits again and again: both come to their end."""
        stop = Event()

        def publish_and_run() -> None:
            for seed in range(6):
                batched.publish(log(versions=1, seed=seed, start=NOW + 10_000_000 * seed)[0])
                batched.runner(embedded).once()
            stop.set()

        driver = Thread(target=publish_and_run)
        driver.start()
        rounds = 0
        while not stop.wait(0.02):
            maintained(batched, embedded)
            rounds += 1
            assert driver.is_alive() or stop.is_set(), "the driver failed"
        driver.join()
        assert rounds > 1
        assert_whole(batched)

    def test_commit_in_between(self, batched: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        """When somebody who takes no lock commits during a compaction, it is done again."""
        upkeep = DeltaRsMaintenance(batched.ledger, "ledger")
        left = [NOW + DAY]

        def compact(table: DeltaTable) -> Any:
            if left:
                batched.runner(embedded).tick(to=left.pop())
            return table.optimize.compact(partition_filters=[("state", "=", "closed")])

        monkeypatch.setattr("windrow.delta.maintenance.commit_lock", lambda _: commit_lock(f"{batched.ledger}-other"))
        assert upkeep._commit(compact)["numFilesAdded"] == 1
        assert not left
        batched.assert_balanced()


class TestCleanUp:
    def test_young_files_stay(self, batched: World, embedded: EngineFactory) -> None:
        """What is younger than `retention` stays: every version of the ledger can still be read, and verified."""
        maintained(batched, embedded)
        assert reading.status(batched.depot, batched.ledger, NOW).ledger.readable_range.version == 0
        batched.assert_balanced()

    def test_old_ledger(self, batched: World, embedded: EngineFactory) -> None:
        """What is older than `retention` goes: files of the past, the change feed's, strangers and the log; the ledger
        goes on.
        """
        fold(batched.tables(embedded).ledger)
        for state in ("closed", "rejected", "microbatch"):
            DeltaTable(batched.ledger).optimize.compact([("state", "=", state)])
        stranger = Path(batched.ledger, "state=closed", "folded=false", "part-left-by-a-crash.parquet")
        stranger.write_bytes(b"")
        age(batched.ledger)
        before = batched.canonical()
        result = maintained(batched, embedded, only="ledger")["ledger"]
        assert result.files_deleted > 20
        assert not Path(batched.ledger, "_delta_log", f"{1:020}.json").exists()
        assert not stranger.exists()
        assert not data_files(batched.ledger, "_change_data/**/*.parquet")
        assert data_files(batched.ledger, "state=*/*/*.parquet") == set(map(Path, local_files(batched.ledger)))
        assert batched.canonical() == before
        batched.publish(log(versions=1, seed=5, start=NOW + 10_000_000)[0])
        batched.runner(embedded).once()
        assert batched.canonical() == batched.expected()

    @pytest.mark.slow_on_spark
    def test_old_depot(self, world: World, engine: EngineFactory) -> None:
        """Of a depot that was read, old log and files go; what comes then is read as if nothing had happened."""
        world.publish(*log(versions=6))
        world.runner(engine).once()
        whole = world.expected()
        last = DeltaTable(world.depot).version()
        DeltaTable(world.depot).optimize.compact()
        age(world.depot, since=last + 1)
        result = maintained(world, engine)["depot"]
        assert (result.files_deleted, result.skip_reason) == (6, None)
        assert len(data_files(world.depot, "*.parquet")) == 1
        assert not Path(world.depot, "_delta_log", f"{1:020}.json").exists()
        assert world.canonical() == whole
        world.publish([message("late", NOW + DAY, NOW + DAY)])
        assert world.runner(engine).once().total("message_count") == 1
        world.assert_balanced()

    def test_depot_in_use(self, world: World, embedded: EngineFactory, clock: ManualClock) -> None:
        """A depot that was written and read all the time is maintained, also at a moment when something that is just as
        old as `retention` was read a little later.
        """
        clock.set(WallClock().now())
        world.publish(*log(versions=3, start=clock.now() - 60_000_000))
        clock.advance(1_000_000)
        world.runner(embedded).once()
        opened = world.tables(embedded, retention="10h")
        now = clock.now() + 10 * HOUR - 1
        (result,) = maintain([opened.source], opened.ledger, now, only="depot", dry_run=True)
        assert result.skip_reason is None

    def test_unread_versions_stay(self, world: World, embedded: EngineFactory) -> None:
        """While the ledger has yet to read a version older than `retention`, nothing of the depot's past goes; then it
        does. Holds the guard of unread versions: the depot's files and log would be gone, and with them messages.
        """
        world.publish(*log(versions=3))
        world.runner(embedded).once()
        world.publish(*log(versions=2, seed=5, start=NOW + 10_000_000))
        DeltaTable(world.depot).optimize.compact()
        age(world.depot, since=4)
        before = disk(world.depot)
        assert "version 4 of" in maintained(world, embedded, only="depot")["depot"].skip_reason
        assert disk(world.depot) == before
        world.runner(embedded).once()
        assert_whole(world)
        assert maintained(world, embedded, only="depot")["depot"].files_deleted == 5

    @pytest.mark.ci
    def test_of_two_ledgers(self, world: World, embedded: EngineFactory, tmp_path: Path) -> None:
        """What another ledger has yet to read stays when the settings name it; one of another depot has read
        nothing.
        """
        world.publish(*log(versions=3))
        ledgers = own, other, strange = world.ledger, str(tmp_path / "other"), str(tmp_path / "strange")
        for world.ledger in ledgers[:2]:
            world.runner(embedded).once()
        world.publish(*log(versions=2, seed=5, start=NOW + 10_000_000))
        World(tmp_path / "x", world.clock, ledger="../strange").runner(embedded).once()
        DeltaTable(world.depot).optimize.compact()
        age(world.depot, since=4)
        world.ledger = own
        world.runner(embedded).once()
        before = disk(world.depot)
        for named in (other, strange):
            left = maintained(world, embedded, only="depot", maintain={"other_ledgers": (named,)})["depot"].skip_reason
            assert f"the ledger at {named} may still have to read it" in left
        assert disk(world.depot) == before
        world.ledger = other
        world.runner(embedded).once()
        assert_whole(world)
        result = maintained(world, embedded, only="depot", maintain={"other_ledgers": (own,)})["depot"]
        assert (result.files_deleted, result.skip_reason) == (5, None)

    def test_read_lately(self, world: World, embedded: EngineFactory, clock: ManualClock) -> None:
        """Old versions that the ledger read within `retention` stay until it is over, so that a RESTORE of the ledger
        to any version within `retention` finds them.
        """
        clock.set(WallClock().now())
        world.publish(*log(versions=3))
        age(world.depot)
        world.runner(embedded).once()
        assert "version 1 of" in maintained(world, embedded, only="depot")["depot"].skip_reason
        DeltaTable(world.ledger).restore(0)
        world.runner(embedded).once()
        assert [row["messages_read"] for row in world.history()] == [90]

    @pytest.mark.ci
    def test_unread_files_that_look_old(self, world: World, embedded: EngineFactory) -> None:
        """Unread versions stay as well when their files look older than their commits say, as a copy may make them."""
        world.publish(*log(versions=3))
        for file in Path(world.depot, "_delta_log").glob("*.json"):
            os.utime(file, (time.time() - OLD * 86_400,) * 2)
        assert "version 1 of" in maintained(world, embedded, only="depot")["depot"].skip_reason
        world.runner(embedded).once()
        assert_whole(world)

    @pytest.mark.ci
    def test_depot_without_a_ledger(self, world: World, embedded: EngineFactory) -> None:
        """A depot that nobody has read yet is left alone when it is old, and maintained when it is not."""
        world.publish(*log(versions=3))
        assert maintained(world, embedded, only="depot", dry_run=True)["depot"].files_removed == 3
        age(world.depot)
        assert "version 1 of" in maintained(world, embedded, only="depot")["depot"].skip_reason
        world.runner(embedded).once()
        assert_whole(world)

    def test_closed_readers(self, batched: World, embedded: EngineFactory) -> None:
        """Whoever reads closed batches goes on from a position of before, and gets each batch once."""
        half = windrow.read_closed(batched.ledger, batches_at_once=5)
        maintained(batched, embedded)
        age(batched.ledger)
        maintained(batched, embedded)
        rest = windrow.read_closed(batched.ledger, since=half.position)
        ids = half.batches["id"].to_pylist() + rest.batches["id"].to_pylist()
        assert sorted(ids) == sorted(row["id"] for row in batched.rows("closed"))


class TestTables:
    def test_other_depots(self, batched: World, embedded: EngineFactory, tmp_path: Path) -> None:
        """A depot that Windrow did not make is left to its owner, unless the settings say otherwise."""
        other = str(tmp_path / "bronze")
        for _ in range(3):
            write_deltalake(other, batched.arrived(), mode="append", configuration=tables.PROPERTIES)
        batched.depot = other
        before = disk(other)
        assert "did not make it" in maintained(batched, embedded, only="depot")["depot"].skip_reason
        assert disk(other) == before
        always = maintained(batched, embedded, only="depot", maintain={"depot": "always"})["depot"]
        assert (always.files_removed, always.files_added) == (3, 1)
        never = maintained(batched, embedded, only="depot", maintain={"depot": "never"})["depot"]
        assert never.skip_reason == "as [maintain] depot says"

    @pytest.mark.parametrize(
        ("properties", "named"),
        [
            ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
            ({"delta.columnMapping.mode": "name"}, "columnMapping"),
        ],
    )
    def test_unknown_features(self, tmp_path: Path, properties: dict[str, str], named: str) -> None:
        """A table with features of which delta-rs does not know the files or cannot write is told, by their names."""
        other = str(tmp_path / "bronze")
        DeltaTable.create(other, messages.schema(), configuration=properties)
        assert named in str(DeltaRsMaintenance(other, "depot").unsupported_reason())

    def test_times_in_96_bits(self, batched: World, embedded: EngineFactory) -> None:
        """A depot with files of times in 96 bits is left alone, because delta-rs would write other times."""
        rows = batched.arrived().slice(0, 1).select(messages.schema().names)
        name = "part-of-another-writer.parquet"
        pq.write_table(rows, Path(batched.depot, name), use_deprecated_int96_timestamps=True)
        add = AddAction(name, Path(batched.depot, name).stat().st_size, {}, int(time.time() * 1_000), True, "{}")
        table = DeltaTable(batched.depot)
        table.create_write_transaction([add], "append", table.schema())
        before = disk(batched.depot)
        assert "INT96" in maintained(batched, embedded, only="depot")["depot"].skip_reason
        assert disk(batched.depot) == before

    def test_no_ledger(self, batched: World, embedded: EngineFactory) -> None:
        """A table that is no ledger is refused before anything is touched."""
        before = disk(batched.depot)
        other = World(Path(batched.depot).parent, batched.clock, ledger="depot")
        other.depot = batched.ledger
        with pytest.raises(IncompatibleTableError):
            maintained(other, embedded)
        assert disk(batched.depot) == before

    @pytest.mark.ci
    def test_keep(self, batched: World, embedded: EngineFactory) -> None:
        """A `retention` that was changed in the settings becomes the tables' own, and is reported once."""
        assert maintained(batched, embedded, retention="30d")["ledger"].retention_changed
        properties = DeltaTable(batched.ledger).metadata().configuration
        assert tables.retention_properties("30d").items() <= properties.items()
        assert not maintained(batched, embedded, retention="30d")["ledger"].retention_changed
        batched.publish(log(versions=1, seed=5, start=NOW + 10_000_000)[0])
        batched.runner(embedded).once()
        assert_whole(batched)

    def test_dry_run(self, batched: World, embedded: EngineFactory) -> None:
        """A dry run says what would be done and changes no file."""
        age(batched.ledger)
        before = disk(batched.depot, batched.ledger)
        would = maintained(batched, embedded, retention="30d", dry_run=True)
        assert disk(batched.depot, batched.ledger) == before
        result = maintained(batched, embedded, retention="30d")
        for table, planned in would.items():
            assert planned == replace(result[table], files_added=None)


class TestSpark:
    @pytest.fixture
    def through_sql(self, batched: World, spark: Any) -> Iterator[SparkMaintenance]:
        """Return what looks after the ledger where only Spark reaches it."""
        return SparkMaintenance(spark, f"delta.`{batched.ledger}`", "ledger", lambda: commit_lock(batched.ledger))

    @pytest.mark.slow
    def test_steps(self, batched: World, through_sql: SparkMaintenance, embedded: EngineFactory) -> None:
        """Spark SQL does the same: comment, properties, compaction, clean-up; times of any age stay what they are."""
        ancient = message("ancient", -20_000 * DAY, NOW + DAY)
        batched.publish([ancient])
        batched.runner(embedded).once()
        before = batched.canonical()
        assert through_sql.description() == tables.LEDGER_COMMENT
        through_sql.set_properties(tables.retention_properties("30d"))
        assert tables.retention_properties("30d").items() <= through_sql.properties().items()
        assert through_sql.compact("closed", dry_run=True) is None
        assert through_sql.compact("closed", dry_run=False, below=1) == CompactionResult(0, 0)
        assert through_sql.compaction_time(0) is None
        for state in ("closed", "rejected", "microbatch"):
            assert through_sql.compact(state, dry_run=False).added == 1
        assert abs(through_sql.compaction_time(0) - WallClock().now()) < HOUR
        assert through_sql.compaction_time(WallClock().now() + HOUR) is None
        age(batched.ledger)
        removable = through_sql.vacuum(dry_run=True)
        assert removable > 20
        assert through_sql.vacuum(dry_run=False) == removable
        assert through_sql.vacuum(dry_run=True) == 0
        assert batched.canonical() == before == batched.expected()


def local_files(table: str) -> list[str]:
    """Return the paths of the files of a table's latest version."""
    return [uri.removeprefix("file://") for uri in DeltaTable(table).file_uris()]
