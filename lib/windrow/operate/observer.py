"""Observers: callbacks for the start and end of a run, commits, retries and maintenance; the log is an observer too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial

from windrow.errors import WindrowError, first_line
from windrow.model.clock import Clock
from windrow.model.durations import to_toml
from windrow.model.results import CommittedMicrobatch, MaintenanceResult, Role
from windrow.operate.log import log
from windrow.settings.settings import Settings
from windrow.version import VERSION

COUNTS = ("message_count", "accepted", "rejected", "opened", "closed")
# The fields in the log line of a microbatch, before and after the engine.
FIRST = (
    "kind", "attempt", "depot_version", "message_count", "accepted", "rejected", "reasons", "opened", "closed",
    "open_batch_count", "processed_on",
)  # fmt: skip
LAST = ("prime_ms", "plan_ms", "process_ms", "commit_ms", "lag_ms")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The engine of a run (`spark` or `embedded`), its settings and its clock, and where its depots are, by name.

    The depot of a batcher has the empty name.
    """

    engine: str
    settings: Settings
    clock: Clock
    depots: Mapping[str, str] = field(default_factory=dict)


class Observer:
    """Callbacks of a run, which waits for each of them. Subclasses override those that they need."""

    def started(self, run: RunInfo) -> None:
        """Called at the start; depot and ledger are not open yet."""

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Called after a microbatch was committed to the ledger."""

    def retrying(self, error: Exception, attempt: int) -> None:
        """Called when attempt number `attempt` failed and another follows."""

    def maintained(self, maintained: MaintenanceResult, took_ms: float) -> None:
        """Called after the maintenance of a table; microbatches waited `took_ms` milliseconds for it."""

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Called when the maintenance of a table failed; the run continues and retries after `maintenance_interval`."""

    def ended(self, error: BaseException | None) -> None:
        """Called at the end, with the error if there was one."""


class Observers(Observer):
    """Several observers as one. An observer that raises must not stop the run, so its error is logged as a warning."""

    def __init__(self, observers: Iterable[Observer]) -> None:
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
def notify_observers(run: RunInfo, observers: Iterable[Observer]) -> Iterator[Observers]:
    """Call `started` of the observers, and `ended` when the block ends."""
    together = Observers(observers)
    together.started(run)
    try:
        yield together
    except BaseException as error:
        together.ended(error)
        raise
    together.ended(None)


class LogObserver(Observer):
    """Writes the log of a run; each microbatch is one line."""

    def started(self, run: RunInfo) -> None:
        """Log the engine and the tables."""
        self._run, self._begun, self._totals = run, run.clock.elapsed(), Counter[str]()
        tables = {"depot": run.settings.depot, "ledger": run.settings.ledger}
        log.info("run started", engine=run.engine, **tables, windrow=VERSION)

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Log the counts of a microbatch and the durations of its phases (milliseconds)."""
        self._totals.update({name: getattr(committed, name) for name in COUNTS})
        self._totals["microbatch_count"] += 1
        if committed.kind == "rules":
            rules = to_toml(self._run.settings.rules.model_dump())
            log.info("rules changed", number=committed.microbatch, **rules)
        first, last = ({name: getattr(committed, name) for name in names} for names in (FIRST, LAST))
        log.info("microbatch", number=committed.microbatch, **first, engine=self._run.engine, **last)

    def retrying(self, error: Exception, attempt: int) -> None:
        """Log why an attempt failed."""
        log.warning("retry", attempt=attempt, code=_code(error), error=first_line(error))

    def maintained(self, maintained: MaintenanceResult, took_ms: float) -> None:
        """Log the maintenance of a table, and how long microbatches waited for it (milliseconds)."""
        log.info("maintenance", **asdict(maintained), took_ms=took_ms)

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Log why the maintenance of a table failed."""
        log.warning("maintenance failed", table=table, code=_code(error), error=first_line(error))

    def ended(self, error: BaseException | None) -> None:
        """Log the totals; the command prints the error itself."""
        seconds = round(self._run.clock.elapsed() - self._begun, 3)
        totals = {name: self._totals[name] for name in ("microbatch_count", *COUNTS)} | {"seconds": seconds}
        if error is None:
            log.info("run ended", **totals)
        else:
            log.error("run failed", code=_code(error), **totals)


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, WindrowError) else type(error).__name__
