"""The machine that makes up histories: everything that can happen to a depot, its drivers and their ledger.

It is one machine for all worlds (`world.py`). A history begins with a depot and an empty ledger. Then, in any order:

- the depot grows, by one version or several;
- a driver runs in microbatches of some size, dies at a point of one, or fails there;
- a step is taken `BESIDE` a driver that has come to a point, or `BETWEEN` two drivers: others read everything, what
  came last is sent again, ledger and depot are restored, compacted, maintained, cleaned up, touched, copied, the wall
  clock jumps;
- somebody pauses it `BY_HAND`, lets it go on, or gives drivers other rules.

After each step the books of the versions that are new balance. In the end what is left is read, and the result is what
it would be if nothing had happened.

What is published, how a driver is opened, which rules drivers have, what balances and what the result must be, says the
world. The machine of a kind of world is a subclass that names its worlds and adds steps which only these know: ticks
and flushes of the batcher below, options, rollbacks and a second depot of the bank in `tests/topology/histories.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from deltalake import DeltaTable
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.clocks import NOW, ManualClock
from tests.engine.attic import DAYS, Attic, age, clean_up
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import AlignedWorld, World
from tests.messages import HOUR, SECOND, Row, message
from tests.probes import act_once, fail_times
from windrow.errors import ConcurrentCommitError, DepotChangedError, PausedError
from windrow.runtime.driver import RunSummary
from windrow.runtime.loop import Runner
from windrow.runtime.maintenance import maintain
from windrow.runtime.wall_clock import WallClock
from windrow.testing.points import Point

LEAPS = [0, 1, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND]
JUMPS = [-HOUR, -10 * SECOND, HOUR]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(-7, 2).map(lambda seconds: seconds * SECOND),
        st.sampled_from(["", "s", "t/1"]),
        st.sampled_from(["k", "l", None]),
    ),
    min_size=1,
    max_size=6,
)
SHARES = st.integers(0, 5)


def steps(when: str) -> st.SearchStrategy[str]:
    """Return the steps that a machine has under a name, which only its world knows."""
    return st.runner().flatmap(lambda machine: st.sampled_from(getattr(machine, when)))


class Crash(BaseException):
    """The end of a driver, which nothing catches."""


def die() -> None:
    """End a driver."""
    raise Crash


class Histories(RuleBasedStateMachine):
    """A depot that is written, drivers that come and go, and a ledger whose books must balance all the time."""

    worlds: ClassVar[Sequence[type[World]]]
    BESIDE: ClassVar[Sequence[str]] = (
        "resend", "other_driver", "two_other_drivers", "driver_of_other_rules", "pause", "restore_ledger",
        "compact_ledger", "compact_depot", "maintain", "fold",
    )  # fmt: skip
    BY_HAND: ClassVar[Sequence[str]] = ("pause", "resume", "change_rules")
    BETWEEN: ClassVar[Sequence[str]] = (
        "resend", "overtaken", "restore_ledger", "restore_depot", "compact_ledger", "compact_depot", "maintain", "fold",
        "clean_up_ledger", "clean_up_depot", "touch", "copy", "jump",
    )  # fmt: skip

    def __init__(self, factory: EngineFactory = EMBEDDED) -> None:
        super().__init__()
        self.factory = factory

    @initialize(rows=ROWS, share=SHARES, most=st.sampled_from([500_000, 8, 0]))
    def begin(self, rows: list[tuple[Any, ...]], share: int, most: int) -> None:
        """Create depot and ledger of one of the worlds, and publish."""
        self.folder = Path(tempfile.mkdtemp(prefix="windrow-"))
        self.world = self.worlds[share % len(self.worlds)](self.folder, ManualClock())
        self.last: list[Row] = []
        self.rules = self.world.rules[0]
        self.share = 0
        self.most = most  # messages that Spark's driver takes: all, those that are new, or none
        self.readable = 0  # the first version of the depot to which it can be set back
        self.begin_ledger(0)
        self.publish(rows, 0)

    def begin_ledger(self, after: int) -> None:
        """Begin a ledger at a version of the depot; nothing is known of it yet."""
        self.after = after
        self.checked, self.final, self.restorable = -1, dict[str, Row](), 0
        self.paused = False
        self.plain = self.rules == self.world.rules[0]  # nothing but messages decided
        self.driver_beside()

    def values(self, **more: Any) -> dict[str, Any]:
        """Return the settings of every driver."""
        start_from = f"version:{self.after}" if self.after else "beginning"
        folds = {"fold_commits": 3, "fold_rows": 5}
        return {"start_from": start_from} | folds | self.rules | more

    def driver(self, at: Callable[[Point], None] | None = None, **more: Any) -> Runner:
        """Return a driver, with a probe if one is given."""
        values = {"max_driver_messages": self.most} | self.values(**more)
        return self.world.probed(self.factory, at, **values) if at else self.world.runner(self.factory, **values)

    def driver_beside(self, **more: Any) -> Runner:
        """Return a driver on the embedded engine."""
        return self.world.runner(EMBEDDED, **self.values(**more))

    def teardown(self) -> None:
        """Read what is left; then the result is what it would be if nothing had happened."""
        if not hasattr(self, "world"):
            return
        self.read_all()
        self.books_balance()
        Attic(self.world.depot).bring_back()
        self.world.check_result(self.after, self.plain)
        shutil.rmtree(self.folder)

    def read_all(self) -> None:
        """Read what is left."""
        self.resume()
        self.run(100)

    @rule(rows=ROWS, leap=st.sampled_from(LEAPS))
    def publish(self, rows: list[tuple[Any, ...]], leap: int) -> None:
        """Append a depot version of messages near the clock."""
        self.world.clock.advance(leap)
        self.last = self.messages(rows)
        self.world.publish(self.last)

    def messages(self, rows: list[tuple[Any, ...]]) -> list[Row]:
        """Return messages near the clock."""
        now = self.world.clock.now()
        return [message(type_, now + off, now, source=source, key=key) for type_, off, source, key in rows]

    @rule(versions=st.lists(ROWS, min_size=2, max_size=4), leap=st.sampled_from(LEAPS))
    def publish_more(self, versions: list[list[tuple[Any, ...]]], leap: int) -> None:
        """Append some."""
        for rows in versions:
            self.publish(rows, leap)

    @rule(max_messages=st.sampled_from([1, 5, 100]))
    def run(self, max_messages: int) -> None:
        """Run, in microbatches of some size."""
        assert self.driver(max_messages=max_messages).once().paused == self.paused

    @rule(point=st.sampled_from(Point))
    def crash(self, point: Point) -> None:
        """End a driver at a point."""
        with suppress(Crash):
            self.driver(act_once(point, die), max_messages=5).once()

    @rule(rows=ROWS, point=st.sampled_from(Point), times=st.integers(1, 3))
    def fail(self, rows: list[tuple[Any, ...]], point: Point, times: int) -> None:
        """Publish, and let attempts fail at a point: after the commit it is the reply that is lost."""
        self.publish(rows, 0)
        self.driver()  # so that nothing is left to be written when the next one opens the ledger: that is no attempt
        self.driver(fail_times(point, times), max_messages=5).once()

    @rule(rows=ROWS, point=st.sampled_from(Point), what=steps("BESIDE"), share=SHARES)
    def beside(self, rows: list[tuple[Any, ...]], point: Point, what: str, share: int) -> None:
        """Publish, and let something happen at a point of the driver that reads it."""
        self.publish(rows, 0)
        self.share = share
        self.driver(act_once(point, getattr(self, what)), max_messages=3).once()

    @rule(what=steps("BY_HAND"), share=SHARES)
    def by_hand(self, what: str, share: int) -> None:
        """Do something by hand while no driver is at work."""
        self.share = share
        getattr(self, what)()

    @rule(what=steps("BETWEEN"), share=SHARES)
    def between(self, what: str, share: int) -> None:
        """Let something else happen then."""
        self.share = share
        getattr(self, what)()

    @invariant()
    def books_balance(self) -> None:
        """Check the versions that are new."""
        if hasattr(self, "world"):
            self.checked, self.final = self.world.check_books(self.checked, self.final)

    def resend(self) -> None:
        """Send what came last once more."""
        self.world.publish(self.last)

    def other_driver(self) -> None:
        """Let another driver read everything."""
        self.driver_beside(max_messages=5).once()

    def two_other_drivers(self) -> None:
        """Let another driver be overtaken by a third."""
        self.world.probed(
            EMBEDDED, act_once(Point.BEFORE_COMMIT, self.other_driver), **self.values(max_messages=3)
        ).once()

    def driver_of_other_rules(self) -> None:
        """Let a driver with other rules than the first read everything."""
        self.plain = False
        _, *others = self.world.rules
        self.driver_beside(**others[self.share % len(others)]).once()

    def overtaken(self) -> None:
        """Commit a microbatch that was primed before others: it is refused."""
        microbatch = self.world.microbatch(self.factory)
        before = self.world.version()
        self.run(100)
        if self.world.version() != before:
            [depot] = microbatch.primed.depots.values()
            with pytest.raises(ConcurrentCommitError):
                microbatch.run_tick(depot.sources.floors.at_least(NOW + HOUR))

    def pause(self) -> None:
        """Pause."""
        self.driver_beside().pause()
        self.paused = True

    def resume(self) -> None:
        """Resume."""
        self.driver_beside().resume()
        self.paused = False

    def change_rules(self) -> None:
        """Let drivers have other rules from now on."""
        self.rules = self.world.rules[self.share % len(self.world.rules)]
        self.plain = False

    def restore_ledger(self) -> None:
        """Set the ledger back to a version of before."""
        self.books_balance()
        last = self.world.version()
        before = max(self.restorable, last - 1 - self.share)
        if before >= last:
            return
        DeltaTable(self.world.ledger).restore(before)
        (progress,) = [row for row in self.world.rows("progress") if row["id"] == "progress"]
        self.paused = progress["paused"]
        self.checked, self.final = last, {}

    def restore_depot(self) -> None:
        """Set the depot back, which stops every run; then begin a ledger behind it."""
        last = DeltaTable(self.world.depot).version()
        self.resend()
        DeltaTable(self.world.depot).restore(max(self.readable, last - self.share))
        if not self.paused:
            with pytest.raises(DepotChangedError):
                self.run(100)
            self.books_balance()
        self.world.ledger += "+"
        self.begin_ledger(DeltaTable(self.world.depot).version() + 1)

    def compact_ledger(self) -> None:
        """Compact rows of a state with delta-rs."""
        states = (*self.world.final, *self.world.live, "progress")
        DeltaTable(self.world.ledger).optimize.compact([("state", "=", states[self.share % len(states)])])

    def fold(self) -> None:
        """Drop versions of live rows that do not count."""
        ledger = self.world.tables(EMBEDDED, **self.values()).ledger
        ledger.fold(ledger.live(), ("small", "large")[self.share % 2])

    def compact_depot(self) -> None:
        """Compact the depot with delta-rs."""
        DeltaTable(self.world.depot).optimize.compact()

    def maintain(self) -> None:
        """Do what `windrow maintain` does."""
        Attic(self.world.depot).keep()
        tables = self.world.tables(EMBEDDED, **self.values())
        maintain([tables.source], tables.ledger, WallClock().now())

    def clean_up_ledger(self) -> None:
        """Delete what the latest version of the ledger does not need, files and log."""
        self.books_balance()
        clean_up(self.world.ledger)
        self.restorable = self.world.version()

    def clean_up_depot(self) -> None:
        """Delete what the latest version of the depot does not need, when all of it was read.

        The last commit has messages, because the ledger does not go beyond them: it would miss a later one.
        """
        self.resume()
        self.resend()
        self.run(100)
        Attic(self.world.depot).keep()
        clean_up(self.world.depot)
        self.readable = DeltaTable(self.world.depot).version()
        self.restorable = self.world.version()

    def touch(self) -> None:
        """Give the files of both logs another time, some days back."""
        for table in (self.world.depot, self.world.ledger):
            age(table, self.share * DAYS)

    def copy(self) -> None:
        """Go on with a copy of all tables elsewhere."""
        folder = Path(tempfile.mkdtemp(prefix="windrow-"))
        shutil.copytree(self.folder, folder, copy_function=shutil.copy, dirs_exist_ok=True)
        shutil.rmtree(self.folder)
        self.folder = folder
        self.world.depot, self.world.ledger = (
            str(folder / Path(table).name) for table in (self.world.depot, self.world.ledger)
        )

    def jump(self) -> None:
        """Let the wall clock jump."""
        self.world.clock.advance(JUMPS[self.share % len(JUMPS)])
        self.plain = False


class BatcherHistories(Histories):
    """Histories of the batcher: what is open closes by ticks and flushes as well."""

    worlds = (World, AlignedWorld)
    BESIDE = (*Histories.BESIDE, "tick", "flush")
    BY_HAND = (*Histories.BY_HAND, "tick", "flush")

    def tick(self) -> None:
        """Move on, and tick."""
        self.world.clock.advance(LEAPS[self.share])
        self.commit(lambda driver: driver.tick())

    def flush(self) -> None:
        """Flush."""
        self.commit(lambda driver: driver.flush())

    def commit(self, what: Callable[[Runner], RunSummary]) -> None:
        """Let another driver do what a paused ledger refuses."""
        driver = self.driver_beside(idle_timeout="1s")
        if self.paused:
            with pytest.raises(PausedError):
                what(driver)
        elif what(driver).microbatches:
            self.plain = False
