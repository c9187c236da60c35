"""A scheduled run that finds nothing to do on Spark starts no JVM, and says what Spark would have said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

import windrow
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.processes import ROOT
from tests.engine.world import World
from tests.messages import HOUR, SECOND, log, message
from windrow.engine.choice import PLATFORMS
from windrow.errors import DepotMismatchError
from windrow.operate import Observer, RunInfo
from windrow.runtime.driver import RunSummary
from windrow.runtime.run import batcher_of, idle_run, idle_summary
from windrow.settings.settings import Settings

SPARK = EngineFactory("spark")
IDLE = "Nothing new, nothing overdue."


class Java:
    """A program `java` that leaves a note that it was called, and fails."""

    def __init__(self, folder: Path) -> None:
        self._note, self._folder = folder / "called", folder / "bin"
        self._folder.mkdir()
        program = self._folder / "java"
        program.write_text(f"#!/bin/sh\ntouch '{self._note}'\nexit 1\n")
        program.chmod(0o755)

    @property
    def called(self) -> bool:
        """Tell whether somebody called it."""
        return self._note.exists()

    def run(self, world: World, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `windrow run` on Spark, with this Java."""
        without = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
        path = f"{self._folder}{os.pathsep}{os.environ['PATH']}"
        tables = ("--depot", world.depot, "--ledger", world.ledger, "--engine", "spark")
        return subprocess.run(
            [sys.executable, "-m", "windrow", "run", *options, *tables],
            env=without | {"PATH": path, "WINDROW_IDLE_TIMEOUT": "never"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A Java that notes its calls."""
    return Java(tmp_path)


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> World:
    """A ledger that has read two versions of its depot, which are all there are."""
    world = World(tmp_path, clock)
    world.publish(*log(versions=2))
    world.runner(embedded).once()
    return world


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No platform, and no session that another test left in this process."""
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    for name in PLATFORMS:
        monkeypatch.delenv(name, raising=False)


def asked(world: World, **values: Any) -> RunSummary | None:
    """Ask whether a run on Spark has nothing to do, without idle ticks unless set."""
    settings = world.settings(SPARK, **{"idle_timeout": "never", **values})
    return idle_run(settings, batcher_of(settings), world.clock.now())


class TestCommand:
    def test_no_java(self, world: World, java: Java) -> None:
        """A run that finds nothing new and nothing overdue starts no JVM, nor does one that finds a compacted depot."""
        before = world.version()
        for compacted in (False, True):
            if compacted:
                DeltaTable(world.depot).optimize.compact()
            completed = java.run(world)
            assert (completed.returncode, java.called, completed.stdout.strip()) == (0, False, IDLE), completed.stderr
        assert world.version() == before

    @pytest.mark.ci
    def test_java_missing(self, world: World, tmp_path: Path) -> None:
        """That there is no Java at all is an error also where a run would find nothing to do."""
        environment = {"PATH": str(tmp_path / "empty"), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "lib")}
        environment["WINDROW_IDLE_TIMEOUT"] = "never"
        command = [sys.executable, "-m", "windrow", "run", "--once", "--engine", "spark", "--depot", world.depot]
        completed = subprocess.run(
            [*command, "--ledger", world.ledger], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert completed.returncode == 2
        assert completed.stderr.startswith(b"WINDROW-ENGINE: the Spark engine needs Java"), completed.stderr

    @pytest.mark.ci
    def test_java_home_without_one(self, world: World, java: Java) -> None:
        """Spark would start the Java of JAVA_HOME, whatever is on the path: where there is none, that is said as
        well.
        """
        completed = java.run(world, JAVA_HOME="/nowhere")
        assert (completed.returncode, java.called) == (2, False)
        assert "found none in JAVA_HOME (/nowhere)" in completed.stderr

    @pytest.mark.ci
    def test_document(self, world: World, java: Java) -> None:
        """With --json it prints the document of a run on Spark that did nothing."""
        completed = java.run(world, "--json")
        assert (completed.returncode, java.called) == (0, False), completed.stderr
        document = json.loads(completed.stdout)
        assert (document["engine"], document["paused"], document["message_count"], document["microbatches"]) == (
            "spark",
            False,
            0,
            [],
        )

    @pytest.mark.ci
    def test_paused(self, world: World, java: Java, embedded: EngineFactory) -> None:
        """So does a run of a paused ledger, whatever is new, which says that it is paused."""
        world.runner(embedded).pause()
        world.publish(*log(versions=1, seed=7))
        completed = java.run(world)
        assert (completed.returncode, java.called) == (0, False), completed.stderr
        assert completed.stdout.startswith("The ledger is paused")

    @pytest.mark.ci
    def test_told(self, world: World, java: Java, tmp_path: Path) -> None:
        """Log and metrics hear of a run that was idle as of any other."""
        (tmp_path / "windrow.toml").write_text(f'[metrics]\ntextfile = "{tmp_path}/windrow.prom"\n')
        completed = java.run(world, "--config", str(tmp_path / "windrow.toml"), "--log-level", "info")
        assert (completed.returncode, java.called) == (0, False), completed.stderr
        assert [json.loads(line)["event"] for line in completed.stderr.splitlines()] == ["run started", "run ended"]
        assert "windrow_" in (tmp_path / "windrow.prom").read_text()

    @pytest.mark.ci
    @pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["new", "dry run"])
    def test_something_to_do(self, world: World, java: Java, options: tuple[str, ...]) -> None:
        """What is new is Spark's to read, and a dry run Spark's to try: without a Java that works either says so at
        once, and nothing is committed.
        """
        before = world.version()
        if not options:
            world.publish(*log(versions=1, seed=7))
        completed = java.run(world, *options)
        assert (completed.returncode, java.called) == (2, True), completed.stderr
        assert "WINDROW-ENGINE: Spark did not start" in completed.stderr
        assert '"event": "retry"' not in completed.stderr
        assert world.version() == before

    def test_no_ledger(self, tmp_path: Path, clock: ManualClock, java: Java) -> None:
        """A ledger that is not there yet is Spark's to make."""
        world = World(tmp_path / "other", clock)
        completed = java.run(world)
        assert (completed.returncode, java.called) == (2, True), completed.stderr
        assert not Path(world.ledger).exists()


class TestIdle:
    def test_nothing_to_do(self, world: World) -> None:
        """Where nothing is new and nothing due the summary is that of a run on Spark without microbatches."""
        assert asked(world) == RunSummary("spark")
        assert asked(world, idle_timeout="10s") == RunSummary("spark")

    def test_versions_without_rows(self, world: World) -> None:
        """Versions of the depot that added no row are nothing new."""
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).alter.set_table_properties({"delta.appendOnly": "true"})
        assert asked(world) == RunSummary("spark")

    def test_new_rows(self, world: World) -> None:
        """One message that is new is something to do."""
        world.publish([message()])
        assert asked(world) is None

    def test_deletion(self, world: World) -> None:
        """So is a deletion in the depot, which stops a run."""
        DeltaTable(world.depot).delete("key = 'k'")
        assert asked(world) is None

    def test_due_batch(self, world: World) -> None:
        """So is an open batch that is overdue for the idle grace, which a run without idle ticks leaves alone."""
        world.clock.advance(HOUR)
        assert world.rows("open") != []
        assert asked(world, idle_timeout="10s") is None
        assert asked(world) == RunSummary("spark")

    def test_nothing_open(self, world: World, embedded: EngineFactory) -> None:
        """Where no batch is open none is due, however late it is."""
        world.runner(embedded).flush()
        world.clock.advance(HOUR)
        assert asked(world, idle_timeout="10s") == RunSummary("spark")

    def test_other_rules(self, world: World) -> None:
        """Other rules than those in force are to be recorded."""
        assert asked(world, rules={"max_delay": "8s"}) is None

    def test_other_start(self, world: World) -> None:
        """Another `start_from` than the ledger's is the engine's to take or to refuse; its own is none."""
        assert asked(world, start_from="beginning") == RunSummary("spark")
        assert asked(world, start_from="end") is None

    def test_no_ledger(self, world: World) -> None:
        """A ledger that is not there is to be made."""
        world.ledger += "-new"
        assert asked(world) is None
        assert not Path(world.ledger).exists()

    def test_features_that_only_spark_reads(self, world: World) -> None:
        """A ledger whose files alone do not say what its rows are is left to Spark."""
        ledger = DeltaTable(world.ledger)
        ledger.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        assert asked(world) is None

    def test_paused(self, world: World, embedded: EngineFactory) -> None:
        """A paused ledger has nothing to do, whatever is new, due or set."""
        world.runner(embedded).pause()
        world.publish([message()])
        world.clock.advance(HOUR)
        assert asked(world, idle_timeout="10s", rules={"max_delay": "8s"}) == RunSummary("spark", paused=True)

    def test_other_depot(self, world: World, tmp_path: Path) -> None:
        """The ledger of another depot is refused, as the engine would refuse it."""
        other = World(tmp_path / "other", world.clock)
        other.publish(*log(versions=2))
        other.ledger = world.ledger
        with pytest.raises(DepotMismatchError):
            asked(other)


class TestWhereItLooks:
    @pytest.mark.parametrize("table", ["main.silver.readings", "s3://bucket/readings"])
    @pytest.mark.parametrize("name", ["depot", "ledger"])
    def test_tables_elsewhere(self, world: World, name: str, table: str) -> None:
        """Only Spark can look at tables that have names, or are not on a disk of this machine."""
        settings = world.settings(SPARK, idle_timeout="never").model_copy(update={name: table})
        assert idle_run(settings, batcher_of(settings), world.clock.now()) is None

    def test_embedded(self, world: World) -> None:
        """The embedded engine needs no JVM, and nobody asks for it."""
        settings = world.settings(EngineFactory("embedded"), idle_timeout="never")
        assert idle_run(settings, batcher_of(settings), world.clock.now()) is None

    @pytest.mark.parametrize("name", PLATFORMS)
    def test_platform(self, world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Where a platform gives the session there is no JVM to save."""
        monkeypatch.setenv(name, "1")
        assert asked(world) is None

    @pytest.mark.ci
    def test_session_that_runs(self, world: World, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a session of Spark runs in this process already there is none to save either."""
        assert asked(world) == RunSummary("spark")
        monkeypatch.setitem(sys.modules, "pyspark.sql", sys.modules["pyspark"].sql)
        assert spark.getActiveSession() is not None
        assert asked(world) is None

    def test_paths_of_all_kinds(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A path is looked at as it is, from the working directory, or with `file:`."""
        monkeypatch.chdir(Path(world.depot).parent)
        for depot in (world.depot, "depot", f"file:{world.depot}"):
            settings = Settings(depot=depot, ledger="ledger", engine="spark", idle_timeout="never")
            assert idle_run(settings, batcher_of(settings), world.clock.now()) == RunSummary("spark")


class RecordingObserver(Observer):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def started(self, run: RunInfo) -> None:
        """Note the engine."""
        self.told.append(run.engine)

    def ended(self, error: BaseException | None) -> None:
        """Note the error."""
        self.told.append(error)


class TestProgram:
    def test_run(self, world: World, forbidden: Callable[[], None]) -> None:
        """`windrow.run` of a ledger with nothing to do opens no engine, and its observers hear of start and end."""
        forbidden()
        noting = RecordingObserver()
        settings = world.settings(SPARK, idle_timeout="never")
        assert windrow.run(settings, clock=world.clock, observers=[noting]) == RunSummary("spark")
        assert noting.told == ["spark", None]

    def test_not_idle(self, world: World) -> None:
        """Of a run that has something to do nobody hears before it begins."""
        world.publish([message(received_at=world.clock.now() + SECOND)])
        noting = RecordingObserver()
        assert idle_summary(world.settings(SPARK, idle_timeout="never"), world.clock, [noting]) is None
        assert noting.told == []


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forbid to open an engine from a moment on."""

    def forbid() -> None:
        monkeypatch.setattr("windrow.runtime.run.tables_of", lambda *_: pytest.fail("an engine is opened"))

    return forbid
