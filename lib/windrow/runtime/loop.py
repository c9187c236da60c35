"""The run loop: one microbatch after another, ticks at the end of the log, maintenance in between.

A round does this:

1. prime, fold if a fold is due, and commit the settings if they differ from those recorded in the ledger;
2. while a depot has unread versions: read them, cut them into slices, and run a microbatch for each slice;
3. at the ends of all depots, an idle tick closes the batches that are overdue;
4. maintain the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from windrow.errors import ConcurrentCommitError, EngineUnavailableError, LedgerBehindError, PausedError, UsageError
from windrow.ledger import Ledger
from windrow.model.clock import Clock
from windrow.model.results import MaintenanceResult, read_committed
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.control import Control
from windrow.runtime.depot_cursor import DepotCursor, Step, next_in_step
from windrow.runtime.driver import Driver, RunSummary
from windrow.runtime.ledger_state import DepotPosition
from windrow.runtime.microbatch import DepotRead, MicrobatchAttempt
from windrow.runtime.opening import DepotReader, require_listed
from windrow.runtime.saved_plan import SavedPlan
from windrow.source.arrivals import Arrivals
from windrow.source.depot_changes import refuse_restored

if TYPE_CHECKING:
    from windrow.source.spark import SparkSource

UNLIMITED = np.iinfo(np.int64).max  # messages


class PendingDepot(NamedTuple):
    """What arrived in a depot."""

    cursor: DepotCursor
    arrivals: Arrivals


class Runner(Control):
    """Runs microbatches of one ledger, and controls it.

    `maintain` is called between the microbatches of a repeating run, and returns what it did; `called` has the
    callbacks of `Driver`.
    """

    def __init__(
        self,
        readers: Sequence[DepotReader],
        ledger: Ledger,
        algorithm: Algorithm,
        clock: Clock,
        maintain: Callable[[], Iterable[MaintenanceResult]] = tuple,
        in_step: bool = False,
        **called: Any,
    ) -> None:
        """Open the ledger, or create it where `start_from` begins. Raises the errors of `open_ledger`.

        With `in_step`, no depot is read beyond the time that all others have reached.
        """
        super().__init__(Driver(readers, ledger, algorithm, clock, **called))
        self._maintain, self._in_step, self._by_time = maintain, in_step, in_step
        self._step = Step()  # what comes next

    def once(self) -> RunSummary:
        """Read the depots to their ends, then close overdue batches; stop between microbatches if the clock says so.

        A paused ledger is left unchanged.
        """
        return self._round(lambda: None)

    def every(self, pause: int) -> RunSummary:
        """Run `once` every `pause` microseconds until the clock says stop, with table maintenance in between."""
        while True:
            before = len(self.summary.microbatches)
            self._round(self._maintain_tables)
            idle, options = len(self.summary.microbatches) == before, self.driver.options
            wait = pause if options.trigger_interval is None else options.trigger_interval
            if idle and options.idle_sleep is not None:
                wait = options.idle_sleep
            if self.driver.clock.wait(wait):
                return self.summary

    def _round(self, between: Callable[[], None]) -> RunSummary:
        """Read all depots to their ends and tick; call `between` after each read, because a depot may never end."""
        self.driver.do(self.driver.begin_round)
        if self.summary.paused:
            return self.summary
        while True:
            while not self._is_stopped() and (cursors := self._next()):
                self.driver.do(partial(self._read, cursors))
                between()
            # A tick that an earlier attempt planned comes first: the depots were not read.
            planned, before = self.driver.saved_plan(), self.driver.number
            if not self._is_stopped() and self.driver.settings.idle_timeout is not None:
                with suppress(PausedError):
                    self.driver.do(self._tick_idle)
            # guard: read-after-a-saved-tick
            if planned is None or self.driver.number == before:
                break
        between()
        return self.summary

    def _maintain_tables(self) -> None:
        """Maintain the tables, unless the ledger is paused: a pause should leave it unchanged."""
        if not self.summary.paused:
            self.summary.maintained.extend(self._maintain())

    def skip_version(self, version: int, depot: str | None = None) -> None:
        """Read a depot up to the version before `version`, then skip that one without reading its rows.

        A topology with several depots needs the name of the `depot`. Does nothing if the ledger has read that version.
        Raises NotFoundError for a version that lost no rows.
        """
        named = [cursor for cursor in self.driver.cursors if depot in (None, cursor.name)]
        if len(named) != 1:
            known = [cursor.name for cursor in self.driver.cursors if cursor.name is not None]
            hint = (
                f"Write --skip-version DEPOT:{version} with one of {', '.join(known)}."
                if known
                else "Give the version only."
            )
            raise UsageError("--skip-version must name one depot", hint)
        self.driver.do(partial(self._accept, named[0], version))

    def _accept(self, cursor: DepotCursor, version: int) -> None:
        while not self.driver.stop_requested:
            for other in self.driver.cursors:
                other.look()
            before = self.driver.unpaused_attempt("skip of a version").primed
            if before.depots[cursor.name].reached.depot_version >= version:
                return
            commit = cursor.source.commit_to_accept(version)
            cursor.latest = version - 1
            planned, self._step = self.driver.saved_plan(), Step()
            self._read(
                [
                    other
                    for other in self.driver.cursors
                    if other is cursor or (planned and other.name in planned.last_versions)
                ]
            )
            microbatch = self.driver.unpaused_attempt("skip of a version")
            # guard: accepted-after-the-rest
            if microbatch.primed.token == before.token and not self.driver.stop_requested:
                if self.driver.saved_plan():  # it may read rows before this version
                    raise UsageError("an attempt at a microbatch is unfinished", "Run without --skip-version first.")
                self.driver.record(microbatch.run_accept(commit, cursor.name))

    def run_saved_plan(self, planned: SavedPlan) -> bool:
        """Run the one microbatch that was planned; return False if it cannot be run.

        It skips a version, or reads exactly the planned versions; without any it fires the planned events.
        """
        if planned.skips:
            [(depot, version)] = planned.last_versions.items()
            self.skip_version(version, depot)
            return True
        self.driver.do(self.driver.begin_round)
        planned = planned if planned.microbatch else replace(planned, microbatch=self.driver.number + 1)
        planned = replace(planned, attempt=0)
        if not self.driver.save_plan(planned):
            return False
        before, self._in_step = len(self.summary.microbatches), True
        if planned.last_versions:
            self.driver.do(lambda: self._read(self._next()))
        else:
            self.driver.do(self._tick_idle)
        return len(self.summary.microbatches) == before + 1

    def _is_stopped(self) -> bool:
        return self.summary.paused or self.driver.stop_requested

    def _next(self) -> list[DepotCursor]:
        """Return the depots to read next, none if all are read to their ends."""
        for cursor in self.driver.cursors:
            cursor.look()
        self._step = Step()
        if saved := self.driver.saved_plan():
            return [cursor for cursor in self.driver.cursors if cursor.name in saved.last_versions]
        if self._in_step:
            self._step = next_in_step(self.driver.cursors, self.driver.prime, self.driver.settings.max_clock_skew)
            return list(self._step.cursors)
        unread = [cursor for cursor in self.driver.cursors if cursor.has_unread]
        return sorted(unread, key=lambda cursor: cursor.reader.priority)

    def _read(self, cursors: Sequence[DepotCursor]) -> None:
        """Read what depots added up to the last look, and process the arrivals of all of them together."""
        looked = [(cursor, cursor.latest) for cursor in cursors]
        with ExitStack() as read:
            pending = []
            for cursor, last_version in looked:
                reached = cursor.reached.depot_version
                if last_version > reached and cursor.source.streams(reached):
                    self._stream(cursor, last_version)
                elif last_version > reached:
                    arrivals = self.driver.in_time(
                        partial(read.enter_context, cursor.source.arrivals(reached, last_version))
                    )
                    pending += [] if arrivals is None else [PendingDepot(cursor, arrivals)]
            if pending:
                self._process(pending)
        # guard: cut-short-is-read-again
        if not (self._is_stopped() or self._in_step):
            for cursor, last_version in looked:
                cursor.searched_to = last_version

    def _stream(self, cursor: DepotCursor, last_version: int) -> None:
        """Let Spark's `foreachBatch` process what arrived in the only depot.

        Raises EngineUnavailableError for one of several depots, which one microbatch could not read together.
        """
        if len(self.driver.cursors) > 1:
            raise EngineUnavailableError(
                f"on Spark Connect a topology of several depots needs the change feed of the depot {cursor.name}",
                "Switch it on (delta.enableChangeDataFeed = true) and begin there (start_from), or use a classic "
                "session.",
            )
        before = cursor.reached.depot_version
        source = cast("SparkSource", cursor.source)
        try:
            elsewhere = source.stream(before, last_version, partial(self._handle, cursor))
        except LedgerBehindError:
            # guard: back-seen-elsewhere
            self.driver.prime()  # if another process noticed, this one has yet to learn its position
            raise
        if elsewhere:  # on Spark Connect
            for committed in read_committed(self.driver.ledger.history_since(before)):
                self.driver.record(committed)
            self.driver.prime()  # learns whether the ledger was paused meanwhile

    def _handle(self, cursor: DepotCursor, arrivals: Arrivals) -> None:
        self._process([PendingDepot(cursor, arrivals)])

    def _process(self, pending: Sequence[PendingDepot]) -> None:
        """Run one microbatch for each slice of the arrivals, each from the state in the ledger."""
        # guard: stop-between-microbatches
        while not self.driver.stop_requested:
            known = [cursor.reached.depot_version for cursor, _ in pending]
            slices = self.driver.in_time(partial(self._slices, pending))
            if not slices:
                return
            microbatch = self.driver.primed_attempt()
            # guard: paused-takes-no-microbatch
            if microbatch.primed.paused:
                return
            _require_no_gap(pending)
            # guard: filtered-by-version
            if [cursor.reached.depot_version for cursor, _ in pending] != known:
                continue
            try:
                # guard: microbatch-follows-rules
                if self.driver.commit_changed_settings(microbatch):
                    continue
                for cursor, arrivals in pending:
                    # guard: listed-of-known-depot
                    require_listed(arrivals.listed, cursor.reached, cursor.source.settings)
                _refuse_restored(pending, slices)
                if not self._run(microbatch, slices, pending) or self._in_step:
                    return
            except ConcurrentCommitError:
                self.driver.note_refused()

    def _run(
        self, microbatch: MicrobatchAttempt, slices: Mapping[str | None, DepotRead], pending: Sequence[PendingDepot]
    ) -> bool:
        """Run a microbatch over slices; its plan is durable before a function sees them.

        Returns False if an earlier attempt planned to read depots in which this one found nothing.
        """
        latest = microbatch.started_at + self.driver.settings.max_clock_skew
        last_versions = {str(name): max(read.arrived.expected) for name, read in slices.items()}
        step, passed = self._step, _end_positions(pending, slices)
        planned = self.driver.begin_attempt(microbatch, last_versions, step.overtaken, step.until)
        if planned is not None and planned.last_versions != last_versions:
            slices, passed = self._slices(pending, planned), {}
            if planned.last_versions.keys() != slices.keys():
                return False
        until = planned.until if planned is not None and self._by_time else None
        self.driver.record(microbatch.run_messages(slices, latest, planned, passed, until))
        self.driver.forget_plan()
        return True

    def _slices(self, pending: Sequence[PendingDepot], planned: SavedPlan | None = None) -> dict[str | None, DepotRead]:
        """Return the next slice of each depot: what was planned, or a fair share of the limit; in step one version."""
        limit = 1 if self._in_step else self.driver.options.max_messages or self.driver.settings.max_messages
        most = max(1, limit // len(pending)) if planned is None else UNLIMITED
        slices: dict[str | None, DepotRead] = {}
        for cursor, arrivals in pending:
            name, known = cursor.name, cursor.reached.depot_version
            last_version = None if planned is None else planned.last_versions.get(str(name), known)
            arrived = arrivals.after(known, most, last_version)
            if arrived is not None:
                slices[name] = DepotRead(arrived, arrivals.listed.fingerprints)
        return slices

    def __getstate__(self) -> dict[str, object]:
        """Drop what belongs to this process: on Spark Connect a copy in another process handles the arrivals."""
        return self.__dict__ | {"_maintain": tuple}


def _refuse_restored(pending: Sequence[PendingDepot], slices: Mapping[str | None, DepotRead]) -> None:
    """Raise DepotChangedError if a slice contains a RESTORE, unless `on_depot_change` is `ignore`."""
    for cursor, arrivals in pending:
        read = slices.get(cursor.name)
        if read is not None and cursor.source.settings.on_depot_change == "error":
            refuse_restored(arrivals.listed, read.arrived.expected)


def _end_positions(
    pending: Sequence[PendingDepot], slices: Mapping[str | None, DepotRead]
) -> dict[str | None, DepotPosition]:
    """Return the end positions of depots that were read and had no rows.

    Otherwise another topology's state that never changes would be read from its beginning each time, if it still can.
    """
    passed = {}
    for cursor, arrivals in pending:
        name, last, known = cursor.name, arrivals.last, cursor.reached
        # guard: passed-without-rows
        if name not in slices and last is not None and last > known.depot_version:
            fingerprint = arrivals.listed.fingerprints.get(last)
            passed[name] = known.to(last, fingerprint)
    return passed


def _require_no_gap(pending: Sequence[PendingDepot]) -> None:
    """Raise LedgerBehindError if a stream begins after the version that a ledger reads next."""
    for cursor, arrivals in pending:
        # guard: stream-begins-in-time
        if cursor.reached.depot_version + 1 < arrivals.listed.start:
            raise LedgerBehindError(
                f"the stream begins at depot version {arrivals.listed.start}, but the ledger has read up to "
                f"{cursor.reached.depot_version}",
                "The ledger was restored during the run; the stream starts again.",
            )
