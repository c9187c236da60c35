"""Background maintenance: a repeating run maintains the ledger and the depot between two microbatches.

Every `maintain_every` it tidies the ledger. Once a day it does everything that `windrow maintain` does; that part looks
at every file and at the whole log of the depot, which is too much to do every hour. It uses no thread, because a
microbatch would wait for the table's lock anyway.

Maintenance never decides about messages, and no run depends on it. A failure is reported and tried again next time.
"""

from __future__ import annotations

from collections.abc import Sequence

from windrow.engine.protocol import Engine
from windrow.model.clock import Clock
from windrow.model.results import Maintained, Role
from windrow.operate import Observers
from windrow.runtime.maintenance import maintain, tidy
from windrow.settings.settings import Settings

SECOND = 1_000_000  # microseconds
DAY = 86_400 * SECOND


class BackgroundMaintenance:
    """Maintains the tables when it is called between microbatches and the time has come."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        clock: Clock,
        observers: Observers,
        others: Sequence[tuple[Engine, Settings]] = (),
    ) -> None:
        """Remember what to maintain; `observers` are notified of each result and each failure.

        `others` are the further depots of the same ledger, each with the engine that reads it.
        """
        self._engine, self._settings, self._clock, self._observers = engine, settings, clock, observers
        self._depots = [(engine, settings), *others]
        self._due: float | None = None  # seconds of the clock
        self._all_due = 0.0

    def __call__(self) -> list[Maintained]:
        """Return what was done to each table; an empty list before the time has come or when a stop was requested."""
        every = self._settings.run.maintain_every
        if every is None:
            return []
        if self._due is None:
            self._due = self._clock.elapsed() + self._time_left(every) / SECOND
        begun = self._clock.elapsed()
        if begun < self._due:
            return []
        whole = begun >= self._all_due
        done = [self._maintain("ledger", whole, self._engine, self._settings)]
        if whole:
            done += [self._maintain("depot", whole, *depot) for depot in self._depots]
        ended = self._clock.elapsed()
        self._due = ended + every / SECOND
        if whole and None not in done:
            self._all_due = ended + max(every, DAY) / SECOND
        return [one for one in done if one is not None]

    def _time_left(self, every: int) -> int:
        """Return how much is left (microseconds) of the interval that an earlier process began, by the ledger's log.

        The log does not record maintenance that had nothing to compact; in that case nothing is left.
        """
        now = self._clock.now()
        try:
            last = self._engine.table_maintenance("ledger").compacted_at(now - every)
        except Exception:  # noqa: BLE001 - the maintenance itself reports what is wrong with the table
            return 0
        return 0 if last is None else min(last + every - now, every)

    def _maintain(self, table: Role, whole: bool, engine: Engine, settings: Settings) -> Maintained | None:
        """Maintain one table, or only tidy it if not `whole`; None if that failed or a stop was requested."""
        begun = self._clock.elapsed()
        try:
            self._stop_if_asked(table, "")
            if whole:
                now = self._clock.now()
                [done] = maintain(engine, settings, now, table, progress=self._stop_if_asked, asked=False)
            else:
                done = tidy(engine, settings, self._stop_if_asked)
        except _Stopped:
            return None
        except Exception as error:  # noqa: BLE001 - no run depends on maintenance
            self._observers.maintenance_failed(table, error)
            return None
        self._observers.maintained(done, round((self._clock.elapsed() - begun) * 1_000, 3))
        return done

    def _stop_if_asked(self, _: Role, __: str) -> None:
        """Raise _Stopped if a stop was requested. Each step is complete before the next one begins."""
        if self._clock.wait(0):
            raise _Stopped


class _Stopped(Exception):
    """A stop was requested between two steps."""
