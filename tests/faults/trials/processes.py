"""Faults between processes: drivers that are killed, race each other, or run beside ticks and maintenance."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.clocks import NOW, ManualClock
from tests.engine.driver import Killer
from tests.engine.probe import POINTS, Folding, point_of
from tests.engine.processes import driver_of, drivers
from tests.faults.trials.trial import Counted, Trial
from tests.messages import SECOND
from tests.probes import no_op, open_tables, runner_on, with_probe
from windrow.errors import WindrowError
from windrow.runtime.maintenance import maintain
from windrow.runtime.opening import DepotReader, open_ledger
from windrow.runtime.run import batcher_of
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.testing.points import Point

# Processes are forked off one that has loaded everything and used nothing: so each is there in milliseconds.
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.trials.warm"])
PATIENCE_SECONDS = 120
KILLS = 5  # of a ledger on the embedded engine: checking it takes three times as long as a kill, measured
VERSIONS = 6  # that a driver finds new: most kills come before it has read them
LEDGERS = 12  # of a driver on Spark, so that its start is a sixth of a try, measured
SECONDS_A_MICROBATCH = 5  # of twelve ledgers side by side on two cores, measured


class Child:
    """A driver, or whatever else works on the tables, in a process of its own; it begins when it is told to."""

    def __init__(self, work: Any, *arguments: Any) -> None:
        self._ours, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=work, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self._ours.recv()

    def go(self) -> None:
        """Let it begin."""
        self._ours.send("go")

    def committed(self) -> bool:
        """Wait for its next commit; return False when it ended instead."""
        try:
            self._ours.recv()
        except EOFError:
            return False
        return True

    def said(self) -> Iterator[Any]:
        """Yield what it said until it ended."""
        with suppress(EOFError):
            while True:
                yield self._ours.recv()

    def kill(self) -> bool:
        """Send it SIGKILL, and return whether that is what ended it."""
        self.process.kill()
        return self.status() == -signal.SIGKILL

    def status(self) -> int | None:
        """Wait for its end and return its exit status."""
        self.process.join(PATIENCE_SECONDS)
        return self.process.exitcode


def drive(pipe: Connection, values: dict[str, Any], kill: tuple[str, int] | None) -> None:
    """Be a driver; at a point for the n-th time, end by SIGKILL."""
    settings = Settings(**values)
    probe = Killer(point_of(kill[0]), kill[1]) if kill else no_op
    pipe.send("ready")
    pipe.recv()
    tables = with_probe(probe, Folding)(open_tables(settings))
    runner_on(tables, ManualClock(NOW), report=lambda _: pipe.send("committed")).once()


def tick_and_flush(pipe: Connection, values: dict[str, Any], moments: list[int | None]) -> None:
    """Tick to moments in turn; where there is none, flush."""
    settings = Settings(**values)
    pipe.send("ready")
    pipe.recv()
    for moment in moments:
        runner = runner_on(open_tables(settings), ManualClock(NOW))
        runner.flush() if moment is None else runner.tick(to=moment)


def look_after(pipe: Connection, values: dict[str, Any], clean_up: bool = True) -> None:
    """Do what `windrow maintain` does, again and again until the process is ended; with `clean_up` compact and vacuum.

    A vacuum also deletes the files of whoever has not committed them yet.
    """
    settings = Settings(**values)
    pipe.send("ready")
    pipe.recv()
    while True:
        try:
            tables = open_tables(settings)
            maintain([tables.source], tables.ledger, WallClock().now())
            if clean_up:
                DeltaTable(settings.depot).optimize.compact()
                DeltaTable(settings.ledger).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        except (
            WindrowError,
            DeltaError,
            OSError,
        ):  # whoever commits is not to be disturbed: maintenance is what gives way
            time.sleep(0.01)


@contextmanager
def children(*started: Child) -> Iterator[tuple[Child, ...]]:
    """Leave no process behind."""
    try:
        yield started
    finally:
        for child in started:
            child.process.kill()
            child.process.join()


def driver(trial: Trial, kill: tuple[str, int] | None = None, **more: Any) -> Child:
    """Start a driver of the embedded engine."""
    return Child(drive, values_of(trial) | more, kill)


def values_of(trial: Trial) -> dict[str, Any]:
    """Return the settings of a process."""
    tables = {"depot": trial.world.depot, "ledger": trial.world.ledger, "engine": "embedded"}
    return tables | {"idle_timeout": "never"} | trial.settings


def killed_at_random(trial: Trial) -> None:
    """Kill a driver, and on the embedded engine its successors too, at any moment of any microbatch."""
    if trial.factory.name == "spark":
        trial.result = _many_killed(trial)
        return
    trial.lengthen(VERSIONS * KILLS, trial.random.randint(1, 15))
    struck = 0
    for _ in range(KILLS):
        trial.publish(VERSIONS)
        struck += _killed(trial)
    trial.result = replace(trial.counted(), struck=struck, strikes=KILLS)


def _killed(trial: Trial) -> bool:
    """Kill a driver after some commits, at any moment of as long as its longest microbatch took."""
    commits, share = trial.random.randrange(4), trial.random.random()
    with children(driver(trial)) as (child,):
        child.go()
        longest, begun = 0.05, time.monotonic()
        for _ in range(commits):
            if child.committed():
                longest, begun = max(longest, time.monotonic() - begun), time.monotonic()
        time.sleep(share * longest)
        return child.kill()


def _many_killed(trial: Trial) -> Counted:
    """Kill a driver of many ledgers on Spark, each of which is somewhere else by then; half of the times its JVM lives
    on for a moment.
    """
    trials = [Trial(trial.folder / str(n), trial.random.randrange(2**32), trial.factory) for n in range(LEDGERS)]
    for ledger_trial in trials:
        ledger_trial.publish()
    commits, share = trial.random.randrange(3 * LEDGERS // 2), trial.random.random()
    with driver_of([values_of(ledger_trial) | {"engine": "spark"} for ledger_trial in trials]) as driver:
        driver.start()
        said = driver.words_until("committed", commits)
        time.sleep(share * SECONDS_A_MICROBATCH)
        trial.random.choice([driver.kill, partial(driver.send, signal.SIGKILL)])()
        running = driver.status() == -signal.SIGKILL
        finished = {int(word.split()[1]) for word in (*said, *driver.words()) if word.startswith("done")}
    for number, ledger_trial in enumerate(trials):
        ledger_trial.struck = running and number not in finished
    return Counted.sum(ledger_trial.counted() for ledger_trial in trials)


def killed_at_a_point(trial: Trial) -> None:
    """Kill a driver at a named point."""
    trial.publish()
    point, times = trial.random.choice(list(Point)), trial.random.randint(1, 3)
    if trial.factory.name == "spark":
        with drivers(trial.world, "spark", **trial.settings, kill=[point.value, 1]) as (other,):
            other.start()
            trial.struck = other.status() == -signal.SIGKILL
        return
    with children(driver(trial, (point.value, times))) as (child,):
        child.go()
        trial.struck = child.status() == -signal.SIGKILL


def two_drivers(trial: Trial) -> None:
    """Let two drivers race on one backlog."""
    race(trial, 2)


def three_drivers(trial: Trial) -> None:
    """Let three drivers race on one backlog."""
    race(trial, 3)


def drivers_killed_in_turn(trial: Trial) -> None:
    """Let three drivers race, two of which are killed at a point."""
    race(trial, 3, killed=2)


def race(trial: Trial, count: int, killed: int = 0) -> None:
    """Let drivers begin at the same moment; some of them are killed on their way."""
    trial.publish()
    kills = [(trial.random.choice(POINTS).value, trial.random.randint(1, 2)) for _ in range(killed)]
    ends = [*kills, *[None] * (count - killed)]
    if trial.factory.name == "spark":
        with drivers(trial.world, "spark", *["embedded"] * (count - 1), **trial.settings) as started:
            for other in started:
                other.hear("ready")
            for other in started:
                other.go_on()
            trial.struck = [other.status() for other in started] == [0] * count
        return
    with children(*(driver(trial, end) for end in ends)) as started_here:
        for child in started_here:
            child.go()
        statuses = [child.status() for child in started_here]
    trial.struck = statuses[killed:] == [0] * (count - killed)
    if not trial.struck:
        raise RuntimeError(f"drivers ended with {statuses}")


def ticked_and_flushed(trial: Trial) -> None:
    """Let another process tick and flush while a driver reads."""
    trial.half()
    trial.ticked = True
    moments = [trial.random.choice([None, NOW + trial.random.randrange(30) * SECOND]) for _ in range(4)]
    with children(Child(tick_and_flush, values_of(trial), moments)) as (child,):
        child.go()
        trial.run()
        if child.status() != 0:
            raise RuntimeError("ticks and flushes ended with an error")
    trial.struck = bool({"tick", "flush"} & set(trial.world.kinds()))


def looked_after(trial: Trial) -> None:
    """Let another process maintain, compact and clean up both tables while a driver reads."""
    trial.restored = True
    tables = trial.world.tables(trial.factory)
    open_ledger([DepotReader(None, tables.source)], tables.ledger, batcher_of(tables.ledger.settings), NOW)
    with children(Child(look_after, values_of(trial))) as (child,):
        child.go()
        while trial._left:
            trial.publish(1)
            trial.run()
    operations = {commit["operation"] for commit in DeltaTable(trial.world.ledger).history()}
    trial.struck = bool(operations & {"OPTIMIZE", "VACUUM START"})
