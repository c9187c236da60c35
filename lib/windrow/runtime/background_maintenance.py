"""The background of a run that goes on: between two microbatches it looks after ledger and depot, now and then.

Once in `maintain_every` it tidies the ledger, and once a day it does all that `windrow maintain` does: the rest looks
at every file and at the whole log of the depot, which would be too much for every hour, and what it removes has been
there for `keep`. It has no thread of its own, because a microbatch would wait for the lock of the table anyway.

Nothing of it decides about messages, and no run depends on it: what fails is told, and tried again the next time.
"""

from __future__ import annotations

from collections.abc import Sequence

from windrow.engine.protocol import WholeEngine
from windrow.model.clock import Clock
from windrow.model.results import Maintained, Role
from windrow.operate import Observers
from windrow.runtime.maintenance import maintain, tidy
from windrow.settings.settings import Settings

SECOND = 1_000_000  # microseconds
DAY = 86_400 * SECOND


class BackgroundMaintenance:
    """Is called between microbatches, and looks after the tables when it is time."""

    def __init__(
        self,
        engine: WholeEngine,
        settings: Settings,
        clock: Clock,
        told: Observers,
        others: Sequence[tuple[WholeEngine, Settings]] = (),
    ) -> None:
        """Look at nothing yet; `told` will hear of what is done, and of what fails.

        `others` are the further depots of the same ledger, each with the engine that reads it.
        """
        self._engine, self._settings, self._clock, self._told = engine, settings, clock, told
        self._depots = [(engine, settings), *others]
        self._due: float | None = None  # seconds of the clock
        self._all_due = 0.0

    def __call__(self) -> list[Maintained]:
        """Return what was done to each table: nothing before it is time, or when a stop was asked for."""
        every = self._settings.run.maintain_every
        if every is None:
            return []
        if self._due is None:
            self._due = self._clock.elapsed() + self._rest(every) / SECOND
        begun = self._clock.elapsed()
        if begun < self._due:
            return []
        whole = begun >= self._all_due
        done = [self._look_after("ledger", whole, self._engine, self._settings)]
        if whole:
            done += [self._look_after("depot", whole, *depot) for depot in self._depots]
        ended = self._clock.elapsed()
        self._due = ended + every / SECOND
        if whole and None not in done:
            self._all_due = ended + max(every, DAY) / SECOND
        return [one for one in done if one is not None]

    def _rest(self, every: int) -> int:
        """Return what is left (microseconds) of the interval that an earlier process began, as the ledger's log has it.

        A maintenance that found nothing to put together is not in the log: then it is time.
        """
        now = self._clock.now()
        try:
            last = self._engine.table_maintenance("ledger").compacted_at(now - every)
        except Exception:  # noqa: BLE001 - the maintenance itself will say what is wrong with the table
            return 0
        return 0 if last is None else min(last + every - now, every)

    def _look_after(self, table: Role, whole: bool, engine: WholeEngine, settings: Settings) -> Maintained | None:
        """Do what is to be done to a table; None when it failed, or a stop was asked for meanwhile."""
        begun = self._clock.elapsed()
        try:
            self._go_on(table, "")
            if whole:
                now = self._clock.now()
                [done] = maintain(engine, settings, now, table, progress=self._go_on, asked=False)
            else:
                done = tidy(engine, settings, self._go_on)
        except _Stopped:
            return None
        except Exception as error:  # noqa: BLE001 - the module says why
            self._told.maintenance_failed(table, error)
            return None
        self._told.maintained(done, round((self._clock.elapsed() - begun) * 1_000, 3))
        return done

    def _go_on(self, _: Role, __: str) -> None:
        """Go on with the next step, unless a stop was asked for: between two steps all that was done is whole."""
        if self._clock.wait(0):
            raise _Stopped


class _Stopped(Exception):
    """A stop was asked for between two steps."""
