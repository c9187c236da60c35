"""The run loop: one microbatch after another, ticks at the end of the log, retries with backoff.

The runner reads the depots of a ledger in turn, each through its `DepotReader`. Between two microbatches it keeps only
the number of failed attempts; everything else is read from the ledger, so the runner may die at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from windrow.engine.arrivals import GO_ON, Arrivals
from windrow.engine.result import MicrobatchResult
from windrow.errors import (
    DepotChanged,
    LedgerBehind,
    LedgerMoved,
    MicrobatchFailed,
    NotFound,
    Paused,
    TableUnwritable,
    UsageError,
    WindrowError,
    first_line,
)
from windrow.model import clock
from windrow.model.clock import Clock
from windrow.model.commits import Commit
from windrow.model.floors import Floors, FloorsByVersion
from windrow.model.results import Committed, Kind, Maintained, committed_in
from windrow.runtime.algorithm import Algorithm, Planned
from windrow.runtime.microbatch import Microbatch, Read
from windrow.runtime.opening import DepotCursor, DepotReader, open_ledger, require_listed
from windrow.runtime.progress import LedgerState, Reached
from windrow.settings.settings import Settings

FIRST_BACKOFF = 500_000
LONGEST_BACKOFF = 30_000_000
FAR = np.iinfo(np.int64).max
NOWHERE = "", -1  # no token and version of a ledger
Found: TypeAlias = tuple[DepotCursor, Arrivals]
Alone: TypeAlias = tuple[MicrobatchResult, Mapping[str, Reached]]


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
        self.algorithm, self._settings, self._clock = algorithm, settings, clock
        self._report, self._retrying, self._maintain = report, retrying, maintain
        self._attempt, self._in_step = 1, in_step
        self._primed_at = self._refused_at = NOWHERE
        self._primed: Microbatch | None = None  # by `_follow_rules`, and not used yet
        self._handled = 0  # reads that found something
        self.summary = Summary(readers[0].engine.name)
        primed = open_ledger(readers, algorithm, clock.now())
        self._cursors = [DepotCursor(reader, primed.depots[reader.name].reached) for reader in readers]
        self._number, self._options = primed.microbatch, algorithm.options(primed)
        self._plans = algorithm.plans  # beside the table, which is there now

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
            idle, options = len(self.summary.microbatches) == before, self._options
            wait = pause if options.trigger_interval is None else options.trigger_interval
            if idle and options.idle_sleep is not None:
                wait = options.idle_sleep
            if self._clock.wait(wait):
                return self.summary

    def _round(self, between: Callable[[], None]) -> Summary:
        """Read all depots to their ends and tick; call `between` after each read, because a depot may never end."""
        self._persist(self._follow_rules)
        if self.summary.paused:
            return self.summary
        while not self._stopped() and (cursors := self._next()):
            self._persist(partial(self._read, cursors))
            between()
        if not self._stopped() and self._settings.idle_timeout is not None:
            with suppress(Paused):
                self._persist(self._tick_idle)
        between()
        return self.summary

    def _maintain_tables(self) -> None:
        """Maintain the tables, unless the ledger is paused: a pause should leave it unchanged."""
        if not self.summary.paused:
            self.summary.maintained.extend(self._maintain())

    def accept(self, version: int, depot: str | None = None) -> None:
        """Read a depot up to the version before `version`, then skip that one without reading its rows.

        A topology with several depots needs the name of the `depot`. Does nothing if the ledger has read that version.
        Raises NotFound for a version that lost no rows.
        """
        named = [one for one in self._cursors if depot in (None, one.reader.name)]
        if len(named) != 1:
            known = [cursor.reader.name for cursor in self._cursors if cursor.reader.name is not None]
            hint = (
                f"Write --accept DEPOT:{version} with one of {', '.join(known)}." if known else "Give the version only."
            )
            raise UsageError("--accept must name one depot", hint)
        self._persist(partial(self._accept, named[0], version))

    def _accept(self, cursor: DepotCursor, version: int) -> None:
        while not self._clock.wait(0):
            for one in self._cursors:
                one.behind()
            before = self._unpaused("acceptance of a version").primed
            if before.depots[cursor.reader.name].reached.depot_version >= version:
                return
            commit = _changed_commit(cursor, version)
            cursor.latest = version - 1
            planned = self._planned()
            self._read([one for one in self._cursors if one is cursor or (planned and one.reader.name in planned.upto)])
            microbatch = self._unpaused("acceptance of a version")
            # guard: accepted-after-the-rest
            if microbatch.primed.token == before.token and not self._clock.wait(0):
                if self._planned():  # it may read rows before this version
                    raise UsageError("an attempt at a microbatch is not finished", "Run without --accept first.")
                self._record(microbatch.run_accept(commit, cursor.reader.name))

    def run_planned(self, planned: Planned) -> bool:
        """Run the one microbatch that was planned; return False if it cannot be run.

        It accepts a version, or reads exactly the planned versions; without any it fires the planned events.
        """
        if planned.accepts:
            [(depot, version)] = planned.upto.items()
            self.accept(version, depot)
            return True
        self._persist(self._follow_rules)
        planned = planned if planned.microbatch else replace(planned, microbatch=self._number + 1)
        if self._plans is None or self._plans.record(self._positions(), planned) != planned:
            return False
        before, self._in_step = len(self.summary.microbatches), True
        if planned.upto:
            self._persist(lambda: self._read(self._next()))
        else:
            self._persist(self._tick_idle)
        return len(self.summary.microbatches) == before + 1

    def tick(self, to: int | None = None) -> Summary:
        """Close the batches that are overdue now (an idle tick), or raise all floors to `to` (microseconds)."""
        return self._persist(self._tick_idle if to is None else partial(self._tick_to, to))

    def flush(self) -> Summary:
        """Close all open batches, each source at the later of its floor and its idle clock."""
        return self._persist(self._flush)

    def pause(self) -> Summary:
        """Pause the ledger until `resume`; a microbatch in progress in another process is fenced."""
        return self._persist(partial(self._set_paused, True))

    def resume(self) -> Summary:
        """End a pause: microbatches may run again."""
        return self._persist(partial(self._set_paused, False))

    def alone(self, kind: Kind, work: Callable[[LedgerState, list[DepotReader]], Alone]) -> Summary:
        """Commit the result of `work` as a separate microbatch, whether the ledger is paused or not.

        `work` also returns the positions to which it moves in depots.
        """
        return self._persist(partial(self._alone, kind, work))

    def _alone(self, kind: Kind, work: Callable[[LedgerState, list[DepotReader]], Alone]) -> None:
        microbatch = self._microbatch()
        processed, reached = work(microbatch.primed, [cursor.reader for cursor in self._cursors])
        self._record(microbatch.run_alone(kind, processed, reached))
        self._microbatch()
        for cursor in self._cursors:
            cursor.covered = -1

    def _set_paused(self, paused: bool) -> None:
        microbatch = self._microbatch()
        if microbatch.primed.paused != paused:
            self._record(microbatch.run_alone("pause" if paused else "resume"))
        self.summary.paused = paused

    def _unpaused(self, wanted: str) -> Microbatch:
        """Return a primed microbatch, after recording changed settings of the algorithm. Raises Paused."""
        microbatch = self._primed_microbatch()
        # guard: paused-takes-no-tick
        if microbatch.primed.paused:
            raise Paused(f"the ledger is paused, so there can be no {wanted}", "Run `windrow resume` first.")
        # guard: tick-follows-rules
        return self._unpaused(wanted) if self._followed(microbatch) else microbatch

    def __getstate__(self) -> dict[str, object]:
        """Drop what belongs to this process: on Spark Connect a copy in another process handles the arrivals."""
        own = {"_report": _silent, "_retrying": _silent, "_maintain": tuple, "summary": Summary(self.summary.engine)}
        return self.__dict__ | own | {"_primed": None}

    def _stopped(self) -> bool:
        return self.summary.paused or self._clock.wait(0)

    def _next(self) -> list[DepotCursor]:
        """Return the depots to read next, none if all are read to their ends."""
        behind = [cursor for cursor in self._cursors if cursor.behind()]
        if planned := self._planned():
            return [cursor for cursor in self._cursors if cursor.reader.name in planned.upto]
        behind.sort(key=lambda cursor: cursor.reader.priority)
        if not (self._in_step and behind):
            return behind
        ahead = {id(cursor): self._time_ahead(cursor) for cursor in behind}
        behind = [cursor for cursor in behind if cursor.behind()]  # without depots whose new versions have no rows
        if not behind:
            return []
        first = min(behind, key=lambda cursor: ahead[id(cursor)])
        idle = [self._idle_time(cursor) for cursor in self._cursors if cursor not in behind]
        return [first] if ahead[id(first)] <= min(idle, default=FAR) else []

    def _positions(self) -> dict[str, int]:
        return {str(cursor.reader.name): cursor.known.depot_version for cursor in self._cursors}

    def _planned(self) -> Planned | None:
        """Return what an earlier attempt at the next microbatch planned, None if there was none."""
        return None if self._plans is None else self._plans.recorded(self._positions())

    def _plan(self, microbatch: Microbatch, upto: Mapping[str, int]) -> Planned | None:
        """Return the plan that stands for a microbatch, None in a batcher, whose attempts may differ."""
        if self._plans is None:
            return None
        return self._plans.record(self._positions(), Planned(self._number + 1, microbatch.started_at, upto))

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
        microbatch = self._microbatch()
        latest = microbatch.started_at + self._settings.max_clock_skew
        state = microbatch.primed.depots[cursor.reader.name]
        summary = arrived.parse(state.partial).summarise(latest)
        after = FloorsByVersion.plan(summary, state.sources.floors).after
        moved = summary["source"].drop_null().combine_chunks().unique()
        cursor.ahead = (known, int(np.max(after.of(moved), initial=clock.UNKNOWN)))

    def _idle_time(self, cursor: DepotCursor) -> int:
        """Return the least idle clock of a depot that is read to its end (microseconds), FAR if it has none."""
        microbatch = self._microbatch()
        idle = microbatch.primed.depots[cursor.reader.name].sources.idle(microbatch.started_at)
        return int(np.min(idle.floor, initial=FAR))

    def _read(self, cursors: Sequence[DepotCursor], found: Sequence[Found] = ()) -> None:
        """Read what the depots added, one inside the other, and process what was `found` in all of them together."""
        if not cursors:
            if found:
                self._process(found)
            return
        cursor, *others = cursors
        upto, before = cursor.latest, self._handled
        handle = partial(self._handle, cursor, others, found)
        if upto > cursor.known.depot_version:
            try:
                elsewhere = cursor.reader.engine.read(cursor.known.depot_version, upto, handle)
            except LedgerBehind:
                # guard: back-seen-elsewhere
                self._microbatch()  # where another process found it, this one has yet to learn where it stands
                raise
            if elsewhere is not None:
                for committed in committed_in(elsewhere):
                    self._record(committed)
                self._microbatch()  # learns whether the ledger was paused meanwhile
        if self._handled == before and (others or found):
            self._read(others, found)
        # guard: cut-short-is-read-again
        if not (self._stopped() or self._in_step):
            cursor.covered = upto

    def _handle(
        self, cursor: DepotCursor, others: Sequence[DepotCursor], found: Sequence[Found], arrivals: Arrivals
    ) -> None:
        """Read the other depots beside what arrived in one of them."""
        self._handled += 1
        self._read(others, [*found, (cursor, arrivals)])

    def _process(self, found: Sequence[Found]) -> None:
        """Run one microbatch for each slice of the arrivals, each from the state in the ledger."""
        # guard: stop-between-microbatches
        while not self._clock.wait(0):
            known = [cursor.known.depot_version for cursor, _ in found]
            slices = self._slices(found)
            if not slices:
                return
            microbatch = self._primed_microbatch()
            # guard: paused-takes-no-microbatch
            if microbatch.primed.paused:
                return
            _require_no_gap(found)
            # guard: filtered-by-version
            if [cursor.known.depot_version for cursor, _ in found] != known:
                continue
            try:
                # guard: microbatch-follows-rules
                if self._followed(microbatch):
                    continue
                for cursor, arrivals in found:
                    # guard: listed-of-known-depot
                    require_listed(arrivals.listed, cursor.known, cursor.reader.settings)
                _refuse_restored(found, slices)
                if not self._run(microbatch, slices, found) or self._in_step:
                    return
            except LedgerMoved:
                self._refused_at = self._primed_at

    def _run(self, microbatch: Microbatch, slices: Mapping[str | None, Read], found: Sequence[Found]) -> bool:
        """Run a microbatch over slices; its plan is durable before a function sees them.

        Returns False if an earlier attempt planned to read depots in which nothing was found here.
        """
        latest, positions = microbatch.started_at + self._settings.max_clock_skew, self._positions()
        upto = {str(name): max(read.arrived.expected) for name, read in slices.items()}
        planned, passed = self._plan(microbatch, upto), _passed(found, slices)
        if planned is not None and planned.upto != upto:
            slices, passed = self._slices(found, planned), {}
            if planned.upto.keys() != slices.keys():
                return False
        self._record(microbatch.run_messages(slices, latest, planned, passed))
        if self._plans is not None:
            self._plans.forget(positions)
        return True

    def _slices(self, found: Sequence[Found], planned: Planned | None = None) -> dict[str | None, Read]:
        """Return the next slice of each depot: what was planned, or a fair share of the limit; in step one version."""
        limit = 1 if self._in_step else self._options.max_messages or self._settings.max_messages
        most = max(1, limit // len(found)) if planned is None else FAR
        slices: dict[str | None, Read] = {}
        for cursor, arrivals in found:
            name, known = cursor.reader.name, cursor.known.depot_version
            upto = None if planned is None else planned.upto.get(str(name), known)
            arrived = arrivals.after(known, most, upto)
            if arrived is not None:
                slices[name] = Read(arrived, arrivals.listed.fingerprints)
        return slices

    def _tick_idle(self) -> None:
        microbatch = self._unpaused("tick")
        due = self.algorithm.due(microbatch.primed, microbatch.started_at)
        if due is None and self._planned() is None:
            return
        positions, planned = self._positions(), self._plan(microbatch, {})
        if planned is None or not planned.upto:  # else an earlier attempt read messages, and so will the next round
            self._record(microbatch.run_tick(due or Floors.empty(), planned=planned))
            if self._plans is not None:
                self._plans.forget(positions)

    def _tick_to(self, to: int) -> None:
        microbatch = self._unpaused("tick")
        if None not in microbatch.primed.depots:
            raise UsageError("a topology has no clocks to raise", "`windrow tick` without --to fires what is due.")
        floors = microbatch.primed.sources.floors
        if np.any(floors.floor < to):
            self._record(microbatch.run_tick(floors.at_least(to)))

    def _flush(self) -> None:
        microbatch = self._unpaused("flush")
        primed = microbatch.primed
        idle = primed.sources.idle(microbatch.started_at)
        now = primed.sources.floors.raised(idle.source, idle.floor)
        if primed.open.total[0]:
            self._record(microbatch.run_tick(now, "flush"))

    def _follow_rules(self) -> None:
        """Record changed settings of the algorithm, unless the ledger is paused."""
        microbatch = self._microbatch()
        # guard: paused-follows-no-rules
        if not (microbatch.primed.paused or self._followed(microbatch)):
            self._primed = microbatch

    def _followed(self, microbatch: Microbatch) -> bool:
        """Record a change of the algorithm's settings, with the floors that belong to it.

        Returns False if they are unchanged. Every microbatch checks this: another driver may have other settings.
        """
        primed = microbatch.primed
        if primed.rules == self.algorithm.settings:
            return False
        self._record(microbatch.run_tick(self.algorithm.follow(primed), "rules"))
        return True

    def _primed_microbatch(self) -> Microbatch:
        """Return the microbatch that `_follow_rules` primed, or prime one.

        The depots were read in between. If the ledger has changed since, the fence refuses the commit.
        """
        microbatch, self._primed = self._primed, None
        if microbatch is None:
            return self._microbatch()
        microbatch.begin()
        return microbatch

    def _microbatch(self) -> Microbatch:
        """Prime a microbatch, and note what another driver, or a commit whose reply was lost, did meanwhile."""
        self._primed = None
        names = [cursor.reader.name for cursor in self._cursors]
        microbatch = Microbatch(self._cursors[0].reader.engine, self.algorithm, self._clock, self._attempt, names)
        primed = microbatch.primed
        self._require_moved(primed)
        for cursor in self._cursors:
            reached = primed.depots[cursor.reader.name].reached
            # guard: back-is-read-again
            if reached.depot_version < cursor.known.depot_version:
                cursor.covered = -1
            cursor.known = reached
        if primed.microbatch != self._number:
            # guard: attempts-anew
            self._attempt = microbatch.attempt = 1
        self._number = primed.microbatch
        self._options = self.algorithm.options(primed)
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

    def _record(self, committed: Committed) -> None:
        self._attempt, self._primed = 1, None
        for cursor in self._cursors:
            name = cursor.reader.name
            version = committed.depot_version if name is None else committed.depots.get(name)
            if version is not None:
                cursor.known = replace(cursor.known, depot_version=version, commit_fingerprint=None)
        self._number = committed.microbatch
        self.summary.microbatches.append(committed)
        self._report(committed)

    def _persist(self, work: Callable[[], None]) -> Summary:
        """Do `work` and return the summary; after a failure that may pass, retry with backoff, up to the limit.

        LedgerMoved and LedgerBehind do not count as failures: another driver was faster, and the next prime sees it.
        """
        while True:
            try:
                work()
            except (LedgerMoved, LedgerBehind) as error:
                self._refused_at = self._primed_at if isinstance(error, LedgerMoved) else NOWHERE
                for cursor in self._cursors:
                    cursor.covered = -1
            except Exception as error:
                # guard: not-retryable
                if isinstance(error, WindrowError) and not error.retryable:
                    raise
                self._back_off(error)
            else:
                return self.summary
            self._primed = None

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


def _changed_commit(cursor: DepotCursor, version: int) -> Commit:
    """Return the commit of a depot version that deleted or rewrote rows. Raises NotFound for any other."""
    engine = cursor.reader.engine
    found = [commit for commit in engine.depot_commits(version, version) if commit.version == version]
    # guard: only-changes-accepted
    if not found or not (found[0].restores or engine.removes_rows(version)):
        raise NotFound(
            f"depot version {version} has deleted or rewritten no rows",
            "Only such a version can be accepted; `windrow status` and the error of the run that stopped name it.",
        )
    return found[0]


def _refuse_restored(found: Sequence[Found], slices: Mapping[str | None, Read]) -> None:
    """Raise DepotChanged if a slice has a RESTORE: rows that it brings back have been read, or were deleted."""
    for cursor, arrivals in found:
        read = slices.get(cursor.reader.name)
        restored = arrivals.listed.restored & read.arrived.expected.keys() if read else ()
        # guard: restored-is-not-new
        if restored and cursor.reader.settings.on_depot_delete == "error":
            raise DepotChanged(
                f"depot version {min(restored)} is a RESTORE and brings back rows of earlier versions",
                GO_ON.format(version=min(restored)),
            )


def _passed(found: Sequence[Found], slices: Mapping[str | None, Read]) -> dict[str | None, Reached]:
    """Return the positions at the ends of depots that were read, and had no rows.

    Else a state of another topology that never changes would be read from its beginning each time, as long as it can.
    """
    passed = {}
    for cursor, arrivals in found:
        name, last, known = cursor.reader.name, arrivals.last, cursor.known
        # guard: passed-without-rows
        if name not in slices and last is not None and last > known.depot_version:
            fingerprint = arrivals.listed.fingerprints.get(last)
            passed[name] = replace(known, depot_version=last, commit_fingerprint=fingerprint)
    return passed


def _require_no_gap(found: Sequence[Found]) -> None:
    """Raise LedgerBehind if a stream begins after the version that a ledger reads next."""
    for cursor, arrivals in found:
        # guard: stream-begins-in-time
        if cursor.known.depot_version + 1 < arrivals.listed.begin:
            raise LedgerBehind(
                f"the stream begins at depot version {arrivals.listed.begin}, but the ledger has read up to "
                f"{cursor.known.depot_version}",
                "The ledger was restored during the run; the stream starts again.",
            )


def _silent(*_: object) -> None:
    """Do nothing."""
