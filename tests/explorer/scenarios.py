"""The scenarios: which processes work on a depot and its ledger, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.explorer.scheduler import Execution, Program
from tests.explorer.tables import MemoryLedger, MemorySource, MemoryTable, Shared, Tables
from tests.messages import SECOND, Row, message
from windrow.errors import DepotChangedError, PausedError
from windrow.runtime.loop import Runner
from windrow.runtime.opening import DepotReader
from windrow.runtime.run import batcher_of
from windrow.settings.settings import Settings
from windrow.testing.clock import NOW

USUAL: Mapping[str, Any] = {
    "engine": "embedded",
    "idle_timeout": "never",
    "max_messages": 2,
    "max_retries": 1,
    "commit": "files",
}
HOUR = 3_600 * SECOND
Work = Callable[[Execution, Mapping[str, Any]], None]


class StandingClock:
    """A clock that stands still, so many microseconds ahead of the right one, and never asks for a stop."""

    def __init__(self, ahead: int = 0) -> None:
        self._now = NOW + HOUR + ahead

    def now(self) -> int:
        """Return a time at which all messages have arrived long since."""
        return self._now

    def elapsed(self) -> float:
        """Return a moment."""
        return 0.0

    def wait(self, microseconds: int) -> bool:
        """Wait for nothing."""
        return False


def sent(number: int, second: int, type_: str = "a", source: str = "") -> Row:
    """Return a message, told apart by its payload, that arrives at the second at which it was made."""
    at = NOW + second * SECOND
    return message(type_, at, at, source=source, payload=f"#{number}")


# In the second version a window grows and is closed, and a message comes twice; a window of another source grows, by a
# message that comes before the one that it has, and stays open; a message of a third source comes too late.
LOG = (
    [sent(1, 0), sent(2, 1, "b"), sent(5, 0, "b", source="other"), sent(7, 30, source="third")],
    [sent(3, 2, "c"), sent(4, 20), sent(4, 20), sent(6, 0, source="other"), sent(8, 0, source="third")],
)


def depot(versions: int) -> MemoryTable:
    """Return a depot with so many versions of the log."""
    found = MemoryTable()
    for rows in LOG[:versions]:
        found = found.appended(rows)
    return found


def runner(execution: Execution, values: Mapping[str, Any], ahead: int = 0) -> Runner:
    """Return a runner of a process, with the settings of a scenario and a clock that is `ahead` (microseconds)."""
    settings, shared = Settings(depot="depot", ledger="ledger", **(dict(USUAL) | dict(values))), Shared(execution)
    source, ledger = MemorySource(settings, shared), MemoryLedger(settings, shared)
    return Runner([DepotReader(None, source)], ledger, batcher_of(settings), StandingClock(ahead))


def drive(execution: Execution, values: Mapping[str, Any]) -> None:
    """Read the depot to its end."""
    runner(execution, values).once()


def drive_fast(execution: Execution, values: Mapping[str, Any]) -> None:
    """Read the depot to its end, with a clock that is an hour fast."""
    runner(execution, values, HOUR).once()


def drive_by_other_rules(execution: Execution, values: Mapping[str, Any]) -> None:
    """Read the depot to its end under other rules."""
    runner(execution, {**values, "rules": {**values.get("rules", {}), "max_delay": "1s"}}).once()


def tick(execution: Execution, values: Mapping[str, Any]) -> None:
    """Close what is overdue, unless the ledger is paused."""
    with suppress(PausedError):
        runner(execution, {**values, "idle_timeout": "1s"}).tick()


def flush(execution: Execution, values: Mapping[str, Any]) -> None:
    """Close everything, unless the ledger is paused."""
    with suppress(PausedError):
        runner(execution, values).flush()


def pause_and_resume(execution: Execution, values: Mapping[str, Any]) -> None:
    """Pause the ledger, and resume it."""
    control = runner(execution, values)
    control.pause()
    control.resume()


def resume_and_drive(execution: Execution, values: Mapping[str, Any]) -> None:
    """End a pause that somebody left, and read the depot to its end."""
    last = runner(execution, values)
    last.resume()
    last.once()


def publish(execution: Execution, values: Mapping[str, Any]) -> None:
    """Append what the depot does not have yet."""

    def published(now: Tables) -> Tables:
        have = len(now.depot.versions)
        return replace(now, depot=now.depot.appended(LOG[have])) if have < len(LOG) else now

    for _ in LOG[1:]:
        Shared(execution).write("publish", published)


def set_back(execution: Execution, values: Mapping[str, Any]) -> None:
    """Put an older copy of the depot in its place, and bring the whole one back."""
    Shared(execution).write("set back", lambda now: replace(now, depot=depot(1)))
    Shared(execution).write("bring back", lambda now: replace(now, depot=depot(len(LOG))))


def restore(execution: Execution, values: Mapping[str, Any]) -> None:
    """RESTORE the ledger to the version before its latest one."""

    def restored(now: Tables) -> Tables:
        return replace(now, ledger=now.ledger.restored(now.ledger.latest - 1)) if now.ledger.latest > 0 else now

    Shared(execution).write("restore", restored)


@dataclass(frozen=True)
class Scenario:
    """Processes by name, how often each may begin, and how much of the log the depot has at the beginning.

    `same` says that the result is that of one driver without faults, whoever commits what. `kind` says what is run.
    """

    name: str
    works: Mapping[str, Work]
    values: Mapping[str, Any] = field(default_factory=dict)
    published: int = len(LOG)
    lives: int = 2
    same: bool = True
    kind: Literal["batcher", "topology", "timers"] = "batcher"

    @property
    def reads_all(self) -> bool:
        """Tell whether a process that ends without an error leaves a ledger that has read what was there first."""
        return not {work.__name__ for work in self.works.values()} - READ_OR_PUBLISH

    @property
    def writers(self) -> set[str]:
        """Return the processes that write the depot."""
        return {name for name, work in self.works.items() if work in (publish, set_back)}

    def stops(self, error: BaseException) -> bool:
        """Tell whether a process may end with an error: one that notices that the depot was set back."""
        return set_back in self.works.values() and isinstance(error, DepotChangedError)

    def programs(self) -> dict[str, Program]:
        """Return the processes, none of which has begun."""
        return {name: self.program(name, work, self.lives) for name, work in self.works.items()}

    def program(self, name: str, work: Work, lives: int = 1) -> Program:
        """Return a process with the settings of the scenario."""
        return Program(name, lambda execution: work(execution, self.values), lives)


# Nothing here stops a driver, or takes back what was committed.
READ_OR_PUBLISH = {"drive", "drive_fast", "drive_by_other_rules", "count", "remind", "remind_fast", "publish"}
MERGE = {"commit": "merge"}
# Half an hour after the right clock a source is idle; one that is an hour fast has passed that when it begins.
IDLE = {"idle_timeout": "90m"}
FOLDS = {"fold_commits": 2, "fold_rows": 1}
ALIGNED = {"rules": {"window_anchor": "aligned"}}
TWO: Mapping[str, Work] = {"one": drive, "two": drive}
SCENARIOS: Sequence[Scenario] = (
    Scenario("one driver", {"driver": drive}),
    Scenario("one driver, by MERGE", {"driver": drive}, MERGE),
    Scenario("one driver, folds", {"driver": drive}, FOLDS),
    Scenario("two drivers", TWO),
    Scenario("two drivers, by MERGE", TWO, MERGE),
    Scenario("two drivers, folds", TWO, FOLDS),
    Scenario("two drivers, a depot that grows", {**TWO, "producer": publish}, published=1),
    Scenario("two drivers, a depot that is set back", {**TWO, "operator": set_back}),
    Scenario("two drivers and a tick", {**TWO, "tick": tick}, same=False),
    Scenario("two drivers and a flush", {**TWO, "flush": flush}, same=False),
    Scenario("a driver and a flush, aligned windows", {"driver": drive, "flush": flush}, ALIGNED, same=False),
    Scenario("two drivers and a pause", {**TWO, "pause": pause_and_resume}),
    Scenario("two drivers and a pause, by MERGE", {**TWO, "pause": pause_and_resume}, MERGE),
    Scenario("two drivers and a RESTORE", {**TWO, "restore": restore}),
    Scenario("two drivers and a RESTORE, by MERGE", {**TWO, "restore": restore}, MERGE),
    Scenario("two drivers with different rules", {"one": drive, "two": drive_by_other_rules}, same=False),
    Scenario(
        "two drivers with different rules, aligned windows",
        {"one": drive, "two": drive_by_other_rules},
        ALIGNED,
        same=False,
    ),
    Scenario("two drivers, one clock an hour fast", {"one": drive, "fast": drive_fast}),
    Scenario(
        "two drivers, one clock an hour fast, a depot that grows and idle sources",
        {"one": drive, "fast": drive_fast, "producer": publish},
        IDLE,
        published=1,
        same=False,
    ),
    Scenario("three drivers", {**TWO, "three": drive}),
    Scenario("three drivers, by MERGE", {**TWO, "three": drive}, MERGE),
)
