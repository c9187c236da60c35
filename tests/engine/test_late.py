"""Spark for local tables starts when there is something to do, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_whole
from tests.messages import log
from windrow.engine.late import LateSpark, may_wait
from windrow.settings import Settings


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

    def run(self, world: World, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `windrow run` on Spark, with this Java."""
        without = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
        path = f"{self._folder}{os.pathsep}{os.environ['PATH']}"
        tables = ("--depot", world.depot, "--ledger", world.ledger, "--engine", "spark")
        return subprocess.run(
            [sys.executable, "-m", "windrow", "run", *options, *tables],
            env=without | {"PATH": path, "WINDROW_IDLE_GRACE": "never"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A Java that notes its calls."""
    return Java(tmp_path)


class TestNothingToDo:
    def test_no_java(self, world: World, embedded: EngineFactory, java: Java) -> None:
        """
        A run that finds nothing new and nothing overdue starts no JVM, nor does one that finds a compacted depot.
        """
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        for options in ((), ("--dry-run",), ("--log-level", "debug")):
            done = java.run(world, *options)
            assert (done.returncode, java.called) == (0, False), done.stderr
        DeltaTable(world.depot).optimize.compact()
        done = java.run(world)
        assert (done.returncode, java.called) == (0, False), done.stderr
        assert done.stdout.startswith("Nothing new, nothing overdue.")

    def test_new_ledger(self, world: World, java: Java) -> None:
        """
        Neither does the first run on an empty depot, which makes the ledger.
        """
        done = java.run(world)
        assert (done.returncode, java.called) == (0, False), done.stderr
        assert DeltaTable(world.ledger).version() == 0

    def test_something_new(self, world: World, java: Java) -> None:
        """
        What is new is Spark's to read: without a Java that works the run says so at once, and nothing is committed.
        """
        world.publish(*log(versions=1))
        done = java.run(world)
        assert (done.returncode, java.called) == (2, True), done.stderr
        assert "WINDROW-ENGINE: Spark did not start" in done.stderr
        assert '"event": "retry"' not in done.stderr
        assert DeltaTable(world.ledger).version() == 0

    def test_no_java_at_all(self, world: World, java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        A machine that could never start Spark is told at once, not with the first message.
        """
        monkeypatch.setattr(java, "_folder", Path("nowhere"))
        monkeypatch.setenv("PATH", "nowhere")
        done = java.run(world)
        assert (done.returncode, "needs Java" in done.stderr) == (2, True)


class TestSession:
    def test_same_result(self, world: World, spark_engine: EngineFactory) -> None:
        """
        Once there is something to do all goes on as on Spark, and who waits for the session hears of it once.
        """
        engine = LateSpark(world.settings(spark_engine))
        heard: list[Any] = []
        engine.when_started(heard.append)
        runner = world.runner(spark_engine, engine)
        runner.once()
        assert heard == []
        for seed in (1, 2):
            world.publish(*log(versions=2, seed=seed))
            runner.once()
        assert [session.sparkContext for session in heard] == [spark_engine.session.sparkContext]
        engine.when_started(heard.append)
        assert heard == heard[:1] * 2
        assert engine.live().table_id == world.engine(spark_engine).live().table_id
        assert_whole(world)

    def test_session_that_runs(self, spark: Any) -> None:
        """
        Where a session runs already there is nothing to wait for.
        """
        assert not may_wait(Settings(depot="depot", ledger="ledger"))

    @pytest.mark.parametrize("table", ["main.silver.readings", "s3://bucket/readings"])
    def test_tables_elsewhere(self, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Only Spark can look at tables that have names, or are not on a disk of this machine.
        """
        monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
        assert may_wait(Settings(depot="depot", ledger="ledger"))
        assert not may_wait(Settings(depot=table, ledger="ledger"))
        assert not may_wait(Settings(depot="depot", ledger=table))
