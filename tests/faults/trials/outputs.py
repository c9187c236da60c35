"""Faults of a topology with an output and timers: kills, rollbacks, RESTORE of its states, and several drivers.

Whatever happens, each row of the depot reaches the output. It is there once, unless a rollback or a RESTORE took its
microbatch back: then once more for each of these. The timer that it sets fires once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.faults.trials.processes import Child, children
from tests.faults.trials.trial import Counted, Trial
from windrow.engine.embedded import EmbeddedEngine
from windrow.engine.side_files import DeltaRsJournal, StoredSideFiles
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, Topology
from windrow.topology.running import open_topology, rollback
from windrow.topology.verify import verify_topology

CHANGE_FEED = {"delta.enableChangeDataFeed": "true"}
FOLDS: dict[str, Any] = {"fold_commits": 2, "fold_rows": 3}


def copying(home: str) -> Topology:
    """Return a topology that counts numbers by their last digit, copies them to an output, and sets timers.

    `home` is how the locations of its tables begin.
    """
    topology = Topology("copying", {"numbers": f"{home}numbers"}, f"{home}states", outputs={"copy": f"{home}copy"})
    topology.state("digits", key="digit BIGINT", value="times BIGINT")
    topology.state("woken", key="number BIGINT", value="times BIGINT")
    topology.timer("wake", key="number BIGINT")

    @topology.function
    def copy(microbatch: Microbatch) -> None:
        rows = microbatch.rows("numbers").select(["number"])
        digits = pa.table({"digit": pa.array([number % 10 for number in rows["number"].to_pylist()], pa.int64())})
        microbatch.state("digits").combine(digits, times="count")
        microbatch.append("copy", rows)
        due = pa.repeat(pa.scalar(microbatch.clock, pa.timestamp("us", "UTC")), rows.num_rows)
        microbatch.schedule("wake", rows.append_column("due", due))
        microbatch.state("woken").combine(microbatch.due("wake"), times="count")

    return topology


def drive_copying(pipe: Connection, folder: str, engine: str, limit: int) -> None:
    """Be a driver of the topology; tell of each commit."""
    topology, settings = copying(f"{folder}/"), Settings(engine=engine, max_messages=limit, **FOLDS)
    pipe.send("ready")
    pipe.recv()
    with open_topology(topology, settings, ManualClock(NOW), report=lambda _: pipe.send("committed")) as runner:
        runner.once()


def drive_with_stored_plans(pipe: Connection, folder: str, engine: str, limit: int) -> None:
    """Be a driver whose plans are in the log of a small table, as where there is no directory for them."""
    with stored_plans():
        drive_copying(pipe, folder, engine, limit)


def stored_plans() -> AbstractContextManager[Any]:
    """Keep plans as on an object store or in a catalog, while the block runs."""
    return patch.object(EmbeddedEngine, "side_files", lambda _, place: StoredSideFiles(DeltaRsJournal.beside(place)))


def published(folder: str, count: int, chosen: Random) -> int:
    """Append a few versions of numbers that go on from `count`; return where they end."""
    for _ in range(chosen.randint(1, 4)):
        rows = pa.table({"number": pa.array(range(count, count + chosen.randint(1, 5)), pa.int64())})
        write_deltalake(f"{folder}/numbers", rows, mode="append", configuration=CHANGE_FEED)
        count += rows.num_rows
    return count


def counted_rows(
    count: int, there: pa.Table, digits: pa.Table, woken: pa.Table, taken_back: int = 0
) -> tuple[int, int, list[str]]:
    """Return how many of the first `count` numbers are lost, how many are there more often, and what else is wrong."""
    copies = Counter(there["number"].to_pylist())
    fired = {row["number"]: row["times"] for row in woken.to_pylist()}
    lost = sum(number not in copies or number not in fired for number in range(count))
    twice = sum(max(0, times - 1 - taken_back) for times in copies.values())
    twice += sum(times - 1 for times in fired.values())
    expected = Counter(number % 10 for number in range(count))
    states = {row["digit"]: row["times"] for row in digits.to_pylist()}
    return lost, twice, ["the states are not those of the rows"] if states != expected else []


class Copying:
    """The tables of a topology, and what is done to it."""

    def __init__(self, trial: Trial, stored: bool = False) -> None:
        self.trial, self.random, self.folder = trial, trial.random, str(trial.folder)
        self.stored = stored
        self.topology, self.count, self.taken_back = copying(f"{self.folder}/"), 0, 0

    def publish(self) -> None:
        """Append a few versions of numbers that go on."""
        self.count = published(self.folder, self.count, self.random)

    def run(self) -> None:
        """Run to the end, in this process."""
        settings = Settings(engine="embedded", max_messages=3, **FOLDS)
        with (
            stored_plans() if self.stored else nullcontext(),
            open_topology(self.topology, settings, ManualClock(NOW)) as runner,
        ):
            runner.once()

    def drive(self, drivers: int, kill: bool) -> None:
        """Let drivers run beside each other, and kill them at random moments."""
        limits = [self.random.choice([1, 3, 100]) for _ in range(drivers)]
        work = drive_with_stored_plans if self.stored else drive_copying
        with children(*(Child(work, self.folder, "embedded", limit) for limit in limits)) as started:
            for child in started:
                child.go()
            for child in started if kill else ():
                for _ in range(self.random.randint(0, 2)):
                    child.committed()
                child.process.join(self.random.random() * 0.05)
                self.trial.struck |= child.kill()
            for child in started:
                child.status()

    def take_back(self) -> None:
        """Go back to an earlier microbatch, by a rollback or a RESTORE."""
        table = DeltaTable(self.topology.location)
        if self.random.random() < 0.5:
            table.restore(self.random.randrange(table.version()))
        else:
            with open_topology(self.topology, Settings(engine="embedded"), ManualClock(NOW)) as runner:
                rollback(runner, self.random.randrange(runner.driver.number + 1))
        self.taken_back += 1
        self.trial.struck = True

    def counted(self) -> Counted:
        """Read what is left, undisturbed, and count the rows of the output."""
        self.publish()
        self.run()
        there = DeltaTable(f"{self.folder}/copy").to_pyarrow_table()
        digits, woken = (self.topology.read(state) for state in ("digits", "woken"))
        lost, twice, wrong = counted_rows(self.count, there, digits, woken, self.taken_back)
        report = verify_topology(self.topology, Settings(engine="embedded"), replay=not self.taken_back)
        if report.findings and not self.taken_back:
            wrong += report.findings
        return Counted(lost, twice, (*map(str, report.differences), *wrong), self.trial.struck)


def _trying(act: Callable[[Copying], None], stored: bool = False) -> Callable[[Trial], None]:
    def tried(trial: Trial) -> None:
        copying = Copying(trial, stored)
        copying.publish()
        copying.drive(1, kill=False)
        for _ in range(3):
            copying.publish()
            act(copying)
        trial.result = copying.counted()

    return tried


def _killed_and_taken_back(copying: Copying) -> None:
    copying.drive(1, kill=True)
    copying.take_back()


def _killed(copying: Copying) -> None:
    copying.drive(1, kill=True)


def _raced(copying: Copying) -> None:
    copying.drive(3, kill=copying.random.random() < 0.5)


def _raced_and_taken_back(copying: Copying) -> None:
    _raced(copying)
    copying.take_back()


killed, killed_stored = _trying(_killed), _trying(_killed, stored=True)
raced, raced_stored = _trying(_raced), _trying(_raced, stored=True)
taken_back = _trying(_killed_and_taken_back)
raced_back, raced_back_stored = _trying(_raced_and_taken_back), _trying(_raced_and_taken_back, stored=True)
