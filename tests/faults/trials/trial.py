"""One try of a fault: a random log, what is done to it, and the count of what became of each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.clocks import NOW, ManualClock
from tests.engine.attic import Attic
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.probe import Folding
from tests.engine.world import SKEW, World
from tests.messages import SCHEMA, Row, log, microseconds
from tests.probes import with_probe
from windrow.runtime.loop import Runner
from windrow.testing.points import Probe
from windrow.verify import verify

Message = tuple[Any, ...]
# How Spark works in a try: by MERGE or by files; on the driver, on executors, or as many messages are new and open.
WAYS: list[dict[str, Any]] = [
    {"commit": commit, **where}
    for commit in ("merge", "files")
    for where in ({}, {"max_driver_messages": 8}, {"max_driver_messages": 0})
]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a try gave: messages lost and duplicated, what else differs, and how many of its strikes came in time.

    Where tables cost more than a strike, they get several in one try.
    """

    lost: int
    duplicated: int
    differences: tuple[str, ...]
    struck: int
    strikes: int = 1

    @property
    def sound(self) -> bool:
        """Tell whether all is as if nothing had happened."""
        return not (self.lost or self.duplicated or self.differences)

    @classmethod
    def sum(cls, counted: Iterable[Counted]) -> Counted:
        """Add up what the tables of one try gave."""
        each = list(counted)
        differences = tuple(difference for count in each for difference in count.differences)
        lost, duplicated, struck, strikes = (
            sum(getattr(count, name) for count in each) for name in ("lost", "duplicated", "struck", "strikes")
        )
        return cls(lost, duplicated, differences, struck, strikes)


class Trial:
    """Tables with a random log, some versions of which are still to be published.

    A fault sets `struck` when it took place, `restored` when final rows were taken back or old versions of the ledger
    deleted, so that its versions cannot be compared with each other, and `read_again` when the depot may have messages
    more than once, as long as all but one are rejected.
    """

    def __init__(self, folder: Path, seed: int, factory: EngineFactory) -> None:
        self.random, self.factory = Random(seed), factory
        self.folder, self.world = folder, World(folder, ManualClock())
        versions, size = self.random.randint(3, 7), self.random.randint(1, 15)
        self._left = self._log(versions, size)
        self._published: list[Row] = []
        self.cut = self.random.choice([1, size, 3 * size])
        self.folds = {"fold_commits": self.random.randint(1, 3), "fold_rows": self.random.choice([1, 3, 10_000])}
        self.way = Random(seed).choice(WAYS) if factory.name == "spark" else {}
        self.struck = self.restored = self.ticked = self.read_again = False
        self.result: Counted | None = None  # of a fault that has tables of its own

    @property
    def settings(self) -> dict[str, Any]:
        """Return what every driver is set to."""
        return {"max_messages": self.cut, **self.folds, **self.way}

    def lengthen(self, versions: int, size: int) -> None:
        """Take a longer log, before anything is published."""
        self._left = self._log(versions, size)

    def _log(self, versions: int, size: int) -> list[list[Row]]:
        return [[_apart(row) for row in rows] for rows in log(versions, self.random.randrange(2**32), size)]

    def publish(self, versions: int = 100, times: int = 1) -> None:
        """Append versions of the log that are left, each so many times."""
        for rows in self._left[:versions]:
            self.world.publish(*[rows] * times)
            self._published += rows * times
        self._left = self._left[versions:]

    def taken(self, versions: int) -> list[list[Row]]:
        """Return versions of the log that are left, for another way into the depot than `publish`.

        Messages ahead of the clock are left out, because the wall clock decides about them.
        """
        chosen_versions = [[row for row in rows if row["key"] != "ahead"] for rows in self._left[:versions]]
        self._left = self._left[versions:]
        self._published += [row for rows in chosen_versions for row in rows]
        return chosen_versions

    def half(self) -> None:
        """Publish some versions and read them; then publish the others."""
        self.publish(self.random.randint(1, len(self._left) - 1))
        self.run()
        self.publish()

    def driver(self, at: Probe | None = None, **settings: Any) -> Runner:
        """Return a driver of the engine that is tried, with a probe if one is given; it folds often."""
        values = self.settings | settings
        if at is None:
            return self.world.runner(self.factory, **values)
        return self.world.runner(self.factory, with_probe(at, Folding), **values)

    def run(self, at: Probe | None = None, **settings: Any) -> None:
        """Run once."""
        self.driver(at, **settings).once()

    def strike(self, act: Callable[[], object]) -> Callable[[], None]:
        """Return an act that says that it took place."""

        def struck() -> None:
            act()
            self.struck = True

        return struck

    def counted(self) -> Counted:
        """Read what is left, undisturbed, and count."""
        if self.result is not None:
            return self.result
        self.publish()
        self.world.runner(EMBEDDED).once()
        Attic(self.world.depot).bring_back()
        lost, duplicated = self._lost_and_duplicated()
        report = verify(self.world.depot, self.world.ledger)
        books = report.books[-1]
        differences = (*map(str, report.differences), *self._undisturbed(), *self._unbalanced(), *self._amended())
        return Counted(max(lost, books.lost), max(duplicated, books.duplicated), differences, self.struck)

    def _lost_and_duplicated(self) -> tuple[int, int]:
        """Compare what was published with what the ledger holds, message by message."""
        published, batches = Counter(map(_message, self._published)), self.world.rows("open", "closed")
        stored = Counter(_held(batches, self.world.rows("rejected")))
        once = Counter(_held(batches, [])) if self.read_again else stored
        return (published - stored).total(), (once - published).total()

    def _amended(self) -> Iterator[str]:
        """Say if the current batches, which amendments change, do not have the same messages."""
        gone = {row["superseded_id"] for row in self.world.rows("superseded")}
        if not gone:
            return
        batches, amended, rejected = (self.world.rows(*of) for of in (("open", "closed"), ("amended",), ("rejected",)))
        current = [row for row in (*batches, *amended) if row["id"] not in gone]
        refused = [row for row in rejected if row["id"] not in gone]
        if Counter(_held(current, refused)) != Counter(_held(batches, rejected)):
            yield "current batches that have other messages than the closed ones and what was let in"

    def _undisturbed(self) -> Iterator[str]:
        """Say how it differs from the same history done again, and where only messages decided, from one call."""
        ours = self.world.canonical()
        if not self.world.replayed().equal:
            yield "another result than that of the same history done again"
        if not self.ticked and ours != self.world.expected():
            yield "another result than that of one call"

    def _unbalanced(self) -> Iterator[str]:
        """Say which books do not balance, of each version unless it was restored."""
        try:
            self.world.check_books(self.world.version() - 1 if self.restored else -1)
        except AssertionError as error:
            yield str(error)
        numbers = [row["microbatch"] for row in self.world.history()]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"microbatches are numbered {numbers}"


def _apart(row: Row) -> Row:
    """Keep the key `ahead` to messages that are ahead of the clock, as `World.expected` needs it."""
    return row | {"key": "k"} if row["key"] == "ahead" and row["received_at"] <= NOW + SKEW else row


def _held(batches: list[Row], rejected: list[Row]) -> Iterator[Message]:
    """Return all messages of batches and rejections."""
    for batch in batches:
        for part in batch["messages"]:
            yield _message({"source": batch["source"], "key": batch["key"]} | part)
    yield from map(_message, rejected)


def _message(row: Row) -> Message:
    """Return a message as it can be counted, times in microseconds."""
    return tuple(
        microseconds(value) if isinstance(value, datetime) else value for value in (row[name] for name in SCHEMA.names)
    )
