"""The runner: what is new, microbatch by microbatch, ticks when the log is read to its end, retries with backoff.

The runner reads the depots of a ledger one after the other, each through its reader. It keeps nothing between two
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
        readers: Sequence[DepotReader],
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
        self.summary = Summary(readers[0].engine.name)
        primed = open_ledger(readers, algorithm, clock.now())
        self._cursors = [DepotCursor(reader, state.reached) for reader, state in zip(readers, primed, strict=True)]
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
        while not self._stopped() and (cursor := self._next()):
            self._persist(partial(self._read, cursor))
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
        microbatch = self._microbatch(self._cursors[0])
        processed, reached = work(microbatch.primed, [cursor.reader for cursor in self._cursors])
        self._done(self._cursors[0], microbatch.run_alone(kind, processed, reached))
        for cursor in self._cursors:
            self._microbatch(cursor)
            cursor.covered = -1

    def _set_paused(self, paused: bool) -> None:
        microbatch = self._microbatch(self._cursors[0])
        if microbatch.primed.paused != paused:
            self._done(self._cursors[0], microbatch.run_switch(paused))
        self.summary.paused = paused

    def _running(self, cursor: DepotCursor, wanted: str) -> Microbatch:
        """Prime a microbatch under the settings of the algorithm. Raises Paused."""
        microbatch = self._microbatch(cursor)
        if microbatch.primed.paused:
            raise Paused(f"the ledger is paused: no {wanted} until it goes on", "`windrow resume` first.")
        return self._running(cursor, wanted) if self._followed(cursor, microbatch) else microbatch

    def __getstate__(self) -> dict[str, object]:
        """Leave behind what belongs to this process: on Spark Connect a copy handles what arrives."""
        own = {"_report": _silent, "_retrying": _silent, "_maintain": tuple, "summary": Summary(self.summary.engine)}
        return self.__dict__ | own

    def _stopped(self) -> bool:
        return self.summary.paused or self._clock.wait(0)

    def _next(self) -> DepotCursor | None:
        """Return the reader to read next, None when all depots are read to their ends."""
        behind = [cursor for cursor in self._cursors if cursor.behind()]
        if not self._in_step:
            return min(behind, key=lambda cursor: (cursor.turn, cursor.reader.priority), default=None)
        ahead = {id(cursor): self._time_ahead(cursor) for cursor in behind}
        behind = [cursor for cursor in behind if cursor.behind()]  # without those whose new versions have no rows
        if not behind:
            return None
        first = min(behind, key=lambda cursor: (ahead[id(cursor)], cursor.reader.priority))
        idle = [self._idle_time(cursor) for cursor in self._cursors if cursor not in behind]
        return first if ahead[id(first)] <= min(idle, default=FAR) else None

    def _time_ahead(self, cursor: DepotCursor) -> int:
        """Return the greatest clock after the next version of a depot (microseconds), UNKNOWN if it moves none."""
        known, engine = cursor.known.version, cursor.reader.engine
        if cursor.ahead is None or cursor.ahead[0] != known:
            cursor.ahead, cursor.covered = None, engine.depot().version
            engine.read(known, cursor.covered, partial(self._look_ahead, cursor))
        return cursor.ahead[1] if cursor.ahead else clock.UNKNOWN

    def _look_ahead(self, cursor: DepotCursor, arrivals: Arrivals) -> None:
        known = cursor.known.version
        arrived = arrivals.after(known, 1)
        if arrived is None:
            return
        cursor.covered = -1
        microbatch = self._microbatch(cursor)
        latest = microbatch.started_at + self._settings.max_clock_skew
        summary = arrived.parse(microbatch.primed.partial).summarise(latest)
        after = FloorsByVersion.plan(summary, microbatch.primed.sources.floors).after
        moved = summary["source"].drop_null().combine_chunks().unique()
        cursor.ahead = (known, int(np.max(after.of(moved), initial=clock.UNKNOWN)))

    def _idle_time(self, cursor: DepotCursor) -> int:
        """Return the least idle clock of a depot that is read to its end (microseconds), FAR where it has none."""
        microbatch = self._microbatch(cursor)
        return int(np.min(microbatch.primed.sources.idle(microbatch.started_at).floor, initial=FAR))

    def _read(self, cursor: DepotCursor) -> None:
        cursor.turn = 1 + max(other.turn for other in self._cursors)
        engine = cursor.reader.engine
        upto = engine.depot().version
        if upto > cursor.known.version:
            try:
                elsewhere = engine.read(cursor.known.version, upto, partial(self._process, cursor))
            except LedgerBehind:
                self._microbatch(cursor)  # where another process found it, this one has yet to learn where it stands
                raise
            if elsewhere is not None:
                self._learn(cursor, elsewhere)
        if not (self._stopped() or self._in_step):
            cursor.covered = upto

    def _learn(self, cursor: DepotCursor, elsewhere: pa.Table) -> None:
        """Report what another process committed, and see whether the ledger was paused meanwhile."""
        for committed in committed_in(elsewhere):
            self._done(cursor, committed)
        self._microbatch(cursor)

    def _process(self, cursor: DepotCursor, arrivals: Arrivals) -> None:
        """Run a microbatch for each slice of what arrived, starting each from what the ledger says."""
        while not self._clock.wait(0):
            known = cursor.known.version
            arrived = arrivals.after(known, self._most_messages(), self._upto())
            if arrived is None:
                return
            microbatch = self._microbatch(cursor)
            if microbatch.primed.paused:
                return
            if cursor.known.version + 1 < arrivals.listed.begin:
                raise LedgerBehind(
                    f"the ledger has read depot version {cursor.known.version}, this stream begins at "
                    f"{arrivals.listed.begin}",
                    "The ledger was restored while it was running; the stream starts afresh.",
                )
            if cursor.known.version != known:
                continue
            try:
                if self._followed(cursor, microbatch):
                    continue
                require_listed(arrivals.listed, microbatch.primed.reached, cursor.reader.settings)
                latest = microbatch.started_at + self._settings.max_clock_skew
                self._planned = microbatch.primed.microbatch + 1, max(arrived.expected)
                self._done(cursor, microbatch.run_messages(arrived, latest, arrivals.listed.fingerprints))
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

    def _tick_idle(self, cursor: DepotCursor) -> None:
        microbatch = self._running(cursor, "tick")
        due = self._algorithm.due(microbatch.primed, microbatch.started_at)
        if due is not None:
            self._done(cursor, microbatch.run_tick(due))

    def _tick_to(self, to: int, cursor: DepotCursor) -> None:
        microbatch = self._running(cursor, "tick")
        floors = microbatch.primed.sources.floors
        if np.any(floors.floor < to):
            self._done(cursor, microbatch.run_tick(floors.at_least(to)))

    def _flush(self, cursor: DepotCursor) -> None:
        microbatch = self._running(cursor, "flush")
        primed = microbatch.primed
        idle = primed.sources.idle(microbatch.started_at)
        now = primed.sources.floors.raised(idle.source, idle.floor)
        if primed.open.total[0]:
            self._done(cursor, microbatch.run_tick(now, kind="flush", flush=True))

    def _follow_rules(self) -> None:
        """Bring the settings of the algorithm in force, unless the ledger is paused."""
        for cursor in self._cursors:
            microbatch = self._microbatch(cursor)
            if not microbatch.primed.paused:
                self._followed(cursor, microbatch)

    def _followed(self, cursor: DepotCursor, microbatch: Microbatch) -> bool:
        """Record a change of the settings, with the floors that go with it.

        Returns False when there is none. Every microbatch asks: another driver may have other settings.
        """
        primed = microbatch.primed
        if primed.rules == self._algorithm.settings:
            return False
        self._done(cursor, microbatch.run_tick(self._algorithm.follow(primed), kind="rules"))
        return True

    def _microbatch(self, cursor: DepotCursor) -> Microbatch:
        """Prime a microbatch, and learn from it what somebody else, or a commit without an answer, did meanwhile."""
        reader = cursor.reader
        microbatch = Microbatch(reader.engine, self._algorithm, self._clock, self._attempt, reader.name)
        primed = microbatch.primed
        self._require_moved(primed)
        if primed.depot_version < cursor.known.version:
            cursor.covered = -1
        if primed.microbatch != self._number:
            self._attempt = microbatch.attempt = 1
        cursor.known, self._number = primed.reached, primed.microbatch
        self._options = self._algorithm.options(primed)
        self.summary.paused = primed.paused
        return microbatch

    def _require_moved(self, primed: LedgerState) -> None:
        """Raise TableUnwritable for a ledger that stands where it refused a commit: it would refuse them for ever."""
        refused_at, self._refused_at = self._refused_at, NOWHERE
        self._primed_at = primed.token, primed.fence.table_version
        if self._primed_at == refused_at:
            raise TableUnwritable(
                f"the ledger {self._settings.ledger} refuses a commit as if it had moved, but stands as it was primed",
                "Nothing of it counts. See whether Spark looks at another state of it than the driver.",
            )

    def _done(self, cursor: DepotCursor, committed: Committed) -> None:
        self._attempt = 1
        cursor.known = replace(cursor.known, version=committed.depot_version, fingerprint=None)
        self._number = committed.microbatch
        self.summary.microbatches.append(committed)
        self._report(committed)

    def _persist_each(self, work: Callable[[DepotCursor], None]) -> None:
        for cursor in self._cursors:
            self._persist(partial(work, cursor))

    def _persist(self, work: Callable[[], None]) -> None:
        """Do `work`, again after a failure that may pass, with backoff, up to the limit.

        LedgerMoved and LedgerBehind are no failures: somebody else was faster, and the next prime sees it.
        """
        while True:
            try:
                return work()
            except (LedgerMoved, LedgerBehind) as error:
                self._refused_at = self._primed_at if isinstance(error, LedgerMoved) else NOWHERE
                for cursor in self._cursors:
                    cursor.covered = -1
            except Exception as error:
                if isinstance(error, WindrowError) and not error.retryable:
                    raise
                self._back_off(error)

    def _back_off(self, error: Exception) -> None:
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
