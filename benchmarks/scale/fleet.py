"""A fleet of devices for hours, with a day of delay, on the embedded engine: does it keep up, and does it stay so?

It is the fleet of the benchmark `delay`: fifty devices with eight metrics a second. A day of it is open before the
soak begins. Then a repeating run takes it ten seconds at a time, of which one message in a hundred is late by up to
nine tenths of a day. Folds happen as their triggers say, and maintenance after each hour of the fleet, as in
`windrow run --interval 10s`: all of it after the first hour, then the ledger's.

The fleet is kept up with if its seconds are a multiple of those that microbatches, folds and maintenance take together.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median

from benchmarks.microbatches import settings
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.memory import MIB, forget_peak, resident
from benchmarks.scale.telling import say
from benchmarks.suite import delay as fleet
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock

DAY = 24 * 3_600
HOUR = "1h"  # the default of `run.maintenance_interval`
MIN_FACTOR = 10  # times real time
MAX_GROWTH = 1.3  # of time and memory: the last tenth of the rounds, next to the second


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--microbatches", type=int, default=1_440, help="of ten seconds each (1,440: four hours)")
    parser.add_argument("--delay", type=int, default=DAY, help="seconds that messages may be late (a day)")


def run(directory: Path, options: Namespace) -> None:
    """Fill, soak, judge."""
    delay = options.delay
    for first in range(0, delay, fleet.PIECE):
        fleet.publish(directory, delay, first, min(fleet.PIECE, delay - first), 0)
    clock = FleetClock(directory, delay, options.microbatches)
    rules = fleet.rules(delay)
    chosen = settings(directory / "depot", directory / "ledger", rules=rules, run={"maintenance_interval": HOUR})
    with open_runner(*tables_of(chosen, None), clock) as runner:
        runner.every(fleet.SECONDS * 1_000_000)
    judge(clock.seconds[1:], clock.peaks[1:])


class FleetClock(WallClock):
    """The fleet's clock: while a run waits for its next round, ten seconds pass at once, and their messages arrive.

    `seconds` and `peaks` (bytes) are those of each round; the first one reads all that was there before.
    """

    def __init__(self, place: Path, delay: int, microbatches: int) -> None:
        """Begin after `delay` seconds of the fleet, and stop after so many microbatches."""
        super().__init__()
        self._place, self._delay, self._microbatches = place, delay, microbatches
        self._began = time.perf_counter()
        self.seconds, self.peaks = list[float](), list[int]()

    def elapsed(self) -> float:
        """Return seconds, those of the fleet that were skipped included."""
        return time.perf_counter() + len(self.seconds) * fleet.SECONDS

    def wait(self, microseconds: int) -> bool:
        """Let the fleet go on."""
        if not microseconds:
            return super().wait(0)
        self.seconds.append(time.perf_counter() - self._began)
        self.peaks.append(resident("VmHWM"))
        self._tell()
        number = len(self.seconds) - 1
        if number == self._microbatches:
            return True
        fleet.publish(self._place, self._delay, self._delay + number * fleet.SECONDS, fleet.SECONDS, fleet.LATE)
        forget_peak()
        self._began = time.perf_counter()
        return False

    def _tell(self) -> None:
        number, tenth = len(self.seconds) - 1, max(self._microbatches // 10, 1)
        if not number:
            say(f"{self._delay:,} s of the fleet before the soak: {self.seconds[0]:.0f} s")
        elif number % tenth == 0:
            seconds = self.seconds[-tenth:]
            say(f"{number:,} rounds: median {median(seconds):.2f} s, longest {max(seconds):.2f} s, "
                f"at most {max(self.peaks[-tenth:]) // MIB:,} MiB")  # fmt: skip


def judge(seconds: list[float], peaks: list[int]) -> None:
    """Say how the fleet was kept up with; raises CheckFailed."""
    tenth = max(len(seconds) // 10, 1)
    factor = len(seconds) * fleet.SECONDS / sum(seconds)
    slower = median(seconds[-tenth:]) / median(seconds[tenth : 2 * tenth])
    larger = max(peaks[-tenth:]) / max(peaks[tenth : 2 * tenth])
    say(f"{factor:.1f} times real time, maintenance included; the last tenth next to the second: {slower:.2f} of the "
        f"time, {larger:.2f} of the memory")  # fmt: skip
    if factor < MIN_FACTOR:
        raise CheckFailed(f"the fleet is kept up with less than {MIN_FACTOR} times")
    if max(slower, larger) > MAX_GROWTH:
        raise CheckFailed(f"the last tenth takes more than {MAX_GROWTH} times as much as the second")
