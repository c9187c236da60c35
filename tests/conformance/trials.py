"""The trials: what is done to the input, the processes and the files of a writer, before the oracle counts."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tests.conformance import depot, oracle
from tests.conformance.depot import Scenario
from tests.conformance.oracle import Outcome
from tests.conformance.system import System
from tests.conformance.writer import Timing, Writer, WriterError

KILLS = 3
MAX_RESTARTS = 12
QUIET_SECONDS = 30  # longer than a window, the delay and ten seconds of patience


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one trial: how often the fault struck, the number of each kind of defect, None if it cannot tell."""

    system: str
    trial: str
    counts: dict[str, int | None]
    struck: int | None = None
    note: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the writer ended, nothing was wrong, and the fault struck."""
        return not self.note and not any(self.counts.values()) and self.struck != 0


@dataclass(frozen=True, slots=True)
class Reference:
    """An undisturbed run over the plain input."""

    outcome: Outcome
    timing: Timing


class Bench:
    """Where the trials of one system run."""

    def __init__(self, system: System, directory: Path, seed: int, kills: int = KILLS) -> None:
        self.system, self.directory, self.seed, self.kills = system, directory, seed, kills
        self._reference: Reference | None = None

    def writer(self, name: str) -> Writer:
        """Return the system on fresh directories."""
        place = self.directory / self.system.name / name.replace(" ", "-")
        shutil.rmtree(place, ignore_errors=True)
        return Writer(self.system, place)

    def input(self, scenario: Scenario = Scenario.PLAIN) -> list[pa.Table]:
        """Return the versions of the depot."""
        return list(depot.versions(depot.messages(self.seed, scenario)))

    @property
    def reference(self) -> Reference:
        """What the system makes of the plain input if nothing disturbs it; run once."""
        if self._reference is None:
            writer = self.writer("reference")
            depot.append(writer.depot, *self.input(), depot.tail())
            timing = writer.run()
            self._reference = Reference(oracle.read_outcome(self.system, writer.output), timing)
        return self._reference


Trial = Callable[[Bench, Writer], Result]


def undisturbed(bench: Bench, writer: Writer) -> Result:
    """Nothing happens; compared with another such run."""
    depot.append(writer.depot, *bench.input(), depot.tail())
    writer.run()
    return _counted(bench, writer, "undisturbed", expected=bench.reference.outcome)


def killed(bench: Bench, writer: Writer) -> Result:
    """SIGKILL at random moments, each time in what the run before left."""
    chance = random.Random(bench.seed)
    depot.append(writer.depot, *bench.input(), depot.tail())
    max_seconds = bench.reference.timing.rest_seconds / 2
    struck = _repeated(bench.kills, lambda: writer.run_killed_within(max_seconds, chance))
    writer.run()
    return _counted(bench, writer, "SIGKILL", expected=bench.reference.outcome, struck=struck)


def lost_reply(bench: Bench, writer: Writer) -> Result:
    """SIGKILL as soon as a commit to its table is there, so that it never learns of it."""
    chance = random.Random(bench.seed)
    depot.append(writer.depot, *bench.input(), depot.tail())
    last = max(bench.reference.outcome.versions)
    chosen = sorted(chance.sample(range(1, last), min(bench.kills, last - 1)))
    struck = 0
    for version in chosen:
        struck += writer.run_killed_at_commit(max(version, _version(bench, writer) + 1))
        forget_reply(writer.checkpoint)
    writer.run()
    return _counted(bench, writer, "lost reply", expected=bench.reference.outcome, struck=struck)


def lost_checkpoint(bench: Bench, writer: Writer) -> Result:
    """The checkpoint is deleted when half of the input has been read."""
    versions = bench.input()
    half = len(versions) // 2
    depot.append(writer.depot, *versions[:half])
    writer.run()
    shutil.rmtree(writer.checkpoint)
    writer.checkpoint.mkdir()
    depot.append(writer.depot, *versions[half:], depot.tail())
    writer.run()
    return _counted(bench, writer, "lost checkpoint", expected=bench.reference.outcome)


def late_messages(bench: Bench, writer: Writer) -> Result:
    """Some messages come 40 to 60 s late."""
    depot.append(writer.depot, *bench.input(Scenario.LATE), depot.tail())
    writer.run()
    return _counted(bench, writer, "late messages")


def fast_clock(bench: Bench, writer: Writer) -> Result:
    """The clock of one device is three hours ahead."""
    depot.append(writer.depot, *bench.input(Scenario.FAST_CLOCK), depot.tail())
    writer.run()
    return _counted(bench, writer, "fast clock")


def idle_source(bench: Bench, writer: Writer) -> Result:
    """One device falls silent while the others go on, and then they do. The writer is given time, and runs again."""
    depot.append(writer.depot, *bench.input(Scenario.IDLE_SOURCE))
    writer.run()
    time.sleep(QUIET_SECONDS)
    writer.run()
    quiet = oracle.read_outcome(bench.system, writer.output).accounted
    depot.append(writer.depot, depot.tail())
    writer.run()
    return _counted(bench, writer, "idle source", quiet=quiet)


TRIALS: dict[str, Trial] = {
    "undisturbed": undisturbed,
    "SIGKILL": killed,
    "lost reply": lost_reply,
    "lost checkpoint": lost_checkpoint,
    "late messages": late_messages,
    "fast clock": fast_clock,
    "idle source": idle_source,
}


def run_trial(bench: Bench, name: str) -> Result:
    """Run one trial; a writer that fails is a result too."""
    try:
        return TRIALS[name](bench, bench.writer(name))
    except WriterError as error:
        return Result(bench.system.name, name, dict.fromkeys(oracle.COUNTS), note=str(error))


def forget_reply(checkpoint: Path) -> None:
    """Delete the note of the newest microbatch in a checkpoint of Spark, if the writer made one before it was killed.

    Spark notes a microbatch in `offsets` before it begins, and in `commits` after the table has it. A writer without
    such a checkpoint has nothing to forget.
    """
    begun, noted = _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    if noted is not None and noted == begun:
        (checkpoint / "commits" / f"{noted}").unlink()
        (checkpoint / "commits" / f".{noted}.crc").unlink(missing_ok=True)


def _newest(notes: Path) -> int | None:
    numbers = [int(file.name) for file in notes.iterdir() if file.name.isdigit()] if notes.is_dir() else []
    return max(numbers, default=None)


def _version(bench: Bench, writer: Writer) -> int:
    return max(oracle.table_versions(writer.output / bench.system.batches.table), default=-1)


def _repeated(times: int, strike: Callable[[], bool]) -> int:
    """Strike until it has struck so many times, or was tried often enough."""
    struck = 0
    for _ in range(MAX_RESTARTS):
        struck += strike()
        if struck == times:
            break
    return struck


def _counted(
    bench: Bench,
    writer: Writer,
    name: str,
    expected: Outcome | None = None,
    quiet: pa.Table | None = None,
    struck: int | None = None,
) -> Result:
    outcome = oracle.read_outcome(bench.system, writer.output)
    counts = oracle.count(oracle.read_sent(writer.depot), outcome, expected, quiet)
    return Result(bench.system.name, name, counts, struck)
