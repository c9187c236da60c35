"""The run loop: one microbatch after another, ticks at the end of the log, retries with backoff.

The runner reads the depots of a ledger in turn, each through its `DepotReader`. Between two microbatches it keeps only
the number of failed attempts; everything else is read from the ledger, so the runner may die at any point.
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
    """What a run did: its microbatches in order, and the maintenance between them."""

    engine: str
    microbatches: list[Committed] = field(default_factory=list)
    paused: bool = False
    maintained: list[Maintained] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Return the sum of a count over all microbatches."""
        return sum(getattr(microbatch, name) for microbatch in self.microbatches)


class Runner:
    """Runs microbatches of one ledger. `report` is called after each commit, `retrying` before each retry.

    `maintain` is called between the microbatches of a repeating run, and returns what it did.
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
        """Open the ledger, or create it where `start_from` begins. Raises the errors of `open_ledger`.

        With `in_step`, no depot is read beyond the time that all others have reached.
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
        """Read the depots to their ends, then close overdue batches; stop between microbatches if the clock says so.

        A paused ledger is left unchanged.
        """
        return self._round(lambda: None)

    def every(self, pause: int) -> Summary:
        """Run `once` every `pause` microseconds until the clock says stop, with table maintenance in between."""
        while True:
            before = len(self.summary.microbatches)
            self._round(self._maintain_tables)
            if self._clock.wait(self._pause_after_round(pause, len(self.summary.microbatches) == before)):
                return self.summary

    def _pause_after_round(self, pause: int, idle: bool) -> int:
        """Return how long to wait before the next round (microseconds); `idle` if this round found nothing."""
        options = self._options
        if idle and options.idle_sleep is not None:
            return options.idle_sleep
        return pause if options.trigger_interval is None else options.trigger_interval

    def _round(self, between: Callable[[], None]) -> Summary:
        """Read all depots to their ends and tick; call `between` after each read, because a depot may never end."""
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

    def _maintain_tables(self) -> None:
        """Maintain the tables, unless the ledger is paused: a pause should leave it unchanged."""
        if not self.summary.paused:
            self.summary.maintained.extend(self._maintain())

    def tick(self, to: int | None = None) -> Summary:
        """Close the batches that are overdue now (an idle tick), or raise all floors to `to` (microseconds)."""
        self._persist_each(self._tick_idle if to is None else partial(self._tick_to, to))
        return self.summary

    def flush(self) -> Summary:
        """Close all open batches, each source at the later of its floor and its idle clock."""
        self._persist_each(self._flush)
        return self.summary

    def pause(self) -> Summary:
        """Pause the ledger until `resume`; a microbatch in progress in another process is fenced."""
        self._persist(lambda: self._set_paused(True))
        return self.summary

    def resume(self) -> Summary:
        """End a pause: microbatches may run again."""
        self._persist(lambda: self._set_paused(False))
        return self.summary

    def alone(
        self, kind: Kind, work: Callable[[LedgerState, list[DepotReader]], tuple[MicrobatchResult, Reached | None]]
    ) -> Summary:
        """Commit the result of `work` as a separate microbatch, whether the ledger is paused or not."""
        self._persist(partial(self._alone, kind, work))
        return self.summary

    def _alone(
        self, kind: Kind, work: Callable[[LedgerState, list[DepotReader]], tuple[MicrobatchResult, Reached | None]]
    ) -> None:
        microbatch = self._microbatch(self._cursors[0])
        processed, reached = work(microbatch.primed, [cursor.reader for cursor in self._cursors])
        self._record(self._cursors[0], microbatch.run_alone(kind, processed, reached))
        for cursor in self._cursors:
            self._microbatch(cursor)
            cursor.covered = -1

    def _set_paused(self, paused: bool) -> None:
        microbatch = self._microbatch(self._cursors[0])
        if microbatch.primed.paused != paused:
            self._record(self._cursors[0], microbatch.run_switch(paused))
        self.summary.paused = paused

    def _unpaused(self, cursor: DepotCursor, wanted: str) -> Microbatch:
        """Prime a microbatch, after recording changed settings of the algorithm. Raises Paused."""
        microbatch = self._microbatch(cursor)
        # guard: paused-takes-no-tick
        if microbatch.primed.paused:
            raise Paused(f"the ledger is paused, so there can be no {wanted}", "Run `windrow resume` first.")
        # guard: tick-follows-rules
        return self._unpaused(cursor, wanted) if self._followed(cursor, microbatch) else microbatch

    def __getstate__(self) -> dict[str, object]:
        """Drop what belongs to this process: on Spark Connect a copy in another process handles the arrivals."""
        own = {"_report": _silent, "_retrying": _silent, "_maintain": tuple, "summary": Summary(self.summary.engine)}
        return self.__dict__ | own

    def _stopped(self) -> bool:
        return self.summary.paused or self._clock.wait(0)

    def _next(self) -> DepotCursor | None:
        """Return the depot to read next, None if all are read to their ends."""
        behind = [cursor for cursor in self._cursors if cursor.behind()]
        if not self._in_step:
            return min(behind, key=lambda cursor: (cursor.turn, cursor.reader.priority), default=None)
        ahead = {id(cursor): self._time_ahead(cursor) for cursor in behind}
        behind = [cursor for cursor in behind if cursor.behind()]  # without depots whose new versions have no rows
        if not behind:
            return None
        first = min(behind, key=lambda cursor: (ahead[id(cursor)], cursor.reader.priority))
        idle = [self._idle_time(cursor) for cursor in self._cursors if cursor not in behind]
        return first if ahead[id(first)] <= min(idle, default=FAR) else None

    def _time_ahead(self, cursor: DepotCursor) -> int:
        """Return the greatest clock after a depot's next version (microseconds), UNKNOWN if it moves no clock."""
        known, engine = cursor.known.depot_version, cursor.reader.engine
        if cursor.ahead is None or cursor.ahead[0] != known:
            cursor.ahead, cursor.covered = None, engine.depot().version
            engine.read(known, cursor.covered, partial(self._note_time_ahead, cursor))
        return cursor.ahead[1] if cursor.ahead else clock.UNKNOWN

    def _note_time_ahead(self, cursor: DepotCursor, arrivals: Arrivals) -> None:
        known = cursor.known.depot_version
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
        """Return the least idle clock of a depot that is read to its end (microseconds), FAR if it has none."""
        microbatch = self._microbatch(cursor)
        return int(np.min(microbatch.primed.sources.idle(microbatch.started_at).floor, initial=FAR))

    def _read(self, cursor: DepotCursor) -> None:
        cursor.turn = 1 + max(other.turn for other in self._cursors)
        engine = cursor.reader.engine
        upto = cursor.latest
        if upto > cursor.known.depot_version:
            try:
                elsewhere = engine.read(cursor.known.depot_version, upto, partial(self._process, cursor))
            except LedgerBehind:
                # guard: back-seen-elsewhere
                self._microbatch(cursor)  # where another process found it, this one has yet to learn where it stands
                raise
            if elsewhere is not None:
                self._record_elsewhere(cursor, elsewhere)
        # guard: cut-short-is-read-again
        if not (self._stopped() or self._in_step):
            cursor.covered = upto

    def _record_elsewhere(self, cursor: DepotCursor, elsewhere: pa.Table) -> None:
        """Record the commits of another process, and check whether the ledger was paused meanwhile."""
        for committed in committed_in(elsewhere):
            self._record(cursor, committed)
        self._microbatch(cursor)

    def _process(self, cursor: DepotCursor, arrivals: Arrivals) -> None:
        """Run one microbatch for each slice of the arrivals, each from the state in the ledger."""
        # guard: stop-between-microbatches
        while not self._clock.wait(0):
            known = cursor.known.depot_version
            arrived = arrivals.after(known, self._most_messages(), self._failed_upto())
            if arrived is None:
                return
            microbatch = self._microbatch(cursor)
            # guard: paused-takes-no-microbatch
            if microbatch.primed.paused:
                return
            # guard: stream-begins-in-time
            if cursor.known.depot_version + 1 < arrivals.listed.begin:
                raise LedgerBehind(
                    f"the stream begins at depot version {arrivals.listed.begin}, but the ledger has read up to "
                    f"{cursor.known.depot_version}",
                    "The ledger was restored during the run; the stream starts again.",
                )
            # guard: filtered-by-version
            if cursor.known.depot_version != known:
                continue
            try:
                # guard: microbatch-follows-rules
                if self._followed(cursor, microbatch):
                    continue
                # guard: listed-of-known-depot
                require_listed(arrivals.listed, microbatch.primed.reached, cursor.reader.settings)
                latest = microbatch.started_at + self._settings.max_clock_skew
                self._planned = microbatch.primed.microbatch + 1, max(arrived.expected)
                self._record(cursor, microbatch.run_messages(arrived, latest, arrivals.listed.fingerprints))
                if self._in_step:
                    return
            except LedgerMoved:
                self._refused_at = self._primed_at

    def _failed_upto(self) -> int | None:
        """Return the version up to which a failed microbatch read, so that each attempt reads the same; else None."""
        number, upto = self._planned
        return upto if number == self._number + 1 and self._attempt > 1 else None

    def _most_messages(self) -> int:
        """Return the most messages of a microbatch; in step it takes one version."""
        return 1 if self._in_step else self._options.max_messages or self._settings.max_messages

    def _tick_idle(self, cursor: DepotCursor) -> None:
        microbatch = self._unpaused(cursor, "tick")
        due = self._algorithm.due(microbatch.primed, microbatch.started_at)
        if due is not None:
            self._record(cursor, microbatch.run_tick(due))

    def _tick_to(self, to: int, cursor: DepotCursor) -> None:
        microbatch = self._unpaused(cursor, "tick")
        floors = microbatch.primed.sources.floors
        if np.any(floors.floor < to):
            self._record(cursor, microbatch.run_tick(floors.at_least(to)))

    def _flush(self, cursor: DepotCursor) -> None:
        microbatch = self._unpaused(cursor, "flush")
        primed = microbatch.primed
        idle = primed.sources.idle(microbatch.started_at)
        now = primed.sources.floors.raised(idle.source, idle.floor)
        if primed.open.total[0]:
            self._record(cursor, microbatch.run_tick(now, "flush"))

    def _follow_rules(self) -> None:
        """Record changed settings of the algorithm, unless the ledger is paused."""
        for cursor in self._cursors:
            microbatch = self._microbatch(cursor)
            # guard: paused-follows-no-rules
            if not microbatch.primed.paused:
                self._followed(cursor, microbatch)

    def _followed(self, cursor: DepotCursor, microbatch: Microbatch) -> bool:
        """Record a change of the algorithm's settings, with the floors that belong to it.

        Returns False if they are unchanged. Every microbatch checks this: another driver may have other settings.
        """
        primed = microbatch.primed
        if primed.rules == self._algorithm.settings:
            return False
        self._record(cursor, microbatch.run_tick(self._algorithm.follow(primed), "rules"))
        return True

    def _microbatch(self, cursor: DepotCursor) -> Microbatch:
        """Prime a microbatch, and note what another driver, or a commit whose reply was lost, did meanwhile."""
        reader = cursor.reader
        microbatch = Microbatch(reader.engine, self._algorithm, self._clock, self._attempt, reader.name)
        primed = microbatch.primed
        self._require_moved(primed)
        # guard: back-is-read-again
        if primed.reached.depot_version < cursor.known.depot_version:
            cursor.covered = -1
        if primed.microbatch != self._number:
            # guard: attempts-anew
            self._attempt = microbatch.attempt = 1
        cursor.known, self._number = primed.reached, primed.microbatch
        self._options = self._algorithm.options(primed)
        self.summary.paused = primed.paused
        return microbatch

    def _require_moved(self, primed: LedgerState) -> None:
        """Raise TableUnwritable if the ledger refused a commit and is still unchanged: it would refuse every commit."""
        refused_at, self._refused_at = self._refused_at, NOWHERE
        self._primed_at = primed.token, primed.fence.table_version
        # guard: refusal-told
        if self._primed_at == refused_at:
            raise TableUnwritable(
                f"the ledger {self._settings.ledger} refuses a commit as if it had changed, but it is unchanged",
                "Nothing was written. Check whether Spark sees another state of the table than the driver does.",
            )

    def _record(self, cursor: DepotCursor, committed: Committed) -> None:
        self._attempt = 1
        cursor.known = replace(cursor.known, depot_version=committed.depot_version, commit_fingerprint=None)
        self._number = committed.microbatch
        self.summary.microbatches.append(committed)
        self._report(committed)

    def _persist_each(self, work: Callable[[DepotCursor], None]) -> None:
        for cursor in self._cursors:
            self._persist(partial(work, cursor))

    def _persist(self, work: Callable[[], None]) -> None:
        """Do `work`; after a failure that may pass, retry with backoff, up to the limit.

        LedgerMoved and LedgerBehind do not count as failures: another driver was faster, and the next prime sees it.
        """
        while True:
            try:
                return work()
            except (LedgerMoved, LedgerBehind) as error:
                self._refused_at = self._primed_at if isinstance(error, LedgerMoved) else NOWHERE
                for cursor in self._cursors:
                    cursor.covered = -1
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
                f"the microbatch failed {self._attempt} times, the last time with: {first_line(error)}",
                f"{hint}Earlier commits stay; the next run continues from there.",
            ) from error
        self._retrying(error, self._attempt)
        pause = min(FIRST_BACKOFF * 2 ** (self._attempt - 1), LONGEST_BACKOFF)
        self._attempt += 1
        if self._clock.wait(pause):
            raise error


def _silent(*_: object) -> None:
    """Do nothing."""
