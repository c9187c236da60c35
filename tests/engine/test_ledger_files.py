"""Commits by files: on whatever others did to the ledger since prime, and to whatever ledger it is."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

import windrow
from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import age
from tests.messages import HOUR, log, message
from windrow.delta.table import TableSnapshot, latest_snapshot
from windrow.engine import embedded as embedded_engine
from windrow.errors import ConcurrentCommitError
from windrow.ledger import files
from windrow.ledger.files import File, live_files
from windrow.model import tables
from windrow.runtime.batcher import Batcher
from windrow.runtime.microbatch import MicrobatchAttempt


@pytest.fixture
def started(world: World, embedded: EngineFactory) -> World:
    """A ledger that has read two depot versions in two microbatches; the third is still to be read."""
    for rows in log(versions=2):
        world.publish(rows)
        world.runner(embedded).once()
    world.publish(log(versions=1, seed=7, start=NOW + 10_000_000)[0])
    return world


def commit_at(microbatch: MicrobatchAttempt, moment: int) -> None:
    """Commit a tick to a moment with what was primed."""
    microbatch.run_tick(microbatch.primed.sources.floors.at_least(moment))


def entries(table: str) -> set[int]:
    """Return the versions that have an entry in the log of a table."""
    return {int(file.stem) for file in Path(table, "_delta_log").glob("*.json")}


def checkpoints(table: str) -> list[int]:
    """Return the versions that have a checkpoint."""
    return sorted(int(file.name[:20]) for file in Path(table, "_delta_log").glob("*.checkpoint.parquet"))


class TestLog:
    @pytest.mark.slow
    def test_checkpoints(self, world: World, embedded: EngineFactory) -> None:
        """Each time the table asks for a checkpoint there is one, and the ledger is read with it and without the
        entries before it, by who opened it then and by who had it open.
        """
        opened = world.tables(embedded, idle_timeout="never")
        for number in range(44):
            world.publish([message(key=str(number))])
            world.runner(embedded, lambda _: opened).once()
        assert checkpoints(world.ledger) == [9, 19, 29, 39]
        world.assert_balanced()
        for version in range(39):
            Path(world.ledger, "_delta_log", f"{version:020}.json").unlink()
        for wrapped in (lambda _: opened, lambda tables: tables):
            world.publish([message(key=f"last {wrapped}")])
            world.runner(embedded, wrapped).once()
        assert world.canonical() == world.expected()

    def test_nothing_is_trimmed(self, started: World, embedded: EngineFactory) -> None:
        """Commits delete none of the ledger's log, however old, also with a checkpoint: maintenance does."""
        DeltaTable(started.ledger).alter.set_table_properties({"delta.checkpointInterval": "2"})
        age(started.ledger)
        old = started.version()
        for number in range(4):
            started.runner(embedded).tick(to=NOW + (number + 1) * HOUR)
        assert entries(started.ledger) == set(range(started.version() + 1))
        assert checkpoints(started.ledger)[-1] > old

    @pytest.mark.ci
    @pytest.mark.spark
    def test_spark_reads_it(self, started: World, embedded: EngineFactory, spark: Any) -> None:
        """Spark reads the rows and the change feed of such commits, and its own commit comes behind them."""
        started.runner(embedded).once()
        names = [field.name for field in DeltaTable(started.ledger).schema().fields]
        query = tables.spark_rows_that_count(f"delta.`{started.ledger}`", names)
        theirs = spark.sql(query).orderBy("id").toArrow().to_pylist()
        ours = started.rows("open", "closed", "rejected", "progress", "microbatch")
        assert theirs == sorted(ours, key=lambda row: row["id"])
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        closed = feed.load(started.ledger).where("state = 'closed'").groupBy("_change_type").count().collect()
        assert [row["_change_type"] for row in closed] == ["insert"]
        started.runner(EngineFactory("spark", spark)).tick(to=NOW + HOUR)
        started.runner(embedded).flush()
        started.assert_balanced()


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return what lets something happen once between the last look at the ledger and the commit; no lock holds it."""
    monkeypatch.setattr(embedded_engine, "commit_lock", lambda *_: nullcontext())

    def happens(other: Callable[[], object]) -> None:
        really_stands = TableSnapshot.stands

        def stands(self: TableSnapshot) -> bool:
            monkeypatch.setattr(TableSnapshot, "stands", really_stands)
            still_stands = really_stands(self)
            other()
            return still_stands

        monkeypatch.setattr(TableSnapshot, "stands", stands)

    return happens


class TestOthers:
    def test_first_at_the_number(self, started: World, embedded: EngineFactory, meanwhile: Any) -> None:
        """Of two drivers that primed one version exactly one commits, at whatever moment the other came: also between
        the last look and the commit, where no lock held it off.
        """
        rival, microbatch = started.microbatch(embedded), started.microbatch(embedded)
        meanwhile(lambda: commit_at(rival, NOW + HOUR))
        version = started.version()
        with pytest.raises(ConcurrentCommitError):
            commit_at(microbatch, NOW + 2 * HOUR)
        assert started.version() == version + 1
        assert started.rows("progress")[0]["microbatch"] == rival.primed.microbatch + 1
        started.assert_balanced()

    def test_harmless_at_the_number(self, started: World, embedded: EngineFactory, meanwhile: Any) -> None:
        """A commit that touches no live rows and takes the number costs the microbatch a prime, and no attempt."""
        started.runner(embedded).tick(to=NOW + 8_000_000)
        history = [("state", "=", "microbatch")]
        meanwhile(lambda: DeltaTable(started.ledger).optimize.compact(partition_filters=history))
        version = started.version()
        started.runner(embedded).once()
        assert started.version() == version + 2
        assert started.history()[-1]["attempt"] == 1
        started.assert_balanced()

    def test_primed_again_on_one_engine(self, started: World, embedded: EngineFactory) -> None:
        """A microbatch that was primed is not committed over the ledger as a later prime of the same engine found it:
        the handle has moved on, so what came in between would not be compared.
        """
        opened = started.tables(embedded)
        first = MicrobatchAttempt(opened.ledger, opened.sources, Batcher(windrow.Rules()), started.clock)
        started.runner(embedded).tick(to=NOW + HOUR)
        second = MicrobatchAttempt(opened.ledger, opened.sources, Batcher(windrow.Rules()), started.clock)
        before, version = started.rows("open", "progress"), started.version()
        with pytest.raises(ConcurrentCommitError):
            commit_at(first, NOW + 2 * HOUR)
        assert (started.rows("open", "progress"), started.version()) == (before, version)
        commit_at(second, NOW + 2 * HOUR)
        started.assert_balanced()

    def test_set_back(self, started: World, embedded: EngineFactory) -> None:
        """When the log loses its last entry between prime and commit, nothing is put in its place or behind the gap."""
        microbatch = started.microbatch(embedded)
        Path(started.ledger, "_delta_log", f"{started.version():020}.json").unlink()
        with pytest.raises(ConcurrentCommitError, match="restored"):
            commit_at(microbatch, NOW + HOUR)
        assert started.version() == microbatch.primed.fence.table_version - 1
        started.runner(embedded).once()
        assert started.canonical() == started.expected()

    @pytest.mark.parametrize("copied", [True, False], ids=["from a copy", "made anew"])
    def test_another_ledger(self, started: World, embedded: EngineFactory, tmp_path: Path, copied: bool) -> None:
        """When another ledger takes its place between prime and commit, an old copy that has gone another way since or
        a new one, nothing is added to it.
        """
        microbatch, copy = started.microbatch(embedded), tmp_path / "copy"
        microbatch.primed.fence.batches(None)  # what was read before is not missed now
        shutil.copytree(started.ledger, copy)
        (copy / "_delta_log" / f"{started.version():020}.json").unlink()
        shutil.rmtree(started.ledger)
        if copied:
            shutil.copytree(copy, started.ledger)
        started.runner(embedded, max_messages=30).once()
        version = started.version()
        assert version > microbatch.primed.fence.table_version
        with pytest.raises(ConcurrentCommitError, match="recreated"):
            commit_at(microbatch, NOW + HOUR)
        assert started.version() == version
        assert started.canonical() == started.expected()

    def test_whatever_was_written(self, started: World, embedded: EngineFactory) -> None:
        """The files of a ledger that is followed are those of one that is opened anew, and what is known of each is the
        same, whoever wrote them: we, a compaction, a RESTORE.
        """
        snapshot = same(started)
        started.runner(embedded).once()
        same(started, snapshot)
        DeltaTable(started.ledger).optimize.compact()
        same(started, snapshot)
        DeltaTable(started.ledger).restore(started.version() - 1)
        same(started, snapshot)
        started.runner(embedded).flush()
        same(started, snapshot)

    def test_behind_its_own_commits(self, started: World, embedded: EngineFactory, monkeypatch: Any) -> None:
        """An engine lists the files of a ledger once: behind its own commits it knows them, behind those of others it
        looks again, and what it knows of each is what the log says.
        """
        opened = started.tables(embedded, idle_timeout="never")
        listed: list[int] = []

        def counting(table: DeltaTable) -> Iterator[File]:
            listed.append(table.version())
            return live_files(table)

        monkeypatch.setattr(files, "live_files", counting)
        begun = started.version()
        for number in range(3):
            started.publish(log(versions=1, seed=number, start=NOW + (number + 2) * 10_000_000)[0])
            started.runner(embedded, lambda _: opened).once()
            assert {*opened.ledger.live().open.files} == {*live_files(DeltaTable(started.ledger))}
        assert listed == [begun]
        started.runner(embedded).tick(to=NOW + HOUR)
        started.runner(embedded, lambda _: opened).flush()
        assert {*opened.ledger.live().open.files} == {*live_files(DeltaTable(started.ledger))}
        started.assert_balanced()

    @pytest.mark.slow
    @pytest.mark.spark
    def test_whatever_spark_wrote(self, started: World, embedded: EngineFactory, spark: Any) -> None:
        """The same holds of commits, a compaction and a RESTORE of Spark."""
        snapshot = same(started)
        started.runner(EngineFactory("spark", spark)).once()
        same(started, snapshot)
        started.publish(log(versions=1, seed=8, start=NOW + 20_000_000)[0])
        started.runner(embedded).once()
        spark.sql(f"OPTIMIZE delta.`{started.ledger}` WHERE state = 'closed'")
        same(started, snapshot)
        spark.sql(f"RESTORE delta.`{started.ledger}` TO VERSION AS OF {started.version() - 1}")
        same(started, snapshot)
        started.runner(embedded).flush()
        started.assert_balanced()


def same(world: World, known: TableSnapshot | None = None) -> TableSnapshot:
    """Compare what is known of the ledger by following it with what it says when it is opened."""
    snapshot = latest_snapshot(world.ledger, "ledger", known)
    assert known is None or snapshot.table is known.table
    assert {*live_files(snapshot.table)} == {*live_files(DeltaTable(world.ledger))}
    return snapshot


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.alter.add_constraint({"c": "state <> ''"}),
        lambda table: table.alter.add_feature([TableFeatures.CheckConstraints], allow_protocol_versions_increase=True),
        lambda table: table.alter.add_feature([TableFeatures.ChangeDataFeed], allow_protocol_versions_increase=True),
        lambda table: table.alter.set_table_properties({"delta.checkpointInterval": "1"}),
    ],
    ids=["constraint", "features", "as Spark's catalogs make it", "checkpoint"],
)
def test_other_tables(started: World, embedded: EngineFactory, change: Any) -> None:
    """A ledger with constraints, named features or a checkpoint at each commit is committed to like any other."""
    change(DeltaTable(started.ledger))
    started.runner(embedded).once()
    assert started.canonical() == started.expected()
