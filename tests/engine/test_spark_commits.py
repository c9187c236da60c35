"""On Spark's engine Spark makes each commit, and what the engine remembers of it is what stands in the ledger."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.forms import FORMS, Form, have_spark
from tests.engine.world import World
from tests.faults.mishaps import forget_tables
from tests.messages import HOUR, SECOND, log, message
from tests.probes import open_tables, runner_on
from windrow.engine.spark.engine import ON_DATABRICKS
from windrow.engine.spark.session import bare_is_local
from windrow.ledger.live import Live
from windrow.model import tables


@pytest.fixture
def started(world: World, spark_engine: EngineFactory) -> World:
    """A ledger that has read one of three versions of its depot."""
    first, *others = log(versions=3)
    world.publish(first)
    world.runner(spark_engine).once()
    world.publish(*others)
    return world


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Both forms in which Spark commits."""
    have_spark(request.param, monkeypatch)
    chosen: Form = request.param
    return chosen


def committers(world: World) -> set[str]:
    """Return who made the commits, as the log has it."""
    return {re.split("[:/]", commit["engineInfo"])[0] for commit in DeltaTable(world.ledger).history()}


def assert_result(world: World) -> None:
    """All is as if read in one call."""
    assert world.canonical() == world.expected()
    world.assert_balanced()


@pytest.mark.slow
@pytest.mark.parametrize("max_driver_messages", [500_000, 0], ids=["driver", "executors"])
def test_spark_makes_each_commit(
    started: World, spark_engine: EngineFactory, form: Form, max_driver_messages: int
) -> None:
    """Spark makes the ledger and each commit, in the form that the history names, wherever the rows were processed."""
    runner = started.runner(spark_engine, max_messages=30, max_driver_messages=max_driver_messages)
    commit_modes = [microbatch.commit_mode for microbatch in runner.once().microbatches]
    runner.tick(to=NOW + HOUR)
    assert committers(started) == {"Apache-Spark"}
    assert commit_modes == [row["commit_mode"] for row in started.history()[1:3]] == ["merge"] * 2
    assert started.history()[-1]["commit_mode"] == "merge"
    assert started.rows("open") == []
    started.assert_balanced()


def test_embedded_adds_files(world: World, embedded: EngineFactory) -> None:
    """The embedded engine adds files in one transaction of Delta, and the history says so."""
    world.publish(*log(versions=1))
    world.runner(embedded).once()
    assert [row["commit_mode"] for row in world.history()] == ["files"]


@pytest.mark.slow
def test_on_databricks(started: World, spark_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a path without a scheme is none of the driver's disk, Spark alone says what the tables hold."""
    monkeypatch.setenv(ON_DATABRICKS, "17.3")
    started.runner(spark_engine).once()
    assert committers(started) == {"Apache-Spark"}
    assert_result(started)


@pytest.mark.slow
def test_cached_ledger(started: World, spark_engine: EngineFactory, form: Form) -> None:
    """What somebody cached of the ledger shows each commit, and stops none."""
    cached = spark_engine.session.read.format("delta").load(started.ledger).cache()
    try:
        for _ in range(2):
            cached.count()
            started.runner(spark_engine, max_messages=30).once()
            rows = spark_engine.session.read.format("delta").load(started.ledger).count()
            assert rows == DeltaTable(started.ledger).to_pyarrow_table().num_rows
            started.publish(*log(versions=1, seed=5, start=NOW + 12 * SECOND))
    finally:
        cached.unpersist()
    started.assert_balanced()


@pytest.mark.slow
def test_not_on_another_file_system(world: World, spark_engine: EngineFactory, tmp_path: Path) -> None:
    """Where the session takes a path without a scheme for one of another file system, the ledger is made there."""
    world.publish(*log(versions=2))
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    elsewhere = spark_engine.session.newSession()
    elsewhere.conf.set("fs.defaultFS", "viewfs://elsewhere/")
    elsewhere.conf.set(f"fs.viewfs.mounttable.elsewhere.link.{here}", f"file://{there}")
    assert (bare_is_local(spark_engine.session), bare_is_local(elsewhere)) == (True, False)
    places = {
        "depot": f"file:{world.depot}",
        "ledger": f"{here}/ledger",
        "checkpoint_location": f"file:{tmp_path}/checkpoints",
    }
    settings = world.settings(spark_engine).model_copy(update=places)
    runner_on(open_tables(settings, elsewhere), world.clock).once()
    microbatches = elsewhere.read.format("delta").load(f"{here}/ledger").where("state = 'microbatch'").count()
    assert (here.exists(), microbatches) == (False, 1)


ASKS_FOR_MORE = {
    "a constraint": "ADD CONSTRAINT counted CHECK (microbatch IS NULL OR microbatch >= 0)",
    "deletion vectors": "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "manifests": "SET TBLPROPERTIES ('delta.compatibility.symlinkFormatManifest.enabled' = 'true')",
    "files to be joined": "SET TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')",
    "columns by name": "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", ASKS_FOR_MORE.values(), ids=ASKS_FOR_MORE)
def test_ledger_of_more_features(started: World, spark_engine: EngineFactory, form: Form, change: str) -> None:
    """The books balance in a table of which each commit has to do or to check something that files alone do not,
    whether a commit is a MERGE or an overwrite.
    """
    spark_engine.session.sql(f"ALTER TABLE delta.`{started.ledger}` {change}")
    assert started.runner(spark_engine).once().total("message_count") == 60
    books = f"SELECT sum(messages_read) - sum(rejected) FROM delta.`{started.ledger}` WHERE state = 'microbatch'"
    names = [field.name for field in DeltaTable(started.ledger).schema().fields]
    rows = tables.spark_rows_that_count(f"delta.`{started.ledger}`", names)
    batches = f"({rows}) WHERE state IN ('open', 'closed')"
    list_sizes = f"SELECT sum(size(messages)) FROM {batches}"
    total = f"SELECT sum(message_count) FROM {batches}"
    balance, *others = (spark_engine.session.sql(query).first()[0] for query in (books, list_sizes, total))
    assert others == [balance, balance]
    form_ = f"SELECT commit_mode FROM delta.`{started.ledger}` WHERE id = 'microbatch/2'"
    assert spark_engine.session.sql(form_).first()[0] == "merge"


NASTY = ["${spark.app.name}", "it's", "back\\slash", "per%cent/", "line\nbreak", "ünïcode"]


@pytest.mark.slow
def test_ids_in_a_statement(world: World, spark_engine: EngineFactory, form: Form) -> None:
    """Keys that mean something in a statement of SQL are what they are: a batch of each grows and closes once."""
    for number in range(2):
        at = NOW + number * SECOND
        world.publish([message(f"type{number}", key=key, event_time=at, received_at=at) for key in NASTY])
        world.runner(spark_engine).once()
    assert [row["message_count"] for row in world.rows("open")] == [2] * len(NASTY)
    assert [row["commit_mode"] for row in world.history()] == ["merge"] * 2
    world.runner(spark_engine).tick(to=NOW + HOUR)
    assert sorted(row["key"] for row in world.rows("closed")) == sorted(NASTY)
    assert_result_of_tick(world)


@pytest.mark.slow
def test_keys_that_begin_alike(world: World, spark_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A microbatch that reads a part of the open batches finds those of all its streams, also where one key goes on
    from another with a sign that comes before the slash.
    """
    have_spark("reading some", monkeypatch)
    keys = ["k", *(f"k-{number}" for number in range(60)), "z", "z-1", "z/x"]
    for number in range(2):
        at = NOW + number * SECOND
        world.publish([message(f"type{number}", key=key, event_time=at, received_at=at) for key in keys])
        world.runner(spark_engine).once()
    assert [row["message_count"] for row in world.rows("open")] == [2] * len(keys)
    assert world.canonical() == world.expected()


def assert_result_of_tick(world: World) -> None:
    """All is as if read in one call, with a tick behind it."""
    assert world.canonical() == world.expected(now=NOW + HOUR)
    world.assert_balanced()


class TestRemembered:
    """Control rows, and open ones where they are few, stay in memory after a commit."""

    @pytest.mark.slow
    def test_only_a_little(self, started: World, spark_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        """Open batches that are no longer few are forgotten, and read again when they are wanted."""
        monkeypatch.setattr("windrow.ledger.spark.LITTLE_BYTES", 0)
        tables = started.tables(spark_engine, max_messages=30, idle_timeout="never")
        started.runner(spark_engine, lambda _: tables).once()
        opened = tables.ledger.live().open
        assert opened.rows is None
        assert pa.table(opened.batches(None)).num_rows == len(started.rows("open")) > 0
        assert_result(started)

    @pytest.mark.slow
    @pytest.mark.parametrize("max_driver_messages", [500_000, 0], ids=["driver", "executors"])
    def test_is_what_stands_there(
        self, started: World, spark_engine: EngineFactory, form: Form, max_driver_messages: int
    ) -> None:
        """After each commit the engine that made it knows the live rows that a new one reads."""
        settings = {"max_messages": 30, "max_driver_messages": max_driver_messages}
        opened = started.tables(spark_engine, idle_timeout="never", **settings)
        runner = started.runner(spark_engine, lambda _: opened)
        for act in (runner.once, lambda: runner.tick(to=NOW + 16 * SECOND), runner.flush):
            act()
            assert live_contents(opened.ledger.live()) == live_contents(started.tables(spark_engine).ledger.live())
        assert started.kinds() == ["data", "data", "data", "tick", "flush"]
        started.assert_balanced()

    @pytest.mark.slow
    def test_only_of_the_same_table(self, started: World, spark_engine: EngineFactory, embedded: EngineFactory) -> None:
        """Nothing is taken from memory of a ledger in whose place there is another one, of as many versions."""
        opened = started.tables(spark_engine, idle_timeout="never")
        started.runner(spark_engine, lambda _: opened).once()
        version = started.version()
        shutil.rmtree(started.ledger)
        started.runner(embedded, max_messages=60).once()
        assert started.version() == version
        forget_tables()
        assert live_contents(opened.ledger.live()) == live_contents(started.tables(spark_engine).ledger.live())

    @pytest.mark.slow
    @pytest.mark.parametrize("other", ["another driver", "RESTORE", "OPTIMIZE"])
    def test_only_of_the_next_version(
        self, started: World, spark_engine: EngineFactory, embedded: EngineFactory, other: str
    ) -> None:
        """Nothing is taken from memory once somebody else has committed."""
        opened = started.tables(spark_engine, idle_timeout="never")
        runner = started.runner(spark_engine, lambda _: opened)
        runner.once()
        if other == "another driver":
            started.publish(*log(versions=1, seed=7, start=NOW + 12 * SECOND))
            started.runner(embedded).once()
        elif other == "RESTORE":
            DeltaTable(started.ledger).restore(started.version() - 1)
        else:
            DeltaTable(started.ledger).optimize.compact()
        assert live_contents(opened.ledger.live()) == live_contents(started.tables(spark_engine).ledger.live())
        runner.once()
        assert started.canonical() == started.expected()


def live_contents(live: Live) -> tuple[Any, ...]:
    """Return live rows in the order of their ids, and their version."""
    parts = live.rows, pa.table(live.open.batches(None))
    rows = [part.drop_columns(["whole"]).sort_by("id").to_pylist() for part in parts]  # Spark does not read it
    return live.table_version, *rows
