"""Faults of a topology whose state gets other columns: kills, and drivers of several versions at once.

Whatever happens, each row counts once, in the unit of the last version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import pyarrow as pa
import pyarrow.compute as pc

from tests.clocks import NOW, ManualClock
from tests.faults.trials.outputs import FOLDS, published
from tests.faults.trials.processes import Child, children
from tests.faults.trials.trial import Counted, Trial
from windrow.errors import IncompatibleTableError
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, Topology
from windrow.topology.running import open_topology
from windrow.topology.verify import verify_topology

TYPES = {"BIGINT": pa.int64(), "DOUBLE": pa.float64()}


def counting(folder: str, version: int) -> Topology:
    """Return a topology that counts numbers by their last digit; each version counts in tenths of the one before."""
    kind = ("BIGINT", "DOUBLE")[version % 2]

    def in_tenths(rows: pa.Table) -> pa.Table:
        before = 10 ** (version - int(rows["unit"][0].as_py()) if rows.num_rows else 0)
        times = pc.multiply(rows["times"].cast(TYPES[kind]), before)
        units = pa.array([version] * rows.num_rows, pa.int64())
        return pa.table({"digit": rows["digit"], "times": times, "unit": units})

    topology = Topology("counting", {"numbers": f"{folder}/numbers"}, f"{folder}/states")
    value = f"times {kind}, unit BIGINT"
    topology.state("digits", value, "digit BIGINT", version=version, migrate=in_tenths, initial={"unit": version})

    @topology.function
    def count(microbatch: Microbatch) -> None:
        digits = pc.subtract(rows := microbatch.rows("numbers")["number"], pc.multiply(pc.divide(rows, 10), 10))
        once = pa.repeat(pa.scalar(10**version, TYPES[kind]), len(digits))
        microbatch.state("digits").combine(pa.table({"digit": digits, "once": once}), times=("once", "sum"))

    return topology


def drive_counting(pipe: Connection, folder: str, version: int, limit: int) -> None:
    """Be a driver of a version of the topology; one of before stops."""
    settings = Settings(engine="embedded", max_messages=limit, **FOLDS)
    pipe.send("ready")
    pipe.recv()
    with (
        suppress(IncompatibleTableError),
        open_topology(counting(folder, version), settings, ManualClock(NOW)) as runner,
    ):
        runner.once()


class Counting:
    """The tables of a topology, and the version that its state has come to."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.random, self.folder = trial, trial.random, str(trial.folder)
        self.count, self.version = 0, 1

    def publish(self) -> None:
        """Append a few versions of numbers that go on."""
        self.count = published(self.folder, self.count, self.random)

    def drive(self, versions: list[int], kill: bool) -> None:
        """Let drivers of these versions run beside each other, and perhaps kill them at random moments."""
        limit = self.random.choice([1, 3, 100])
        with children(*(Child(drive_counting, self.folder, version, limit) for version in versions)) as started:
            for child in started:
                child.go()
            for child in started if kill else ():
                child.process.join(self.random.random() * 0.4)
                self.trial.struck |= child.kill()
            for child in started:
                child.status()

    def counted(self) -> Counted:
        """Read what is left, undisturbed, and compare."""
        self.publish()
        self.drive([self.version], kill=False)
        topology = counting(self.folder, self.version)
        digits = Counter(number % 10 for number in range(self.count))
        rows = {row["digit"]: row["times"] for row in topology.read("digits").to_pylist()}
        wrong = [] if rows == {digit: times * 10**self.version for digit, times in digits.items()} else [f"{rows}"]
        report = verify_topology(topology, Settings(engine="embedded"), replay=True)
        return Counted(0, 0, (*map(str, report.differences), *report.findings, *wrong), self.trial.struck)


def _trying(act: Callable[[Counting], None]) -> Callable[[Trial], None]:
    def tried(trial: Trial) -> None:
        counting = Counting(trial)
        counting.publish()
        counting.drive([1], kill=False)
        for _ in range(3):
            counting.publish()
            counting.version += 1
            act(counting)
        trial.result = counting.counted()

    return tried


def _raced(counting: Counting) -> None:
    counting.drive([counting.version, counting.version - 1, counting.version], kill=counting.random.random() < 0.5)
    counting.trial.struck = True


killed = _trying(lambda counting: counting.drive([counting.version], kill=True))
raced = _trying(_raced)
