"""A fleet of devices for hours, with a day of delay, on the embedded engine: does it keep up, and does it stay so?

It is the fleet of the benchmark `delay`: fifty devices with eight metrics a second. A day of it is open before the
soak begins. Then each microbatch takes ten seconds of it, of which one message in a hundred is late by up to nine
tenths of a day. Folds happen as their triggers say. After each hour of the fleet the tables are maintained, as often as
`windrow run --interval` does that.

The fleet is kept up with if its seconds are a multiple of those that microbatches, folds and maintenance take together.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.microbatches import settings
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.memory import MIB, forget_peak, resident
from benchmarks.scale.telling import say
from benchmarks.suite import delay as fleet
from benchmarks.turns import timed
from windrow.runtime.maintenance import maintain
from windrow.runtime.opening import tables_of
from windrow.runtime.wall_clock import WallClock

DAY = 24 * 3_600
MAINTAINED_AFTER = 360  # microbatches: an hour, the default of `run.maintenance_interval`
LEAST = 10  # times real time
MOST = 1.3  # of time and memory: the last tenth of the microbatches, next to the second


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--microbatches", type=int, default=1_440, help="of ten seconds each (1,440: four hours)")
    parser.add_argument("--delay", type=int, default=DAY, help="seconds that messages may be late (a day)")


def run(directory: Path, asked: Namespace) -> None:
    """Fill, soak, judge."""
    delay = asked.delay
    for first in range(0, delay, fleet.PIECE):
        fleet.publish(directory, delay, first, min(fleet.PIECE, delay - first), 0)
    with ExitStack() as until:
        one = fleet.fleet(until, directory, delay, None)
        say(f"{delay:,} s of the fleet before the soak: {one():.0f} s")
        seconds, peaks, maintained = soaked(directory, one, asked)
    judge(seconds, peaks, maintained)


def soaked(directory: Path, one: fleet.Run, asked: Namespace) -> tuple[list[float], list[int], float]:
    """Return the seconds and the peak in bytes of each microbatch, and the seconds of maintenance."""
    seconds, peaks, maintained = list[float](), list[int](), 0.0
    tenth = max(asked.microbatches // 10, 1)
    for number in range(asked.microbatches):
        fleet.publish(directory, asked.delay, asked.delay + number * fleet.SECONDS, fleet.SECONDS, fleet.LATE)
        forget_peak()
        seconds.append(one())
        peaks.append(resident("VmHWM"))
        if (number + 1) % MAINTAINED_AFTER == 0:
            source, ledger = tables_of(settings(directory / "depot", directory / "ledger"), None)
            maintained += timed(lambda: maintain([source], ledger, WallClock().now()))  # noqa: B023 - called at once
        if number % tenth == tenth - 1:
            say(
                f"{number + 1:,} microbatches: median {median(seconds[-tenth:]):.2f} s, "
                f"longest {max(seconds[-tenth:]):.2f} s, at most {max(peaks[-tenth:]) // MIB:,} MiB, "
                f"maintenance {maintained:.0f} s so far"
            )
    return seconds, peaks, maintained


def judge(seconds: list[float], peaks: list[int], maintained: float) -> None:
    """Say how the fleet was kept up with; raises NotAsItShouldBe."""
    tenth = max(len(seconds) // 10, 1)
    factor = len(seconds) * fleet.SECONDS / (sum(seconds) + maintained)
    slower = median(seconds[-tenth:]) / median(seconds[tenth : 2 * tenth])
    larger = max(peaks[-tenth:]) / max(peaks[tenth : 2 * tenth])
    say(f"{factor:.1f} times real time, maintenance included; the last tenth next to the second: {slower:.2f} of the "
        f"time, {larger:.2f} of the memory")  # fmt: skip
    if factor < LEAST:
        raise CheckFailed(f"the fleet is kept up with less than {LEAST} times")
    if max(slower, larger) > MOST:
        raise CheckFailed(f"the last tenth takes more than {MOST} times as much as the second")
