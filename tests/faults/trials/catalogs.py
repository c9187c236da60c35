"""Faults of a topology whose tables have names, on a Connect server that lets nobody else at their files.

There the plans of its microbatches are in a table of their own, `<states>_plans`, and outside the commit of the states.
Drivers are clients: after a SIGKILL the server may still end what they asked for, beside the next driver.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from tests.clocks import NOW, ManualClock
from tests.engine.driver import Killer
from tests.engine.restricted.server import restricted_server
from tests.faults.trials.outputs import copying, counted_rows
from tests.faults.trials.processes import Child, children
from tests.faults.trials.trial import Counted, Trial
from tests.probes import Tables, fail_times, no_op, with_probe
from windrow.settings.settings import Settings
from windrow.testing.points import Point, ProbedAlgorithm
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.running import runner_of, tables_of
from windrow.topology.verify import verify_topology

MAX_SECONDS = 8  # until a driver is killed at a random moment
PATIENCE_SECONDS = 600  # each statement takes a second or two there
Stop = tuple[str, str, int]  # kill or fail, where, which time or how often


class NotePoint(Enum):
    """A point of the commit that saves a plan, beside those of a microbatch."""

    BEFORE_NOTE = "before_note"
    AFTER_NOTE = "after_note"


POINTS: list[Any] = [*Point, *NotePoint]


@cache
def server() -> str:
    """Start the server of this process and return its address; it ends with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windrow-")))
    return stack.enter_context(restricted_server(directory)).remote


def connected(remote: str) -> Any:
    """Return a session of the server, as Windrow finds it there."""
    os.environ["SPARK_REMOTE"] = remote
    from windrow.engine.spark.session import find_session

    return find_session()


def publish_named(pipe: Connection, remote: str, home: str, versions: list[list[int]]) -> None:
    """Make the schema and the depot unless they are there, and append versions of numbers."""
    from windrow.rows.frame import frame_of

    session, numbers = connected(remote), f"{home}numbers"
    pipe.send("ready")
    pipe.recv()
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {home.rstrip('.')}").collect()
    properties = "USING DELTA TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    session.sql(f"CREATE TABLE IF NOT EXISTS {numbers} (number BIGINT) {properties}").collect()
    for version in versions:
        rows = pa.table({"number": pa.array(version, pa.int64())})
        frame_of(session, rows).write.format("delta").mode("append").saveAsTable(numbers)


def drive_named(pipe: Connection, remote: str, home: str, limit: int, stop: Stop | None) -> None:
    """Be a driver of the topology, which is killed or fails at a point; tell of each commit, and of each failure."""
    from windrow.engine.spark.journal import SparkJournal

    settings = Settings(engine="spark", max_messages=limit, fold_commits=4, fold_rows=3)
    topology, at = copying(home), _probe(pipe, stop)
    tables = with_probe(at)(Tables(*tables_of(topology, settings, connected(remote))))
    functions: Any = ProbedAlgorithm(FunctionAlgorithm(topology, tables.sources, tables.ledger), at)
    replace = SparkJournal._replace

    def noted(journal: SparkJournal, row: Any, note: str) -> None:
        at(NotePoint.BEFORE_NOTE)
        replace(journal, row, note)
        at(NotePoint.AFTER_NOTE)

    pipe.send("ready")
    pipe.recv()
    with patch.object(SparkJournal, "_replace", noted):
        runner = runner_of(
            topology,
            tables.sources,
            tables.ledger,
            ManualClock(NOW),
            functions,
            report=lambda _: pipe.send("committed"),
        )
        runner.once()


def _probe(pipe: Connection, stop: Stop | None) -> Any:
    if stop is None:
        return no_op
    what, where, times = stop
    point = next(candidate for candidate in POINTS if candidate.value == where)
    if what == "kill":
        return Killer(point, times)
    fail = fail_times(point, times)

    def at(here: Any) -> None:
        try:
            fail(here)
        except OSError:
            pipe.send("failed")
            raise

    return at


def count_named(pipe: Connection, remote: str, home: str, count: int) -> None:
    """Say what is lost, what is there twice, and what differs."""
    session, topology = connected(remote), copying(home)
    pipe.send("ready")
    pipe.recv()
    there = session.table(f"{home}copy").toArrow()
    digits, woken = (topology.read(state, spark=session) for state in ("digits", "woken"))
    lost, twice, wrong = counted_rows(count, there, digits, woken)
    report = verify_topology(topology, Settings(engine="spark"), spark=session)
    plans = session.sql(f"DESCRIBE HISTORY {home}states_plans").toArrow()["userMetadata"].to_pylist()
    if not any("microbatch" in (note or "") for note in plans):
        wrong.append("no plan is in the table of plans")
    pipe.send((lost, twice, [*map(str, report.differences), *wrong]))


class Named:
    """The tables of a topology in a schema of the server, and what is done to it."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.random, self.count = trial, trial.random, 0
        self.home = f"trial_{uuid.uuid4().hex}."

    def publish(self) -> None:
        """Append a few versions of numbers that go on."""
        versions = []
        for _ in range(self.random.randint(1, 2)):
            versions.append([*range(self.count, self.count + self.random.randint(1, 5))])
            self.count += len(versions[-1])
        self._ended(self._child(publish_named, versions))

    def drive(self) -> None:
        """Run to the end, undisturbed."""
        self._ended(self._driver(None))

    def killed(self) -> None:
        """Kill a driver, at a point or at a random moment."""
        if self.random.random() < 0.7:
            stop = ("kill", self.random.choice(POINTS).value, self.random.randint(1, 2))
            self.trial.struck |= self._ended(self._driver(stop), -9) == -9
            return
        with children(self._driver(None)) as (child,):
            child.go()
            child.process.join(self.random.random() * MAX_SECONDS)
            self.trial.struck |= child.kill()

    def failing(self) -> None:
        """Let a driver fail at a point once or twice, which tries again."""
        stop = ("fail", self.random.choice(POINTS).value, self.random.randint(1, 2))
        with children(self._driver(stop)) as (child,):
            child.go()
            self.trial.struck |= "failed" in child.said()
            if (status := _status(child)) != 0:
                raise RuntimeError(f"a driver ended with {status}")

    def raced(self) -> None:
        """Let two drivers work beside each other, one of which may be killed at a point."""
        kill = ("kill", self.random.choice(POINTS).value, 1) if self.random.random() < 0.5 else None
        with children(self._driver(None), self._driver(kill)) as started:
            for child in started:
                child.go()
            statuses = [_status(child) for child in started]
        if statuses[0] != 0 or statuses[1] not in (0, -9):
            raise RuntimeError(f"drivers ended with {statuses}")
        self.trial.struck = True

    def counted(self) -> Counted:
        """Read what is left, undisturbed, and count the rows of the output."""
        self.publish()
        self.drive()
        with children(self._child(count_named, self.count)) as (child,):
            child.go()
            [(lost, twice, different)] = child.said()
        return Counted(lost, twice, tuple(different), self.trial.struck)

    def _child(self, work: Any, *arguments: Any) -> Child:
        return Child(work, server(), self.home, *arguments)

    def _driver(self, stop: Stop | None) -> Child:
        return self._child(drive_named, self.random.choice([1, 100, 100]), stop)

    def _ended(self, started: Child, *allowed: int) -> int | None:
        """Wait until a process ends, as it may."""
        with children(started) as (child,):
            child.go()
            status = _status(child)
        if status not in (0, *allowed):
            raise RuntimeError(f"a process ended with {status}")
        return status


def _status(child: Child) -> int | None:
    child.process.join(PATIENCE_SECONDS)
    return child.process.exitcode


def _trying(act: Callable[[Named], None]) -> Callable[[Trial], None]:
    """Try it on tables that no driver has seen, and perhaps again."""

    def tried(trial: Trial) -> None:
        named = Named(trial)
        for _ in range(trial.random.randint(1, 2)):
            named.publish()
            act(named)
        trial.result = named.counted()

    return tried


killed = _trying(Named.killed)
failed = _trying(Named.failing)
raced = _trying(Named.raced)
