"""The run loop: one microbatch after another, ticks at the end of the log, retries with backoff.

A round does this:

1. prime, fold if it is due, and commit the settings if they differ from those that the ledger has recorded;
2. while a depot has unread versions: read them, cut them into slices, and run a microbatch for each slice;
3. at the ends of all depots, an idle tick closes the batches that are overdue;
4. maintain the tables.

Between two microbatches the runner keeps only the number of failed attempts; everything else is read from the ledger,
so the runner may die at any point. `LedgerMoved` says that another driver was faster: the runner primes again. Other
errors count as failed attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from windrow.errors import (
    LedgerBehind,
    LedgerMoved,
    MicrobatchFailed,
    Paused,
    TableUnwritable,
    UsageError,
    WindrowError,
    first_line,
)
from windrow.ledger import Ledger
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Fold
from windrow.model.clock import Clock
from windrow.model.floors import Floors
from windrow.model.results import Committed, Kind, Maintained, committed_in
from windrow.operate.log import log
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.depot_cursor import DepotCursor, next_in_step
from windrow.runtime.ledger_state import LedgerState, Reached
from windrow.runtime.microbatch import Microbatch, Read
from windrow.runtime.opening import DepotReader, open_ledger, require_listed
from windrow.runtime.saved_plan import SavedPlan
from windrow.source import Source
from windrow.source.arrivals import Arrivals
from windrow.source.depot_changes import refuse_restored

if TYPE_CHECKING:
    from windrow.source.spark import SparkSource

FIRST_BACKOFF = 500_000
LONGEST_BACKOFF = 30_000_000
UNLIMITED = np.iinfo(np.int64).max  # messages
Change: TypeAlias = tuple[MicrobatchResult, Mapping[str, Reached]]  # rows to commit, and the positions that move


class Found(NamedTuple):
    """What arrived in a depot."""

    cursor: DepotCursor
    arrivals: Arrivals


@dataclass(slots=True)
class Summary:
    """What a run did: its microbatches in order, and the maintenance between them.

    `others` counts the microbatches that it found committed meanwhile: by another driver, or by itself when the reply
    was lost.
    """

    engine: str
    microbatches: list[Committed] = field(default_factory=list)
    paused: bool = False
    maintained: list[Maintained] = field(default_factory=list)
    others: int = 0

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
        ledger: Ledger,
        algorithm: Algorithm,
        clock: Clock,
        report: Callable[[Committed], None] = lambda committed: None,
        retrying: Callable[[Exception, int], None] = lambda error, attempt: None,
        maintain: Callable[[], Iterable[Maintained]] = tuple,
        in_step: bool = False,
    ) -> None:
        """Open the ledger, or create it where `start_from` begins. Raises the errors of `open_ledger`.

        With `in_step`, no depot is read beyond the time that all others have reached.
        """
        self.algorithm, self.ledger, self._clock, self._in_step = algorithm, ledger, clock, in_step
        self._report, self._retrying, self._maintain = report, retrying, maintain
        self._settings = ledger.settings
        self.summary = Summary(ledger.engine_name)
        self._attempt = 1
        self._primed: Microbatch | None = None  # by `_begin_round`, and not used yet
        # Token and table version of the ledger: at the last prime, and where it last refused a commit.
        self._primed_at: tuple[str, int] | None = None
        self._refused_at: tuple[str, int] | None = None
        primed = open_ledger(readers, ledger, algorithm, clock.now())
        self._cursors = [DepotCursor(reader, primed.depots[reader.name].reached) for reader in readers]
        self._number, self._options = primed.microbatch, algorithm.options(primed)
        self._saved_plans = algorithm.saved_plans  # beside the table, which is there now
        # The state token of the last prime, None in a batcher and after a commit, which leads to another state.
        self._state: str | None = None if self._saved_plans is None else primed.state_token

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
        self._with_retries(self._begin_round)
        if self.summary.paused:
            return self.summary
        while not self._stopped() and (cursors := self._next()):
            self._with_retries(partial(self._read, cursors))
            between()
        if not self._stopped() and self._settings.idle_timeout is not None:
            with suppress(Paused):
                self._with_retries(self._tick_idle)
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
        named = [one for one in self._cursors if depot in (None, one.name)]
        if len(named) != 1:
            known = [cursor.name for cursor in self._cursors if cursor.name is not None]
            hint = (
                f"Write --accept DEPOT:{version} with one of {', '.join(known)}." if known else "Give the version only."
            )
            raise UsageError("--accept must name one depot", hint)
        self._with_retries(partial(self._accept, named[0], version))

    def _accept(self, cursor: DepotCursor, version: int) -> None:
        while not self._stop_requested():
            for one in self._cursors:
                one.look()
            before = self._unpaused("acceptance of a version").primed
            if before.depots[cursor.name].reached.depot_version >= version:
                return
            commit = cursor.source.commit_to_accept(version)
            cursor.latest = version - 1
            planned = self._saved_plan()
            self._read([one for one in self._cursors if one is cursor or (planned and one.name in planned.upto)])
            microbatch = self._unpaused("acceptance of a version")
            # guard: accepted-after-the-rest
            if microbatch.primed.token == before.token and not self._stop_requested():
                if self._saved_plan():  # it may read rows before this version
                    raise UsageError("an attempt at a microbatch is not finished", "Run without --accept first.")
                self._record(microbatch.run_accept(commit, cursor.name))

    def run_saved_plan(self, planned: SavedPlan) -> bool:
        """Run the one microbatch that was planned; return False if it cannot be run.

        It accepts a version, or reads exactly the planned versions; without any it fires the planned events.
        """
        if planned.accepts:
            [(depot, version)] = planned.upto.items()
            self.accept(version, depot)
            return True
        self._with_retries(self._begin_round)
        planned = planned if planned.microbatch else replace(planned, microbatch=self._number + 1)
        planned = replace(planned, attempt=0)
        if self._saved_plans is None or self._state is None or self._saved_plans.save(self._state, planned) != planned:
            return False
        before, self._in_step = len(self.summary.microbatches), True
        if planned.upto:
            self._with_retries(lambda: self._read(self._next()))
        else:
            self._with_retries(self._tick_idle)
        return len(self.summary.microbatches) == before + 1

    def tick(self, to: int | None = None) -> Summary:
        """Close the batches that are overdue now (an idle tick), or raise all floors to `to` (microseconds)."""
        return self._with_retries(self._tick_idle if to is None else partial(self._tick_to, to))

    def flush(self) -> Summary:
        """Close all open batches, each source at the later of its floor and its idle clock."""
        return self._with_retries(self._flush)

    def pause(self) -> Summary:
        """Pause the ledger until `resume`; a microbatch in progress in another process is fenced."""
        return self._with_retries(partial(self._set_paused, True))

    def resume(self) -> Summary:
        """End a pause: microbatches may run again."""
        return self._with_retries(partial(self._set_paused, False))

    @property
    def sources(self) -> dict[str | None, Source]:
        """Return the sources of the depots, by name."""
        return {cursor.name: cursor.source for cursor in self._cursors}

    def commit_change(self, kind: Kind, work: Callable[[LedgerState], Change]) -> Summary:
        """Commit the result of `work` as a microbatch without messages, whether the ledger is paused or not.

        `work` also returns the positions to which it moves in depots.
        """
        return self._with_retries(partial(self._commit_change, kind, work))

    def _commit_change(self, kind: Kind, work: Callable[[LedgerState], Change]) -> None:
        microbatch = self._microbatch()
        processed, reached = work(microbatch.primed)
        self._record(microbatch.run_without_messages(kind, processed, reached))
        self._microbatch()
        for cursor in self._cursors:
            cursor.search_again()

    def _set_paused(self, paused: bool) -> None:
        microbatch = self._microbatch()
        if microbatch.primed.paused != paused:
            self._record(microbatch.run_without_messages("pause" if paused else "resume"))
        self.summary.paused = paused

    def _unpaused(self, wanted: str) -> Microbatch:
        """Return a primed microbatch, after committing changed settings of the algorithm. Raises Paused."""
        while True:
            microbatch = self._primed_microbatch()
            # guard: paused-takes-no-tick
            if microbatch.primed.paused:
                raise Paused(f"the ledger is paused, so there can be no {wanted}", "Run `windrow resume` first.")
            # guard: tick-follows-rules
            if not self._commit_changed_settings(microbatch):
                return microbatch

    def _stop_requested(self) -> bool:
        return self._clock.wait(0)

    def _stopped(self) -> bool:
        return self.summary.paused or self._stop_requested()

    def _next(self) -> list[DepotCursor]:
        """Return the depots to read next, none if all are read to their ends."""
        for cursor in self._cursors:
            cursor.look()
        if saved := self._saved_plan():
            return [cursor for cursor in self._cursors if cursor.name in saved.upto]
        if self._in_step:
            following = next_in_step(self._cursors, self._microbatch, self._settings.max_clock_skew)
            return [following] if following else []
        unread = [cursor for cursor in self._cursors if cursor.has_unread]
        return sorted(unread, key=lambda cursor: cursor.reader.priority)

    def _saved_plan(self) -> SavedPlan | None:
        """Return what an earlier attempt at the next microbatch planned, None if there was none."""
        if self._saved_plans is None or self._state is None:
            return None
        return self._saved_plans.recorded(self._state)

    def _begin_attempt(self, microbatch: Microbatch, upto: Mapping[str, int]) -> SavedPlan | None:
        """Return the plan that stands for a microbatch, None in a batcher, whose attempts may differ.

        Raises LedgerMoved if another driver has committed since prime: then the plan is of no use.
        """
        if self._saved_plans is None:
            return None
        number = self.algorithm.number(microbatch.primed.microbatch + 1)
        wanted = SavedPlan(number, microbatch.started_at, upto)
        planned = self._saved_plans.begin(microbatch.primed.state_token, lambda: wanted)
        # guard: planned-on-the-latest
        microbatch.require_latest()
        microbatch.attempt = planned.attempt
        return planned

    def _read(self, cursors: Sequence[DepotCursor]) -> None:
        """Read what depots added up to the last look, and process what arrived in all of them together."""
        looked = [(cursor, cursor.latest) for cursor in cursors]
        with ExitStack() as read:
            found = []
            for cursor, upto in looked:
                reached = cursor.reached.depot_version
                if upto > reached and cursor.source.streams:
                    self._stream(cursor, upto)
                elif upto > reached:
                    arrivals = read.enter_context(cursor.source.arrived(reached, upto))
                    found += [] if arrivals is None else [Found(cursor, arrivals)]
            if found:
                self._process(found)
        # guard: cut-short-is-read-again
        if not (self._stopped() or self._in_step):
            for cursor, upto in looked:
                cursor.searched_to = upto

    def _stream(self, cursor: DepotCursor, upto: int) -> None:
        """Let Spark's `foreachBatch` process what arrived in the one depot of the batcher."""
        before = cursor.reached.depot_version
        source = cast("SparkSource", cursor.source)
        try:
            elsewhere = source.stream(before, upto, partial(self._handle, cursor))
        except LedgerBehind:
            # guard: back-seen-elsewhere
            self._microbatch()  # where another process found it, this one has yet to learn where it stands
            raise
        if elsewhere:  # on Spark Connect
            for committed in committed_in(self.ledger.committed_since(before)):
                self._record(committed)
            self._microbatch()  # learns whether the ledger was paused meanwhile

    def _handle(self, cursor: DepotCursor, arrivals: Arrivals) -> None:
        self._process([Found(cursor, arrivals)])

    def _process(self, found: Sequence[Found]) -> None:
        """Run one microbatch for each slice of the arrivals, each from the state in the ledger."""
        # guard: stop-between-microbatches
        while not self._stop_requested():
            known = [cursor.reached.depot_version for cursor, _ in found]
            slices = self._slices(found)
            if not slices:
                return
            microbatch = self._primed_microbatch()
            # guard: paused-takes-no-microbatch
            if microbatch.primed.paused:
                return
            _require_no_gap(found)
            # guard: filtered-by-version
            if [cursor.reached.depot_version for cursor, _ in found] != known:
                continue
            try:
                # guard: microbatch-follows-rules
                if self._commit_changed_settings(microbatch):
                    continue
                for cursor, arrivals in found:
                    # guard: listed-of-known-depot
                    require_listed(arrivals.listed, cursor.reached, cursor.source.settings)
                _refuse_restored(found, slices)
                if not self._run(microbatch, slices, found) or self._in_step:
                    return
            except LedgerMoved:
                self._refused_at = self._primed_at

    def _run(self, microbatch: Microbatch, slices: Mapping[str | None, Read], found: Sequence[Found]) -> bool:
        """Run a microbatch over slices; its plan is durable before a function sees them.

        Returns False if an earlier attempt planned to read depots in which nothing was found here.
        """
        latest = microbatch.started_at + self._settings.max_clock_skew
        upto = {str(name): max(read.arrived.expected) for name, read in slices.items()}
        planned, passed = self._begin_attempt(microbatch, upto), _passed(found, slices)
        if planned is not None and planned.upto != upto:
            slices, passed = self._slices(found, planned), {}
            if planned.upto.keys() != slices.keys():
                return False
        self._record(microbatch.run_messages(slices, latest, planned, passed))
        self._forget_plan(microbatch)
        return True

    def _forget_plan(self, microbatch: Microbatch) -> None:
        if self._saved_plans is not None:
            self._saved_plans.forget(microbatch.primed.state_token)

    def _slices(self, found: Sequence[Found], planned: SavedPlan | None = None) -> dict[str | None, Read]:
        """Return the next slice of each depot: what was planned, or a fair share of the limit; in step one version."""
        limit = 1 if self._in_step else self._options.max_messages or self._settings.max_messages
        most = max(1, limit // len(found)) if planned is None else UNLIMITED
        slices: dict[str | None, Read] = {}
        for cursor, arrivals in found:
            name, known = cursor.name, cursor.reached.depot_version
            upto = None if planned is None else planned.upto.get(str(name), known)
            arrived = arrivals.after(known, most, upto)
            if arrived is not None:
                slices[name] = Read(arrived, arrivals.listed.fingerprints)
        return slices

    def _tick_idle(self) -> None:
        microbatch = self._unpaused("tick")
        due = self.algorithm.due(microbatch.primed, microbatch.started_at)
        if due is None and self._saved_plan() is None:
            return
        planned = self._begin_attempt(microbatch, {})
        if planned is None or not planned.upto:  # else an earlier attempt read messages, and so will the next round
            self._record(microbatch.run_tick(due or Floors.empty(), planned=planned))
            self._forget_plan(microbatch)

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

    def _begin_round(self) -> None:
        """Prime a microbatch, and commit changed settings of the algorithm, unless the ledger is paused."""
        microbatch = self._microbatch()
        # guard: paused-follows-no-rules
        if not (microbatch.primed.paused or self._commit_changed_settings(microbatch)):
            self._primed = microbatch

    def _commit_changed_settings(self, microbatch: Microbatch) -> bool:
        """Commit the algorithm's settings if they differ from the recorded ones; return whether it committed.

        The floors that belong to them change in the same commit. Every microbatch checks this: another driver may have
        other settings.
        """
        primed = microbatch.primed
        if primed.rules == self.algorithm.settings:
            return False
        self._record(microbatch.run_tick(self.algorithm.follow(primed), "rules"))
        return True

    def _primed_microbatch(self) -> Microbatch:
        """Return the microbatch that `_begin_round` primed, or prime one.

        The depots were read in between. If the ledger has changed since, the fence refuses the commit.
        """
        microbatch, self._primed = self._primed, None
        if microbatch is None:
            return self._microbatch()
        microbatch.restart_clock()
        return microbatch

    def _microbatch(self) -> Microbatch:
        """Prime a microbatch, and note what another driver, or a commit whose reply was lost, did meanwhile."""
        self._primed = None
        microbatch = self._prime()
        fold = microbatch.primed.fence.growth.fold(self._settings.fold_commits, self._settings.fold_rows)
        if fold is not None and not microbatch.primed.paused:
            self._fold(microbatch.primed, fold)
            microbatch = self._prime()
        primed = microbatch.primed
        self._require_moved(primed)
        for cursor in self._cursors:
            reached = primed.depots[cursor.name].reached
            # guard: back-is-read-again
            if reached.depot_version < cursor.reached.depot_version:
                cursor.search_again()
            cursor.reached = reached
        if primed.microbatch != self._number:
            # guard: attempts-anew
            self._attempt = microbatch.attempt = 1
            self.summary.others += max(0, primed.microbatch - self._number)
        self._number = primed.microbatch
        self._state = None if self._saved_plans is None else primed.state_token
        self._options = self.algorithm.options(primed)
        self.summary.paused = primed.paused
        return microbatch

    def _fold(self, primed: LedgerState, fold: Fold) -> None:
        """Fold the ledger. No run depends on that, as on no maintenance: a failure is told, and tried again later."""
        try:
            self.ledger.fold(primed.fence, fold)
        except LedgerMoved:
            pass
        # guard: failed-fold-is-told
        except Exception as error:  # noqa: BLE001 - of whatever library
            log.warning("fold failed", ledger=self._settings.ledger, fold=fold, error=first_line(error))

    def _prime(self) -> Microbatch:
        return Microbatch(self.ledger, self.sources, self.algorithm, self._clock, self._attempt)

    def _require_moved(self, primed: LedgerState) -> None:
        """Raise TableUnwritable if the ledger refused a commit and is still unchanged: it would refuse every commit."""
        refused_at, self._refused_at = self._refused_at, None
        self._primed_at = primed.token, primed.fence.table_version
        # guard: refusal-told
        if self._primed_at == refused_at:
            raise TableUnwritable(
                f"the ledger {self._settings.ledger} refuses a commit as if it had changed, but it is unchanged",
                "Nothing was written. Check whether Spark sees another state of the table than the driver does.",
            )

    def _record(self, committed: Committed) -> None:
        self._attempt, self._primed, self._state = 1, None, None
        for cursor in self._cursors:
            name = cursor.name
            version = committed.depot_version if name is None else committed.depots.get(name)
            if version is not None:
                cursor.reached = replace(cursor.reached, depot_version=version, commit_fingerprint=None)
        self._number = committed.microbatch
        self.summary.microbatches.append(committed)
        self._report(committed)

    def _with_retries(self, work: Callable[[], None]) -> Summary:
        """Do `work` and return the summary; after a failure that may pass, retry with backoff, up to the limit.

        LedgerMoved and LedgerBehind do not count as failures: another driver was faster, and the next prime sees it.
        """
        while True:
            try:
                work()
            except (LedgerMoved, LedgerBehind) as error:
                self._refused_at = self._primed_at if isinstance(error, LedgerMoved) else None
                for cursor in self._cursors:
                    cursor.search_again()
            except Exception as error:
                # guard: not-retryable
                if not getattr(error, "retryable", True):
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

    def __getstate__(self) -> dict[str, object]:
        """Drop what belongs to this process: on Spark Connect a copy in another process handles the arrivals."""
        own = {"_report": _silent, "_retrying": _silent, "_maintain": tuple, "summary": Summary(self.summary.engine)}
        return self.__dict__ | own | {"_primed": None}


def _refuse_restored(found: Sequence[Found], slices: Mapping[str | None, Read]) -> None:
    """Raise DepotChanged if a slice has a RESTORE, unless `on_depot_delete` is `ignore`."""
    for cursor, arrivals in found:
        read = slices.get(cursor.name)
        if read is not None and cursor.source.settings.on_depot_delete == "error":
            refuse_restored(arrivals.listed, read.arrived.expected)


def _passed(found: Sequence[Found], slices: Mapping[str | None, Read]) -> dict[str | None, Reached]:
    """Return the positions at the ends of depots that were read, and had no rows.

    Else a state of another topology that never changes would be read from its beginning each time, as long as it can.
    """
    passed = {}
    for cursor, arrivals in found:
        name, last, known = cursor.name, arrivals.last, cursor.reached
        # guard: passed-without-rows
        if name not in slices and last is not None and last > known.depot_version:
            fingerprint = arrivals.listed.fingerprints.get(last)
            passed[name] = replace(known, depot_version=last, commit_fingerprint=fingerprint)
    return passed


def _require_no_gap(found: Sequence[Found]) -> None:
    """Raise LedgerBehind if a stream begins after the version that a ledger reads next."""
    for cursor, arrivals in found:
        # guard: stream-begins-in-time
        if cursor.reached.depot_version + 1 < arrivals.listed.begin:
            raise LedgerBehind(
                f"the stream begins at depot version {arrivals.listed.begin}, but the ledger has read up to "
                f"{cursor.reached.depot_version}",
                "The ledger was restored during the run; the stream starts again.",
            )


def _silent(*_: object) -> None:
    """Do nothing."""
