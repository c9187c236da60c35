"""The runner: what is new, microbatch by microbatch, ticks when the log is read to its end, retries with backoff.

The runner reads the depots of a ledger one after the other, each through its inlet. It keeps nothing between two
microbatches but the count of failed attempts: all else is read from the ledger, so it may die at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.engine.arrivals import Arrivals
from windrow.engine.result import MicrobatchResult
from windrow.errors import (
    LedgerBehind,
    LedgerMoved,
    MicrobatchFailed,
    Paused,
    TableUnwritable,
    WindrowError,
    first_line,
)
from windrow.model import clock
from windrow.model.clock import Clock
from windrow.model.floors import FloorsByVersion
from windrow.model.results import Committed, Kind, Maintained, committed_in
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.microbatch import Microbatch
from windrow.runtime.opening import DepotCursor, DepotReader, open_ledger, require_listed
from windrow.runtime.progress import LedgerState, Reached
from windrow.settings.settings import Settings

FIRST_BACKOFF = 500_000
LONGEST_BACKOFF = 30_000_000
FAR = np.iinfo(np.int64).max
NOWHERE = "", -1  # no token and version of a ledger


@dataclass(slots=True)
class Summary:
    """What a run did: its microbatches in order, and between them what was done to the files of the tables."""

    engine: str
    microbatches: list[Committed] = field(default_factory=list)
    paused: bool = False
    maintained: list[Maintained] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Return the sum of a count over all microbatches."""
        return sum(getattr(microbatch, name) for microbatch in self.microbatches)


class Runner:
    """Runs microbatches of one ledger. `report` is called after each commit, `retrying` before each retry.

    `maintain` is called between microbatches of a run that goes on, and says what it did.
    """

    def __init__(
        self,
        inlets: Sequence[DepotReader],
        algorithm: Algorithm,
        settings: Settings,
        clock: Clock,
        report: Callable[[Committed], None] = lambda committed: None,
        retrying: Callable[[Exception, int], None] = lambda error, attempt: None,
        maintain: Callable[[], Iterable[Maintained]] = tuple,
        in_step: bool = False,
    ) -> None:
        """Open the ledger, or create it at the place where `start_from` says. Raises as `open_ledger` does.

        With `in_step` no depot is read beyond the time that all others have reached.
        """
        self._algorithm, self._settings, self._clock = algorithm, settings, clock
        self._report, self._retrying, self._maintain = report, retrying, maintain
        self._attempt, self._planned, self._in_step = 1, (0, 0), in_step
        self._primed_at = self._refused_at = NOWHERE
        self.summary = Summary(inlets[0].engine.name)
        primed = open_ledger(inlets, algorithm, clock.now())
        self._readings = [DepotCursor(inlet, state.reached) for inlet, state in zip(inlets, primed, strict=True)]
        self._number, self._options = primed[-1].microbatch, algorithm.options(primed[-1])

    def once(self) -> Summary:
        """Read the depot to its end, then close what is overdue; stop between microbatches when the clock says so.

        A paused ledger is left as it is.
        """
        return self._round(lambda: None)

    def every(self, pause: int) -> Summary:
        """Run `once` again and again, `pause` microseconds apart, until the clock says stop; maintain in between."""
        while True:
            before = len(self.summary.microbatches)
            self._round(self._look_after)
            if self._clock.wait(self._rest(pause, len(self.summary.microbatches) == before)):
                return self.summary

    def _rest(self, pause: int, idle: bool) -> int:
        """Return how long to wait for the next round (microseconds): `idle` when this one found nothing."""
        options = self._options
        if idle and options.idle_sleep is not None:
            return options.idle_sleep
        return pause if options.trigger_interval is None else options.trigger_interval

    def _round(self, between: Callable[[], None]) -> Summary:
        """Do what there is to do, and what is to be done between: also where the end of the depot is never reached."""
        self._persist(self._follow_rules)
        if self.summary.paused:
            return self.summary
        while not self._stopped() and (reading := self._next()):
            self._persist(partial(self._read, reading))
            between()
        if not self._stopped() and self._settings.idle_timeout is not None:
            with suppress(Paused):
                self._persist_each(self._tick_idle)
        between()
        return self.summary

    def _look_after(self) -> None:
        """Maintain the tables, unless somebody paused the ledger and wants to find it as it was."""
        if not self.summary.paused:
            self.summary.maintained.extend(self._maintain())

    def tick(self, to: int | None = None) -> Summary:
        """Close what is overdue now (the idle tick), or raise the floor of every source to `to` (microseconds)."""
        self._persist_each(self._tick_idle if to is None else partial(self._tick_to, to))
        return self.summary

    def flush(self) -> Summary:
        """Close all that is open, each source at its floor or idle clock, whichever is later."""
        self._persist_each(self._flush)
        return self.summary

    def pause(self) -> Summary:
        """Record that no microbatch shall run until `resume`; one that is at work elsewhere is fenced."""
        self._persist(lambda: self._set_paused(True))
        return self.summary

    def resume(self) -> Summary:
        """Record that microbatches may run again."""
        self._persist(lambda: self._set_paused(False))
        return self.summary

    def alone(
        self, kind: Kind, work: Callable[[LedgerState, list[DepotReader]], tuple[MicrobatchResult, Reached | None]]
    ) -> Summary:
        """Commit what `work` makes of the ledger as it stands, in a microbatch of its own, whether paused or not."""
        self._persist(partial(self._alone, kind, work))
        return self.summary

    def _alone(
        self, kind: Kind, work: Callable[[LedgerState, list[DepotReader]], tuple[MicrobatchResult, Reached | None]]
    ) -> None:
        microbatch = self._microbatch(self._readings[0])
        processed, reached = work(microbatch.primed, [reading.inlet for reading in self._readings])
        self._done(self._readings[0], microbatch.run_alone(kind, processed, reached))
        for reading in self._readings:
            self._microbatch(reading)
            reading.covered = -1

    def _set_paused(self, paused: bool) -> None:
        microbatch = self._microbatch(self._readings[0])
        if microbatch.primed.paused != paused:
            self._done(self._readings[0], microbatch.run_switch(paused))
        self.summary.paused = paused

    def _running(self, reading: DepotCursor, wanted: str) -> Microbatch:
        """Prime a microbatch under the settings of the algorithm. Raises Paused."""
        microbatch = self._microbatch(reading)
        # guard: paused-takes-no-tick
        if microbatch.primed.paused:
            raise Paused(f"the ledger is paused: no {wanted} until it goes on", "`windrow resume` first.")
        # guard: tick-follows-rules
        return self._running(reading, wanted) if self._followed(reading, microbatch) else microbatch

    def __getstate__(self) -> dict[str, object]:
        """Leave behind what belongs to this process: on Spark Connect a copy handles what arrives."""
        own = {"_report": _silent, "_retrying": _silent, "_maintain": tuple, "summary": Summary(self.summary.engine)}
        return self.__dict__ | own

    def _stopped(self) -> bool:
        return self.summary.paused or self._clock.wait(0)

    def _next(self) -> DepotCursor | None:
        """Return the inlet to read next, None when all depots are read to their ends."""
        behind = [reading for reading in self._readings if reading.behind()]
        if not self._in_step:
            return min(behind, key=lambda reading: (reading.turn, reading.inlet.priority), default=None)
        ahead = {id(reading): self._time_ahead(reading) for reading in behind}
        behind = [reading for reading in behind if reading.behind()]  # without those whose new versions have no rows
        if not behind:
            return None
        first = min(behind, key=lambda reading: (ahead[id(reading)], reading.inlet.priority))
        idle = [self._idle_time(reading) for reading in self._readings if reading not in behind]
        return first if ahead[id(first)] <= min(idle, default=FAR) else None

    def _time_ahead(self, reading: DepotCursor) -> int:
        """Return the greatest clock after the next version of a depot (microseconds), UNKNOWN if it moves none."""
        known, engine = reading.known.version, reading.inlet.engine
        if reading.ahead is None or reading.ahead[0] != known:
            reading.ahead, reading.covered = None, engine.depot().version
            engine.read(known, reading.covered, partial(self._look_ahead, reading))
        return reading.ahead[1] if reading.ahead else clock.UNKNOWN

    def _look_ahead(self, reading: DepotCursor, arrivals: Arrivals) -> None:
        known = reading.known.version
        arrived = arrivals.after(known, 1)
        if arrived is None:
            return
        reading.covered = -1
        microbatch = self._microbatch(reading)
        latest = microbatch.started_at + self._settings.max_clock_skew
        summary = arrived.formatted(microbatch.primed.partial).summarise(latest)
        after = FloorsByVersion.plan(summary, microbatch.primed.sources.floors).after
        moved = summary["source"].drop_null().combine_chunks().unique()
        reading.ahead = (known, int(np.max(after.of(moved), initial=clock.UNKNOWN)))

    def _idle_time(self, reading: DepotCursor) -> int:
        """Return the least idle clock of a depot that is read to its end (microseconds), FAR where it has none."""
        microbatch = self._microbatch(reading)
        return int(np.min(microbatch.primed.sources.idle(microbatch.started_at).floor, initial=FAR))

    def _read(self, reading: DepotCursor) -> None:
        reading.turn = 1 + max(other.turn for other in self._readings)
        engine = reading.inlet.engine
        upto = engine.depot().version
        if upto > reading.known.version:
            try:
                elsewhere = engine.read(reading.known.version, upto, partial(self._process, reading))
            except LedgerBehind:
                # guard: back-seen-elsewhere
                self._microbatch(reading)  # where another process found it, this one has yet to learn where it stands
                raise
            if elsewhere is not None:
                self._learn(reading, elsewhere)
        # guard: cut-short-is-read-again
        if not (self._stopped() or self._in_step):
            reading.covered = upto

    def _learn(self, reading: DepotCursor, elsewhere: pa.Table) -> None:
        """Report what another process committed, and see whether the ledger was paused meanwhile."""
        for committed in committed_in(elsewhere):
            self._done(reading, committed)
        self._microbatch(reading)

    def _process(self, reading: DepotCursor, arrivals: Arrivals) -> None:
        """Run a microbatch for each slice of what arrived, starting each from what the ledger says."""
        # guard: stop-between-microbatches
        while not self._clock.wait(0):
            known = reading.known.version
            arrived = arrivals.after(known, self._most_messages(), self._upto())
            if arrived is None:
                return
            microbatch = self._microbatch(reading)
            # guard: paused-takes-no-microbatch
            if microbatch.primed.paused:
                return
            # guard: stream-begins-in-time
            if reading.known.version + 1 < arrivals.listed.begin:
                raise LedgerBehind(
                    f"the ledger has read depot version {reading.known.version}, this stream begins at "
                    f"{arrivals.listed.begin}",
                    "The ledger was restored while it was running; the stream starts afresh.",
                )
            # guard: filtered-by-version
            if reading.known.version != known:
                continue
            try:
                # guard: microbatch-follows-rules
                if self._followed(reading, microbatch):
                    continue
                # guard: listed-of-known-depot
                require_listed(arrivals.listed, microbatch.primed.reached, reading.inlet.settings)
                latest = microbatch.started_at + self._settings.max_clock_skew
                self._planned = microbatch.primed.microbatch + 1, max(arrived.expected)
                self._done(reading, microbatch.run_messages(arrived, latest, arrivals.listed.marks))
                if self._in_step:
                    return
            except LedgerMoved:
                self._refused_at = self._primed_at

    def _upto(self) -> int | None:
        """Return up to which version the next microbatch reads if it failed before: each attempt gets the same."""
        number, upto = self._planned
        return upto if number == self._number + 1 and self._attempt > 1 else None

    def _most_messages(self) -> int:
        """Return how many messages a microbatch takes at most: in step it is one version."""
        return 1 if self._in_step else self._options.max_messages or self._settings.max_messages

    def _tick_idle(self, reading: DepotCursor) -> None:
        microbatch = self._running(reading, "tick")
        due = self._algorithm.due(microbatch.primed, microbatch.started_at)
        if due is not None:
            self._done(reading, microbatch.run_tick(due))

    def _tick_to(self, to: int, reading: DepotCursor) -> None:
        microbatch = self._running(reading, "tick")
        floors = microbatch.primed.sources.floors
        if np.any(floors.floor < to):
            self._done(reading, microbatch.run_tick(floors.at_least(to)))

    def _flush(self, reading: DepotCursor) -> None:
        microbatch = self._running(reading, "flush")
        primed = microbatch.primed
        idle = primed.sources.idle(microbatch.started_at)
        now = primed.sources.floors.raised(idle.source, idle.floor)
        if primed.open.total[0]:
            self._done(reading, microbatch.run_tick(now, kind="flush", flush=True))

    def _follow_rules(self) -> None:
        """Bring the settings of the algorithm in force, unless the ledger is paused."""
        for reading in self._readings:
            microbatch = self._microbatch(reading)
            # guard: paused-follows-no-rules
            if not microbatch.primed.paused:
                self._followed(reading, microbatch)

    def _followed(self, reading: DepotCursor, microbatch: Microbatch) -> bool:
        """Record a change of the settings, with the floors that go with it.

        Returns False when there is none. Every microbatch asks: another driver may have other settings.
        """
        primed = microbatch.primed
        if primed.rules == self._algorithm.settings:
            return False
        self._done(reading, microbatch.run_tick(self._algorithm.follow(primed), kind="rules"))
        return True

    def _microbatch(self, reading: DepotCursor) -> Microbatch:
        """Prime a microbatch, and learn from it what somebody else, or a commit without an answer, did meanwhile."""
        inlet = reading.inlet
        microbatch = Microbatch(inlet.engine, self._algorithm, self._clock, self._attempt, inlet.name)
        primed = microbatch.primed
        self._require_moved(primed)
        # guard: back-is-read-again
        if primed.depot_version < reading.known.version:
            reading.covered = -1
        if primed.microbatch != self._number:
            # guard: attempts-anew
            self._attempt = microbatch.attempt = 1
        reading.known, self._number = primed.reached, primed.microbatch
        self._options = self._algorithm.options(primed)
        self.summary.paused = primed.paused
        return microbatch

    def _require_moved(self, primed: LedgerState) -> None:
        """Raise TableUnwritable for a ledger that stands where it refused a commit: it would refuse them for ever."""
        refused_at, self._refused_at = self._refused_at, NOWHERE
        self._primed_at = primed.token, primed.fence.table_version
        # guard: refusal-told
        if self._primed_at == refused_at:
            raise TableUnwritable(
                f"the ledger {self._settings.ledger} refuses a commit as if it had moved, but stands as it was primed",
                "Nothing of it counts. See whether Spark looks at another state of it than the driver.",
            )

    def _done(self, reading: DepotCursor, committed: Committed) -> None:
        self._attempt = 1
        reading.known = replace(reading.known, version=committed.depot_version, mark=None)
        self._number = committed.microbatch
        self.summary.microbatches.append(committed)
        self._report(committed)

    def _persist_each(self, work: Callable[[DepotCursor], None]) -> None:
        for reading in self._readings:
            self._persist(partial(work, reading))

    def _persist(self, work: Callable[[], None]) -> None:
        """Do `work`, again after a failure that may pass, with backoff, up to the limit.

        LedgerMoved and LedgerBehind are no failures: somebody else was faster, and the next prime sees it.
        """
        while True:
            try:
                return work()
            except (LedgerMoved, LedgerBehind) as error:
                self._refused_at = self._primed_at if isinstance(error, LedgerMoved) else NOWHERE
                for reading in self._readings:
                    reading.covered = -1
            except Exception as error:
                # guard: not-retryable
                if isinstance(error, WindrowError) and not error.retryable:
                    raise
                self._back_off(error)

    def _back_off(self, error: Exception) -> None:
        # guard: retries-limit
        if self._attempt > self._settings.retries:
            hint = f"{error.hint} " if isinstance(error, WindrowError) and error.hint else ""
            raise MicrobatchFailed(
                f"failed {self._attempt} times, at last with: {first_line(error)}",
                f"{hint}What was committed stays; the next run goes on from there.",
            ) from error
        self._retrying(error, self._attempt)
        pause = min(FIRST_BACKOFF * 2 ** (self._attempt - 1), LONGEST_BACKOFF)
        self._attempt += 1
        if self._clock.wait(pause):
            raise error


def _silent(*_: object) -> None:
    """Say nothing."""
