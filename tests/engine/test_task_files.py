"""`commit = "files"` on Spark: what is refused, what tasks leave behind, and how it shares a ledger with MERGE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import EXECUTORS, factory_of
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log
from tests.probes import act_once
from windrow.engine.spark.engine import SparkEngine
from windrow.errors import EngineUnavailableError, RetriesExhaustedError
from windrow.ledger import task_files
from windrow.ledger.file_writer import FileWriter, store_options
from windrow.ledger.files_ledger import FilesLedger
from windrow.ledger.live import Live
from windrow.ledger.row_writer import RowWriter, WrittenRows
from windrow.ledger.task_files import write_in_tasks
from windrow.runtime import executors
from windrow.testing.points import Point

pytestmark = pytest.mark.ci

FILES = {"commit": "files"}


@pytest.fixture
def files(request: pytest.FixtureRequest) -> EngineFactory:
    """Spark whose executors process whatever there is, and write files."""
    return factory_of("spark-files-executors", request)


def data_files(world: World) -> set[Path]:
    """Return all files of the ledger, those that no commit has added too."""
    return set(Path(world.ledger).rglob("*.parquet"))


def test_tasks_write(world: World, files: EngineFactory) -> None:
    """What the executors process, their tasks write: the history says so, and delta-rs makes every commit."""
    world.publish(*log(versions=3))
    world.runner(files, max_messages=70).once()
    assert {(row["processed_on"], row["commit_mode"], row["engine"]) for row in world.history()} == {
        ("executors", "files", "spark")
    }
    assert {commit.get("engineInfo", "")[:8] for commit in DeltaTable(world.ledger).history()} == {"delta-rs"}
    assert world.canonical() == world.expected()
    world.assert_balanced()


def test_then_the_driver_of_spark(world: World, spark: Any) -> None:
    """In a run that goes on, the driver finds the open batches that tasks have written a microbatch before."""
    world.publish(*log(versions=1, size=120))
    runner = world.runner(EngineFactory("spark", spark, FILES), max_driver_messages=100)
    runner.once()
    world.publish(*log(versions=1, size=20, seed=2))
    runner.once()
    assert [row["processed_on"] for row in world.history()] == ["executors", "driver"]
    assert world.canonical() == world.expected()
    world.assert_balanced()


def test_a_task_that_runs_twice(world: World, files: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a task that Spark runs once more than it takes the result of are not in the table; a vacuum deletes
    them.
    """

    def twice(*arguments: Any) -> WrittenRows:
        write_in_tasks(*arguments)
        return write_in_tasks(*arguments)

    monkeypatch.setattr(executors, "write_in_tasks", twice)
    world.publish(*log(versions=2))
    world.runner(files).once()
    table = DeltaTable(world.ledger)
    lost = data_files(world) - {Path(path) for path in table.file_uris()}
    assert lost
    assert world.canonical() == world.expected()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not data_files(world) & lost
    assert world.canonical() == world.expected()


@pytest.mark.slow_unless({"where": {}})
@pytest.mark.parametrize("where", [{}, EXECUTORS], ids=["driver", "executors"])
def test_in_turn(world: World, spark: Any, embedded: EngineFactory, where: dict[str, Any]) -> None:
    """MERGE, files of Spark and the embedded engine, one after the other, make the ledger that one call makes."""
    ways = [EngineFactory("spark", spark, where | FILES), EngineFactory("spark", spark, where), embedded]
    for number, rows in enumerate(log(versions=6)):
        world.publish(rows)
        world.runner(ways[number % 3], fold_commits=2).once()
    assert {row["commit_mode"] for row in world.history()} == {"files", "merge"}
    assert world.canonical() == world.expected()
    world.assert_balanced()


class TestRefused:
    def test_without_a_path(self, spark: Any) -> None:
        """A ledger in a catalog has no path that tasks may write to."""
        with pytest.raises(EngineUnavailableError, match=r"needs a ledger with a path, not main\.plant\.ledger"):
            EngineFactory("spark", spark, FILES).open("main.plant.depot", "main.plant.ledger")

    def test_connect(self, world: World, files: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        """On Spark Connect another process would commit."""
        monkeypatch.setattr(SparkEngine, "remote", True, raising=False)
        engine = SparkEngine(files.settings(world.depot, world.ledger), files.session)
        engine.remote = True
        with pytest.raises(EngineUnavailableError, match="Spark in this process, not Spark Connect"):
            FilesLedger(engine, engine.settings)

    def test_another_file_system(self, spark: Any, world: World, tmp_path: Path) -> None:
        """A path that the session takes for one of another file system needs its full address."""
        elsewhere = spark.newSession()
        elsewhere.conf.set("fs.defaultFS", "viewfs://elsewhere/")
        elsewhere.conf.set(f"fs.viewfs.mounttable.elsewhere.link.{tmp_path}", f"file://{tmp_path}")
        with pytest.raises(EngineUnavailableError, match="Give the ledger as a full address"):
            EngineFactory("spark", elsewhere, FILES).open(world.depot, world.ledger)

    def test_a_disk_of_the_driver(self, files: EngineFactory, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """So is a local disk that tasks on other machines do not see, before anything runs; no trace of the look
        remains.
        """

        def blind(marker: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield pa.RecordBatch.from_pydict({"seen": [False]})

        monkeypatch.setattr(files.session.sparkContext, "master", "spark://plant:7077")
        files.open(world.depot, world.ledger)
        monkeypatch.setattr(task_files, "_sees", blind)
        with pytest.raises(EngineUnavailableError, match="tasks of spark://plant:7077 do not see"):
            files.open(world.depot, world.ledger)
        assert not list(Path(world.ledger).parent.glob(".ledger.*"))

    def test_files_on_another_disk(self, files: EngineFactory, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that a task has written where the driver does not see it is not committed."""
        ours = FilesLedger.row_writer

        def elsewhere(ledger: FilesLedger, live: Live) -> RowWriter:
            writer = ours(ledger, live)
            return replace(writer, files=replace(writer.files, location=f"{world.ledger}-of-another-machine"))

        first, second = log(versions=2)
        world.publish(first)
        world.runner(files).once()
        with monkeypatch.context() as patched:
            patched.setattr(FilesLedger, "row_writer", elsewhere)
            world.publish(second)
            with pytest.raises(RetriesExhaustedError, match="but the driver does not see it"):
                world.runner(files, max_retries=0).once()
        assert len(world.history()) == 1
        world.runner(files).once()
        assert world.canonical() == world.expected()


def test_secrets_stay_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks get the options of the store as the driver has them; no text shows them."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "kept-secret")
    writer = FileWriter("s3://plant/ledger", frozenset(), store_options())
    assert writer.options is not None
    assert writer.options["AWS_SECRET_ACCESS_KEY"] == "kept-secret"
    assert "kept-secret" not in repr(RowWriter(writer, pa.schema([]), 1))


@pytest.mark.slow_unless({"overtaken": "merge"})
@pytest.mark.parametrize("overtaken", ["files", "merge"])
def test_racing_drivers(world: World, spark: Any, overtaken: str) -> None:
    """Of a driver that commits by files and one by MERGE, which have processed the same messages, one commits."""
    ways = {commit: EngineFactory("spark", spark, EXECUTORS | {"commit": commit}) for commit in ("files", "merge")}
    other = ways.pop("merge" if overtaken == "files" else "files")
    world.publish(*log(versions=2))
    overtake = act_once(Point.AFTER_PROCESS, lambda: world.runner(other).once())
    world.probed(ways[overtaken], overtake).once()
    assert len(world.history()) == 1
    assert world.canonical() == world.expected()
    world.assert_balanced()
