"""A commit to the ledger is an entry of ours behind the one that was seen, or one of delta-rs where that cannot be."""

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

from tests.clocks import NOW
from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, log, message
from windrow import tables
from windrow.engine import by_files
from windrow.engine.live_files import files_after, files_of
from windrow.entries import Entries
from windrow.errors import LedgerMoved, TableUnwritable
from windrow.storage import seen_table

COLUMNS = tables.ledger_schema().names


@pytest.fixture
def started(world: World, embedded: EngineFactory) -> World:
    """A ledger that has read two depot versions in two microbatches; the third is still to be read."""
    for rows in log(versions=2):
        world.publish(rows)
        world.runner(embedded).once()
    world.publish(log(versions=1, seed=7, begin=NOW + 10_000_000)[0])
    return world


def writer(world: World, version: int | None = None) -> str:
    """Return who wrote an entry of the ledger's log, the last one unless told."""
    (info,) = entry(world, world.version() if version is None else version)["commitInfo"]
    return str(info["engineInfo"]).partition(":")[0]


def entry(world: World, version: int) -> dict[str, list[dict[str, Any]]]:
    """Return the actions of an entry of the ledger's log by their kind."""
    actions: dict[str, list[dict[str, Any]]] = {}
    for line in Path(world.ledger, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8").splitlines():
        for kind, action in json.loads(line).items():
            actions.setdefault(kind, []).append(action)
    return actions


def kinds(action: dict[str, Any]) -> dict[str, type]:
    """Return what an action has, without the values and what is NULL."""
    return {name: type(value) for name, value in action.items() if value is not None}


class TestEntry:
    def test_as_delta_rs_writes_it(self, started: World, embedded: EngineFactory, monkeypatch: Any) -> None:
        """
        An entry adds and removes files and records the version it rests on, all as delta-rs writes it.
        """
        started.runner(embedded).once()
        ours = entry(started, started.version())
        assert writer(started) == "windrow"
        DeltaTable(started.ledger).restore(started.version() - 1)
        monkeypatch.setattr(Entries, "put", lambda *given: None)
        started.runner(embedded).once()
        theirs = entry(started, started.version())
        assert writer(started) == "delta-rs"
        for name in ("operation", "operationParameters"):
            assert ours["commitInfo"][0][name] == theirs["commitInfo"][0][name]
        notes = [json.loads(actions["commitInfo"][0]["userMetadata"]) for actions in (ours, theirs)]
        assert notes[0] == notes[1]
        for kind in ("add", "remove"):
            by_state = [{one["partitionValues"]["state"]: kinds(one) for one in said[kind]} for said in (ours, theirs)]
            assert by_state[0] == by_state[1]
        assert kinds(theirs["txn"][0]).items() <= kinds(ours["txn"][0]).items()
        assert ours["txn"][0]["appId"] == theirs["txn"][0]["appId"]

    def test_checkpoints(self, world: World, embedded: EngineFactory) -> None:
        """
        Each time the table asks for a checkpoint there is one, and the ledger is read with it and without the entries
        before it, by who opened it then and by who had it open.
        """
        for number in range(44):
            world.publish([message(key=str(number))])
            world.runner(embedded).once()
        log = Path(world.ledger, "_delta_log")
        assert sorted(int(file.name[:20]) for file in log.glob("*.checkpoint.parquet")) == [19, 39]
        assert [writer(world, version) for version in (18, 19, 20)] == ["windrow", "delta-rs", "windrow"]
        world.assert_balanced()
        for version in range(39):
            (log / f"{version:020}.json").unlink()
        world.publish([message(key="last")])
        world.runner(embedded).once()
        assert world.canonical() == world.expected()
        assert not list(Path(world.ledger).glob("*.tmp"))

    @pytest.mark.spark
    def test_spark_reads_it(self, started: World, embedded: EngineFactory, spark: Any) -> None:
        """
        Spark reads the rows and the change feed of such entries, and its own commit comes behind them.
        """
        started.runner(embedded).once()
        theirs = spark.read.format("delta").load(started.ledger).orderBy("id").toArrow().to_pylist()
        ours = started.rows("open", "closed", "rejected", "progress", "microbatch")
        assert theirs == sorted(ours, key=lambda row: row["id"])
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        closed = feed.load(started.ledger).where("state = 'closed'").groupBy("_change_type").count().collect()
        assert [row["_change_type"] for row in closed] == ["insert"]
        started.runner(EngineFactory("spark", spark)).tick(to=NOW + HOUR)
        started.runner(embedded).flush()
        started.assert_balanced()


class TestOthers:
    def test_first_at_the_number(self, started: World, embedded: EngineFactory, monkeypatch: Any) -> None:
        """
        Of two drivers that put an entry behind the same one exactly one succeeds, at whatever moment the other came:
        also between the last look and the link, where no lock held it off.
        """
        monkeypatch.setattr(by_files, "commit_lock", lambda location: nullcontext())
        rival, microbatch = started.microbatch(embedded), started.microbatch(embedded)
        really_link = os.link

        def link(*given: Any) -> None:
            monkeypatch.setattr(os, "link", really_link)
            rival.run_tick(rival.primed.sources.floors.at_least(NOW + HOUR))
            really_link(*given)

        monkeypatch.setattr(os, "link", link)
        version = started.version()
        with pytest.raises(LedgerMoved):
            microbatch.run_tick(microbatch.primed.sources.floors.at_least(NOW + 2 * HOUR))
        assert started.version() == version + 1
        assert started.rows("progress")[0]["microbatch"] == rival.primed.microbatch + 1
        started.assert_balanced()

    def test_harmless_at_the_number(self, started: World, embedded: EngineFactory, monkeypatch: Any) -> None:
        """
        A commit that touches no live rows and takes the number is no reason to fail: the microbatch goes behind it.
        """
        started.runner(embedded).tick(to=NOW + 8_000_000)
        really_link = os.link

        def link(*given: Any) -> None:
            monkeypatch.setattr(os, "link", really_link)
            DeltaTable(started.ledger).optimize.compact(partition_filters=[("state", "=", "microbatch")])
            really_link(*given)

        monkeypatch.setattr(os, "link", link)
        version = started.version()
        started.runner(embedded).once()
        assert started.version() == version + 2
        assert writer(started) == "delta-rs"
        started.assert_balanced()

    def test_set_back(self, started: World, embedded: EngineFactory) -> None:
        """
        When the log loses its last entry between prime and commit, nothing is put in its place or behind the gap.
        """
        microbatch = started.microbatch(embedded)
        last = Path(started.ledger, "_delta_log", f"{started.version():020}.json")
        last.unlink()
        with pytest.raises(LedgerMoved, match="set back"):
            microbatch.run_tick(microbatch.primed.sources.floors.at_least(NOW + HOUR))
        assert started.version() == microbatch.primed.fence.table_version - 1
        started.runner(embedded).once()
        assert started.canonical() == started.expected()

    def test_whatever_was_written(self, started: World, embedded: EngineFactory, monkeypatch: Any) -> None:
        """
        The files of a ledger that was followed are those of one that is opened anew, and what is known of each is the
        same, whoever wrote them: we, delta-rs, a compaction, a RESTORE.
        """
        first = seen_table(started.ledger, "ledger").table
        started.runner(embedded).once()
        same(started, first)
        DeltaTable(started.ledger).optimize.compact()
        same(started, first)
        with monkeypatch.context() as without:
            without.setattr(Entries, "put", lambda *given: None)
            started.runner(embedded).tick(to=NOW + HOUR)
        same(started, first)
        DeltaTable(started.ledger).restore(started.version() - 1)
        same(started)
        started.runner(embedded).flush()
        same(started)

    @pytest.mark.spark
    def test_whatever_spark_wrote(self, started: World, embedded: EngineFactory, spark: Any) -> None:
        """
        The same holds of commits, a compaction and a RESTORE of Spark.
        """
        first = seen_table(started.ledger, "ledger").table
        started.runner(EngineFactory("spark", spark)).once()
        same(started, first)
        started.publish(log(versions=1, seed=8, begin=NOW + 20_000_000)[0])
        started.runner(embedded).once()
        same(started, first)
        spark.sql(f"OPTIMIZE delta.`{started.ledger}` WHERE state = 'closed'")
        same(started, first)
        spark.sql(f"RESTORE delta.`{started.ledger}` TO VERSION AS OF {started.version() - 1}")
        same(started)
        started.runner(embedded).flush()
        started.assert_balanced()


def same(world: World, opened: DeltaTable | None = None) -> None:
    """Compare what is known of the ledger by following it with what it says when it is opened."""
    seen = seen_table(world.ledger, "ledger")
    assert opened is None or seen.table is opened
    followed = {file.path: file for file in files_after(files_of(seen.table, COLUMNS), seen.since, COLUMNS)}
    assert followed == {file.path: file for file in files_of(DeltaTable(world.ledger), COLUMNS)}


class TestWithout:
    @pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM])
    def test_links(self, started: World, embedded: EngineFactory, monkeypatch: Any, error: int) -> None:
        """
        Where a file system has no links delta-rs commits.
        """

        def link(*given: Any) -> None:
            raise OSError(error, "no links")

        monkeypatch.setattr(os, "link", link)
        started.runner(embedded).once()
        assert writer(started) == "delta-rs"
        assert started.canonical() == started.expected()

    def test_space(self, started: World, embedded: EngineFactory, monkeypatch: Any) -> None:
        """
        A link that fails fails the commit; nothing of it counts, and the next attempt commits.
        """
        really_link = os.link

        def link(*given: Any) -> None:
            monkeypatch.setattr(os, "link", really_link)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "link", link)
        microbatch, version = started.microbatch(embedded), started.version()
        with pytest.raises(TableUnwritable, match="No space"):
            microbatch.run_tick(microbatch.primed.sources.floors.at_least(NOW + HOUR))
        assert started.version() == version
        assert not list(Path(started.ledger).glob("*.tmp"))
        started.runner(embedded).once()
        assert started.canonical() == started.expected()

    @pytest.mark.parametrize(
        "change",
        [
            lambda table: table.alter.add_constraint({"c": "state <> ''"}),
            lambda table: table.alter.add_feature(
                [TableFeatures.CheckConstraints], allow_protocol_versions_increase=True
            ),
            lambda table: table.alter.set_table_properties({"delta.checkpointInterval": "1"}),
        ],
        ids=["constraint", "features", "checkpoint"],
    )
    def test_plainness(self, started: World, embedded: EngineFactory, change: Any) -> None:
        """
        A ledger of which a commit is more than files and numbers is left to delta-rs, and so is one with a checkpoint.
        """
        change(DeltaTable(started.ledger))
        started.runner(embedded).once()
        assert writer(started) == "delta-rs"
        assert started.canonical() == started.expected()

    def test_named_features(self, started: World, embedded: EngineFactory) -> None:
        """
        A table that names its features, as Spark's catalogs make it, is as plain as one that has them by its version.
        """
        feed = [TableFeatures.ChangeDataFeed]
        DeltaTable(started.ledger).alter.add_feature(feed, allow_protocol_versions_increase=True)
        assert DeltaTable(started.ledger).protocol().min_writer_version == 7
        started.runner(embedded).once()
        assert writer(started) == "windrow"
        assert started.canonical() == started.expected()
