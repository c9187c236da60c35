"""Observers: callbacks for the start of a run, commits, retries, maintenance and the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from windrow.errors import first_line
from windrow.model.clock import Clock
from windrow.model.results import Committed, Maintained, Role
from windrow.operate.log import log
from windrow.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Run:
    """The engine of a run (`spark` or `embedded`), its settings and its clock."""

    engine: str
    settings: Settings
    clock: Clock


class Observer:
    """Callbacks of a run, which waits for each of them. A subclass overrides those it needs."""

    def started(self, run: Run) -> None:
        """Called at the start; depot and ledger are not open yet."""

    def committed(self, committed: Committed) -> None:
        """Called after a microbatch was committed to the ledger."""

    def retrying(self, error: Exception, attempt: int) -> None:
        """Called when attempt number `attempt` failed and another one follows."""

    def maintained(self, maintained: Maintained, took_ms: float) -> None:
        """Called after the maintenance of a table; microbatches waited `took_ms` milliseconds for it."""

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Called when the maintenance of a table failed; the run continues and retries after `maintain_every`."""

    def ended(self, error: BaseException | None) -> None:
        """Called at the end, with the error if there was one."""


class Observers(Observer):
    """Several observers as one. An observer that raises must not stop the run, so its error is logged as a warning."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        """Pass each call on to these observers, in order."""
        self._observers = tuple(observers)
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, partial(self._call, name))

    def _call(self, name: str, *about: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, name)(*about)
            except Exception as error:  # noqa: BLE001 - the class says why
                log.warning("observer failed", observer=type(observer).__name__, told=name, error=first_line(error))


@contextmanager
def observed(run: Run, observers: Iterable[Observer]) -> Iterator[Observers]:
    """Call `started` of the observers, and `ended` when the block is left."""
    together = Observers(observers)
    together.started(run)
    try:
        yield together
    except BaseException as error:
        together.ended(error)
        raise
    together.ended(None)
