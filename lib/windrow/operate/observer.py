"""Observers: who is told of a run's start, of each commit, of each retry, of maintenance, and of its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from windrow.errors import first_line
from windrow.model.clock import Clock
from windrow.model.results import Committed, Maintained, Role
from windrow.operate.log import log
from windrow.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Run:
    """The engine of a run (`spark` or `embedded`), its settings, and the clock that it goes by."""

    engine: str
    settings: Settings
    clock: Clock


class Observer:
    """Is told what a run does, and the run waits for it. A subclass has the methods for what it wants to hear."""

    def started(self, run: Run) -> None:
        """Hear that a run begins; its depot and ledger are not open yet."""

    def committed(self, committed: Committed) -> None:
        """Hear that a microbatch is in the ledger."""

    def retrying(self, error: Exception, attempt: int) -> None:
        """Hear that an attempt failed, and which one it was; another follows."""

    def maintained(self, maintained: Maintained, took_ms: float) -> None:
        """Hear what was done to the files of a table between two microbatches."""

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Hear that looking after a table failed; the run goes on, and tries it again after `maintain_every`."""

    def ended(self, error: BaseException | None) -> None:
        """Hear that the run is over, by itself or by an error."""


class Observers:
    """Several observers as one. What looks on must not stop what it looks at: one that raises leaves a warning."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        """Tell these, in their order."""
        self._observers = tuple(observers)

    def started(self, run: Run) -> None:
        """Tell all that a run begins."""
        self._tell("started", run)

    def committed(self, committed: Committed) -> None:
        """Tell all of a commit."""
        self._tell("committed", committed)

    def retrying(self, error: Exception, attempt: int) -> None:
        """Tell all of a failed attempt."""
        self._tell("retrying", error, attempt)

    def maintained(self, maintained: Maintained, took_ms: float) -> None:
        """Tell all what was done to the files of a table."""
        self._tell("maintained", maintained, took_ms)

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Tell all that looking after a table failed."""
        self._tell("maintenance_failed", table, error)

    def ended(self, error: BaseException | None) -> None:
        """Tell all that the run is over."""
        self._tell("ended", error)

    def _tell(self, what: str, *about: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*about)
            except Exception as error:  # noqa: BLE001 - the class says why
                log.warning("observer failed", observer=type(observer).__name__, told=what, error=first_line(error))


@contextmanager
def observed(run: Run, observers: Iterable[Observer]) -> Iterator[Observers]:
    """Tell observers that a run begins, and when the block is left that it is over."""
    told = Observers(observers)
    told.started(run)
    try:
        yield told
    except BaseException as error:
        told.ended(error)
        raise
    told.ended(None)
