"""A driver of one ledger: it primes microbatches, notes what other drivers committed, and retries what failed.

Between two microbatches a driver keeps only the number of failed attempts; everything else is read from the ledger, so
it may die at any point. `ConcurrentCommitError` says that another driver was faster: this one primes again. Other
errors count as failed attempts. `windrow.runtime` lists the states of a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

from windrow.errors import ConcurrentCommitError, LedgerBehindError, PausedError, TableUnwritableError, first_line
from windrow.ledger import Ledger
from windrow.ledger.versions import Fold
from windrow.model.clock import Clock
from windrow.model.results import CommittedMicrobatch, MaintenanceResult
from windrow.operate.log import log
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.depot_cursor import DepotCursor
from windrow.runtime.ledger_state import LedgerState
from windrow.runtime.microbatch import MicrobatchAttempt
from windrow.runtime.opening import DepotReader, open_ledger
from windrow.runtime.phase_timeout import run_with_timeout
from windrow.runtime.retry import Retry, do_nothing
from windrow.runtime.saved_plan import SavedPlan
from windrow.settings.settings import Settings
from windrow.source import Source

T = TypeVar("T")


@dataclass(slots=True)
class RunSummary:
    """What a run did: its microbatches in order, and the maintenance between them.

    `others` counts the microbatches that it found already committed: by another driver, or by itself if the reply was
    lost.
    """

    engine: str
    microbatches: list[CommittedMicrobatch] = field(default_factory=list)
    paused: bool = False
    maintained: list[MaintenanceResult] = field(default_factory=list)
    others: int = 0

    def total(self, name: str) -> int:
        """Return the sum of a count over all microbatches."""
        return sum(getattr(microbatch, name) for microbatch in self.microbatches)


class Driver:
    """Drives one ledger. `report` is called after each commit, `retrying` before each retry."""

    def __init__(
        self,
        readers: Sequence[DepotReader],
        ledger: Ledger,
        algorithm: Algorithm,
        clock: Clock,
        report: Callable[[CommittedMicrobatch], None] = do_nothing,
        retrying: Callable[[Exception, int], None] = do_nothing,
    ) -> None:
        """Open the ledger, or create it where `start_from` begins. Raises the errors of `open_ledger`."""
        self.ledger, self.algorithm, self.clock, self.report = ledger, algorithm, clock, report
        self.summary = RunSummary(ledger.engine_name)
        self.retry = Retry(ledger.settings.max_retries, clock, retrying)
        self._primed: MicrobatchAttempt | None = None  # primed by `begin_round`, not used yet
        # Token and table version of the ledger: at the last prime, and where it last refused a commit.
        self._primed_at: tuple[str, int] | None = None
        self._refused_at: tuple[str, int] | None = None
        primed = open_ledger(readers, ledger, algorithm, clock.now())
        self.cursors = [DepotCursor(reader, primed.depots[reader.name].reached) for reader in readers]
        self.number, self.options = primed.microbatch, algorithm.options(primed)
        self.settings_recorded = primed.rules == algorithm.settings
        self._saved_plans = algorithm.saved_plans  # beside the table, which exists now
        # The state token of the last prime, None in a batcher and after a commit, which changes the state.
        self._state: str | None = None if self._saved_plans is None else primed.state_token

    @property
    def settings(self) -> Settings:
        """Return the settings of the ledger."""
        return self.ledger.settings

    @property
    def sources(self) -> dict[str | None, Source]:
        """Return the sources of the depots, by name."""
        return {cursor.name: cursor.source for cursor in self.cursors}

    @property
    def stop_requested(self) -> bool:
        """Tell whether the clock asks for a stop."""
        return self.clock.wait(0)

    def do(self, work: Callable[[], None]) -> RunSummary:
        """Do `work` and return the summary; after a transient failure, retry with backoff, up to the limit.

        ConcurrentCommitError and LedgerBehindError do not count as failures: the ledger has moved, and the next prime
        sees that.
        """
        while True:
            try:
                work()
            except (ConcurrentCommitError, LedgerBehindError) as error:
                if isinstance(error, ConcurrentCommitError):
                    self.note_refused()
                self.search_again()
            except Exception as error:  # noqa: BLE001 - `back_off` raises those that would come again
                self.retry.back_off(error)
            else:
                return self.summary
            self._primed = None

    def in_time(self, work: Callable[[], T]) -> T:
        """Return the result of reading depots, which is part of the plan. Raises PhaseTimeoutError."""
        return run_with_timeout("plan", self.options.phase_timeout, self.ledger.engine.session_at_work, work)

    def search_again(self) -> None:
        """Forget which versions of the depots were searched: the ledger may have gone back."""
        for cursor in self.cursors:
            cursor.search_again()

    def note_refused(self) -> None:
        """Note that the ledger refused a commit on the last primed state."""
        self._refused_at = self._primed_at

    def begin_round(self) -> None:
        """Prime a microbatch, and commit changed settings of the algorithm, unless the ledger is paused."""
        microbatch = self.prime()
        # guard: paused-follows-no-rules
        if not (microbatch.primed.paused or self.commit_changed_settings(microbatch)):
            self._primed = microbatch

    def primed_attempt(self) -> MicrobatchAttempt:
        """Return the microbatch that `begin_round` primed, or prime one.

        The depots were read in between. If the ledger has changed since, the fence refuses the commit.
        """
        microbatch, self._primed = self._primed, None
        if microbatch is None:
            return self.prime()
        microbatch.restart_clock()
        return microbatch

    def unpaused_attempt(self, action: str) -> MicrobatchAttempt:
        """Return a primed microbatch, after committing changed settings of the algorithm. Raises PausedError."""
        while True:
            microbatch = self.primed_attempt()
            # guard: paused-takes-no-tick
            if microbatch.primed.paused:
                raise PausedError(f"the ledger is paused, so no {action} is possible", "Run `windrow resume` first.")
            # guard: tick-follows-rules
            if not self.commit_changed_settings(microbatch):
                return microbatch

    def commit_changed_settings(self, microbatch: MicrobatchAttempt) -> bool:
        """Commit the algorithm's settings if they differ from the recorded ones; return whether it committed.

        The floors that belong to them change in the same commit. Every microbatch checks this: another driver may have
        other settings.
        """
        primed = microbatch.primed
        if primed.rules == self.algorithm.settings:
            return False
        self.record(microbatch.run_change(self.algorithm.cuts_after_change(primed)))
        self.ledger.create_views()  # of a topology: its states may have other columns now
        return True

    def prime(self, limit: bool = True) -> MicrobatchAttempt:
        """Prime a microbatch, and note commits since the last prime by another driver, or whose reply was lost.

        Without `limit` there is no phase timeout.
        """
        self._primed = None
        timeout = self.options.phase_timeout if limit else None
        microbatch = self._microbatch(timeout)
        takes_all = self.ledger.commit_mode == "merge"  # its small folds cannot choose files
        fold = microbatch.primed.fence.due_fold(self.settings.fold_commits, self.settings.fold_rows, takes_all)
        if fold is not None and not microbatch.primed.paused:
            self._fold(microbatch.primed, fold)
            microbatch = self._microbatch(timeout)
        primed = microbatch.primed
        self._require_moved(primed)
        for cursor in self.cursors:
            reached = primed.depots[cursor.name].reached
            # guard: back-is-read-again
            if reached.depot_version < cursor.reached.depot_version:
                cursor.search_again()
            cursor.reached = reached
        if primed.microbatch != self.number:
            # guard: attempts-anew
            self.retry.attempt = microbatch.attempt = 1
            self.summary.others += max(0, primed.microbatch - self.number)
        self.number = primed.microbatch
        self._state = None if self._saved_plans is None else primed.state_token
        self.options = self.algorithm.options(primed)
        self.summary.paused = primed.paused
        return microbatch

    def _microbatch(self, timeout: int | None) -> MicrobatchAttempt:
        return MicrobatchAttempt(self.ledger, self.sources, self.algorithm, self.clock, self.retry.attempt, timeout)

    def _fold(self, primed: LedgerState, fold: Fold) -> None:
        """Fold the ledger. No run depends on maintenance: a failure is logged, and the fold is tried again later."""
        try:
            self.ledger.fold(primed.fence, fold)
        except ConcurrentCommitError:
            pass
        # guard: failed-fold-is-told
        except Exception as error:  # noqa: BLE001 - of whatever library
            log.warning("fold failed", ledger=self.settings.ledger, fold=fold, error=first_line(error))

    def _require_moved(self, primed: LedgerState) -> None:
        """Raise TableUnwritableError if the ledger refused a commit and is unchanged: it would refuse every commit."""
        refused_at, self._refused_at = self._refused_at, None
        self._primed_at = primed.token, primed.fence.table_version
        # guard: refusal-told
        if self._primed_at == refused_at:
            raise TableUnwritableError(
                f"the ledger {self.settings.ledger} refuses a commit as if it had changed, but it is unchanged",
                "Nothing was written. Check whether Spark and the driver see the same state of the table.",
            )

    def record(self, committed: CommittedMicrobatch) -> None:
        """Note what was committed, and report it."""
        self.retry.attempt = 1
        self._primed, self._state = None, None
        for cursor in self.cursors:
            name = cursor.name
            version = committed.depot_version if name is None else committed.depots.get(name)
            if version is not None:
                cursor.reached, cursor.following = cursor.reached.to(version, None), None
        self.number = committed.microbatch
        self.summary.microbatches.append(committed)
        self.report(committed)

    def saved_plan(self) -> SavedPlan | None:
        """Return what an earlier attempt at the next microbatch planned, None if there was none."""
        if self._saved_plans is None or self._state is None:
            return None
        return self._saved_plans.load(self._state)

    def save_plan(self, planned: SavedPlan) -> bool:
        """Save the plan of the next microbatch; return whether it stands, because there was no other."""
        if self._saved_plans is None or self._state is None:
            return False
        return self._saved_plans.save(self._state, planned) == planned

    def begin_attempt(
        self,
        microbatch: MicrobatchAttempt,
        last_versions: Mapping[str, int],
        overtaken: Sequence[str] = (),
        until: int | None = None,
    ) -> SavedPlan | None:
        """Return the plan that stands for a microbatch, None in a batcher, whose attempts may differ.

        Raises ConcurrentCommitError if another driver has committed since prime: the plan is then useless.
        """
        if self._saved_plans is None:
            return None
        number = self.algorithm.number(microbatch.primed.microbatch + 1)
        until = until if last_versions else self.algorithm.until(microbatch.started_at)
        plan = SavedPlan(
            number, microbatch.started_at, last_versions, until=until, overtook=list(overtaken), token=uuid4().hex
        )
        planned = self._saved_plans.begin(microbatch.primed.state_token, lambda: plan)
        # guard: planned-on-the-latest
        microbatch.require_latest()
        microbatch.attempt = planned.attempt
        return planned

    def forget_plan(self) -> None:
        """Delete the plan of the microbatch that was committed."""
        if self._saved_plans is not None:
            self._saved_plans.forget()

    def __getstate__(self) -> dict[str, object]:
        """Drop what belongs to this process: on Spark Connect a copy in another process handles the arrivals."""
        return self.__dict__ | {"report": do_nothing, "_primed": None, "summary": RunSummary(self.summary.engine)}
