"""Hours of microbatches with folds and maintenance, on one engine: time and memory of each minute, and a picture.

It is the fleet of the benchmark `delay` with an hour of delay: 1.4 million messages are open. Messages of ten seconds
arrive, the run takes them, and so on without a rest, until the minutes are over; maintenance comes after each hour of
the fleet, which is a few minutes here. At the end every message is counted: in batches, rejected, or lost.

Microbatches take longer the more versions the log has (docs/maintenance.md), so versions are kept for an hour only, and
the log is as long as it gets after that. A machine that is there for three hours at a time soaks in several sessions.
`--write` adds a session to the measurements beside this file, and draws all of them; each session begins with new
tables. SIGTERM ends a session early.
"""

from __future__ import annotations

import csv
import signal
import subprocess
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from deltalake import DeltaTable

from benchmarks.microbatches import settings
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.fleet import HOUR, MAX_GROWTH
from benchmarks.scale.memory import MIB, Heap, forget_peak, resident
from benchmarks.scale.sessions import session
from benchmarks.scale.telling import say
from benchmarks.suite import delay as fleet
from windrow.reading import status
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock

DELAY = 3_600  # seconds that messages may be late
MEASUREMENTS = Path(__file__).with_suffix(".csv")
PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "soak.png"
MINUTE = 60
SIZE = (380, 110)  # of a panel of the picture, in pixels


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute of a session: its microbatches, their seconds with folds and maintenance, and the most of the memory.

    `heap_mib` is that of Spark's JVM, 0 without Spark.
    """

    engine: str
    session: int
    commit: str
    minute: int
    microbatches: int
    median_seconds: float
    max_seconds: float
    python_mib: int
    heap_mib: int


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--engine", choices=["embedded", "spark"], default="embedded")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--retention", default="1h", help="how long versions are kept (%(default)s, the least)")
    parser.add_argument("--write", action="store_true", help="add the session to the measurements and the picture")


def run(directory: Path, options: Namespace) -> None:
    """Soak, count, judge."""
    with ExitStack() as stack:
        spark = session("local[2]") if options.engine == "spark" else None
        if spark is not None:
            stack.callback(spark.stop)
        for first in range(0, DELAY, fleet.PIECE):
            fleet.publish(directory, DELAY, first, fleet.PIECE, 0)
        rules = fleet.rules(DELAY)
        depot, ledger = directory / "depot", directory / "ledger"
        kept: dict[str, Any] = {"retention": options.retention, "run": {"maintenance_interval": HOUR}}
        chosen = settings(depot, ledger, spark, rules=rules, **kept)
        clock = SoakClock(directory, options.minutes, None if spark is None else Heap(spark))
        signal.signal(signal.SIGTERM, lambda *_: clock.end())
        with open_runner(*tables_of(chosen, spark), clock) as runner:
            runner.every(fleet.SECONDS * 1_000_000)
        known = read(MEASUREMENTS)
        number = 1 + max((minute.session for minute in known), default=0)
        minutes = clock.by_minute(options.engine, number, head())
        count(depot, ledger)
    if options.write:
        write([*known, *minutes], MEASUREMENTS)
        draw(read(MEASUREMENTS), PICTURE)
    judge(minutes)


class SoakClock(WallClock):
    """The fleet's clock: while a run waits for its next round, ten seconds pass at once, and their messages arrive.

    A round is a microbatch with the folds and the maintenance after it. The minutes begin after the first one, which
    reads what was there before, and go on while messages are written.
    """

    def __init__(self, place: Path, minutes: int, heap: Heap | None) -> None:
        """Stop after so many minutes of rounds."""
        super().__init__()
        self._place, self._minutes, self._heap = place, minutes, heap
        self._soaked = self._started = 0.0
        self._is_ended = False
        self._number = 0
        self._told = 0
        self.rounds = list[
            tuple[float, float, int, int]
        ]()  # seconds since the first, seconds, bytes, bytes of the heap
        self._began = time.perf_counter()

    def elapsed(self) -> float:
        """Return seconds, those of the fleet that were skipped included."""
        return time.perf_counter() + self._number * fleet.SECONDS

    def end(self) -> None:
        """End the session after this round."""
        self._is_ended = True

    def wait(self, microseconds: int) -> bool:
        """Let the fleet go on."""
        if not microseconds:
            return super().wait(0)
        seconds = time.perf_counter() - self._began
        if not self._number:
            self._started = time.perf_counter()
        else:
            self._soaked = time.perf_counter() - self._started
            heap = 0 if self._heap is None else self._heap.peak()
            self.rounds.append((self._soaked, seconds, resident("VmHWM"), heap))
            self._tell()
        if self._is_ended or self._soaked >= self._minutes * MINUTE:
            return True
        fleet.publish(self._place, DELAY, DELAY + self._number * fleet.SECONDS, fleet.SECONDS, fleet.LATE)
        self._number += 1
        forget_peak()
        if self._heap is not None:
            self._heap.forget_peak()
        self._began = time.perf_counter()
        return False

    def _tell(self) -> None:
        """Say every ten minutes how far it is."""
        if self._soaked >= (self._told + 10) * MINUTE:
            self._told += 10
            latest = [seconds for _, seconds, _, _ in self.rounds[-100:]]
            say(f"{self._told} of {self._minutes} minutes, {len(self.rounds):,} rounds, the last hundred "
                f"{median(latest):.2f} s, Python {self.rounds[-1][2] // MIB:,} MiB")  # fmt: skip

    def by_minute(self, engine: str, session: int, commit: str) -> list[Minute]:
        """Return what each minute of the rounds took."""
        minutes: dict[int, list[tuple[float, float, int, int]]] = {}
        for round_ in self.rounds:
            minutes.setdefault(int(round_[0] // MINUTE), []).append(round_)
        return [
            Minute(
                engine,
                session,
                commit,
                minute,
                len(rounds),
                round(median(seconds for _, seconds, _, _ in rounds), 3),
                round(max(seconds for _, seconds, _, _ in rounds), 3),
                max(python for _, _, python, _ in rounds) // MIB,
                max(heap for _, _, _, heap in rounds) // MIB,
            )
            for minute, rounds in minutes.items()
        ]


def count(depot: Path, ledger: Path) -> None:
    """Count all messages; raises CheckFailed if the ledger has more or fewer than the depot."""
    sent = DeltaTable(depot).count()
    now = status(str(depot), str(ledger), WallClock().now())
    here = (
        now.open.message_count
        + now.closed.message_count
        + sum(rejections.message_count for rejections in now.rejections)
    )
    say(f"{sent:,} messages sent, {now.totals.microbatch_count:,} microbatches; {here:,} in batches or rejected")
    if here != sent:
        raise CheckFailed(f"{abs(sent - here):,} messages are {'missing' if here < sent else 'there too often'}")


def judge(minutes: Sequence[Minute]) -> None:
    """Say how the end differs from the beginning; raises CheckFailed."""
    tenth = max(len(minutes) // 10, 1)
    early, late = minutes[tenth : 2 * tenth] or minutes[:1], minutes[-tenth:]
    slower = median(minute.median_seconds for minute in late) / median(minute.median_seconds for minute in early)
    larger = max(minute.python_mib for minute in late) / max(minute.python_mib for minute in early)
    say(f"the last tenth next to the second: {slower:.2f} of the time, {larger:.2f} of the memory")
    if max(slower, larger) > MAX_GROWTH:
        raise CheckFailed(f"the last tenth takes more than {MAX_GROWTH} times as much as the second")


def head() -> str:
    """Return the commit that is soaked."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def read(file: Path) -> list[Minute]:
    """Return the measurements in a file, none without it."""
    if not file.exists():
        return []
    kinds: Mapping[str, Any] = {"int": int, "float": float, "str": str}
    with file.open(encoding="utf-8", newline="") as rows:
        return [
            Minute(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(Minute)})
            for row in csv.DictReader(rows)
        ]


def write(minutes: Iterable[Minute], file: Path) -> None:
    """Write measurements."""
    with file.open("w", encoding="utf-8", newline="") as rows:
        writer = csv.DictWriter(rows, [field.name for field in fields(Minute)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(minute) for minute in minutes)


def draw(minutes: Sequence[Minute], file: Path) -> None:
    """Draw time and memory of each engine, one session after the other."""
    import altair as alt

    rows, before = list[dict[str, Any]](), dict[str, int]()
    for minute in minutes:
        at = before[minute.engine] = before.get(minute.engine, -1) + 1
        rows.append(asdict(minute) | {"hour": at / 60, "memory_mib": minute.python_mib + minute.heap_mib})
    panels = []
    for engine in before:
        own = [row for row in rows if row["engine"] == engine]
        chart = alt.Chart(alt.InlineData(own), width=SIZE[0], height=SIZE[1]).mark_line(strokeWidth=1)
        hours = alt.X("hour:Q", title="hours of microbatches, sessions one after the other")
        colour = alt.Color("session:N", legend=None)
        figures = {"median_seconds": "seconds of a microbatch, median", "memory_mib": "memory at most, MiB"}
        lines = [
            chart.encode(x=hours, y=alt.Y(f"{name}:Q", title=None), color=colour).properties(title=f"{engine}: {title}")
            for name, title in figures.items()
        ]
        panels.append(alt.hconcat(*lines))
    alt.vconcat(*panels).save(str(file), scale_factor=1)
