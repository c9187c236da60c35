"""A machine that makes up histories of everything that can happen to a depot, its drivers and their ledger."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.clocks import NOW, ManualClock
from tests.conftest import EMBEDDED, EngineFactory
from tests.engine.attic import Attic
from tests.engine.world import SKEW, World
from tests.messages import HOUR, SECOND, Row, message
from windrow.api import batcher_of
from windrow.errors import DepotChanged, LedgerMoved, Paused
from windrow.maintain import maintain
from windrow.opening import Inlet, open_ledger
from windrow.runner import Runner, Summary
from windrow.testing.points import Point, failing, once
from windrow.verify import verify
from windrow.wall import WallClock

DAYS = 24 * 3_600
LEAPS = [0, 1, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND]
JUMPS = [-HOUR, -10 * SECOND, HOUR]
RULES: list[dict[str, Any]] = [{}, {"max_delay": "8s"}, {"max_delay": "0s"}, {"window": "20s", "max_leap": "3s"}]
FINAL = ("closed", "rejected", "microbatch")
BESIDE = [
    "other_driver", "two_other_drivers", "driver_of_other_rules", "tick", "flush", "pause", "restore_ledger",
    "compact_ledger", "compact_depot", "maintain",
]  # fmt: skip
BETWEEN = [
    "tick", "flush", "pause", "resume", "change_rules", "restore_ledger", "restore_depot", "compact_ledger",
    "compact_depot", "maintain", "clean_up_ledger", "clean_up_depot", "touch", "copy", "jump",
]  # fmt: skip
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


class Crash(BaseException):
    """The end of a driver, which nothing catches."""


def die() -> None:
    """End a driver."""
    raise Crash


class Histories(RuleBasedStateMachine):
    """A depot that is written, drivers that come and go, and a ledger whose books must balance all the time."""

    def __init__(self, factory: EngineFactory = EMBEDDED) -> None:
        super().__init__()
        self.factory = factory

    @initialize(rows=ROWS)
    def begin(self, rows: list[tuple[Any, ...]]) -> None:
        """Create depot and ledger, and publish."""
        self.folder = Path(tempfile.mkdtemp(prefix="windrow-"))
        self.world = World(self.folder, ManualClock())
        self.last: list[Row] = []
        self.rules: dict[str, Any] = {}
        self.share = 0
        self.paused = self.plain = False
        self.readable = 0  # the first version of the depot to which it can be set back
        self.begin_ledger("beginning")
        self.publish(rows, 0)

    def begin_ledger(self, start_from: str) -> None:
        """Begin a ledger, of which nothing is known yet."""
        self.start_from = start_from
        self.checked, self.final, self.restorable = -1, dict[str, Row](), 0
        self.paused, self.plain = False, not self.rules
        settings = self.world.settings(EMBEDDED, **self.values())
        open_ledger([Inlet(None, self.world.engine(EMBEDDED), settings)], batcher_of(settings), NOW)

    def values(self, **more: Any) -> dict[str, Any]:
        """Return the settings of every driver."""
        return {"start_from": self.start_from, "rules": self.rules} | more

    def driver(self, at: Callable[[Point], None] | None = None, **more: Any) -> Runner:
        """Return a driver, with a probe if one is given."""
        values = self.values(**more)
        return self.world.probed(self.factory, at, **values) if at else self.world.runner(self.factory, **values)

    def teardown(self) -> None:
        """Read what is left; then the ledger is what it would be if nothing had happened, by two accounts."""
        if not hasattr(self, "world"):
            return
        self.resume()
        self.run(100)
        self.books_balance()
        Attic(self.world.depot).bring_back()
        ours = self.world.canonical()
        if any(row["messages_read"] for row in self.world.history()):
            assert self.world.replayed().equal
        if self.plain and self.world.clock.now() <= NOW + SKEW:
            after = 0 if self.start_from == "beginning" else int(self.start_from.removeprefix("version:"))
            assert ours == self.world.expected(after)
        else:
            assert verify(self.world.depot, self.world.ledger).differences == ()
        shutil.rmtree(self.folder)

    @rule(rows=ROWS, leap=st.sampled_from(LEAPS))
    def publish(self, rows: list[tuple[Any, ...]], leap: int) -> None:
        """Append a depot version of messages near the clock."""
        self.world.clock.advance(leap)
        now = self.world.clock.now()
        self.last = [message(type_, now + off, now, source=source, key=key) for type_, off, source, key in rows]
        self.world.publish(self.last)

    @rule(versions=st.lists(ROWS, min_size=2, max_size=4), leap=st.sampled_from(LEAPS))
    def publish_more(self, versions: list[list[tuple[Any, ...]]], leap: int) -> None:
        """Append some."""
        for rows in versions:
            self.publish(rows, leap)

    @rule()
    def resend(self) -> None:
        """Append the last version again."""
        self.world.publish(self.last)

    @rule(max_messages=st.sampled_from([1, 5, 100]))
    def run(self, max_messages: int) -> None:
        """Run, in microbatches of some size."""
        assert self.driver(max_messages=max_messages).once().paused == self.paused

    @rule(point=st.sampled_from(Point))
    def crash(self, point: Point) -> None:
        """End a driver at a point."""
        with suppress(Crash):
            self.driver(once(point, die), max_messages=5).once()

    @rule(point=st.sampled_from(Point), times=st.integers(1, 3))
    def fail(self, point: Point, times: int) -> None:
        """Let attempts fail at a point: after the commit it is the reply that is lost."""
        self.driver(failing(point, times), max_messages=5).once()

    @rule(point=st.sampled_from(Point), what=st.sampled_from(BESIDE), share=SHARES)
    def beside(self, point: Point, what: str, share: int) -> None:
        """Let something happen at a point of a driver."""
        self.share = share
        self.driver(once(point, getattr(self, what)), max_messages=3).once()

    @rule(what=st.sampled_from(BETWEEN), share=SHARES)
    def between(self, what: str, share: int) -> None:
        """Let something happen while no driver is at work."""
        self.share = share
        getattr(self, what)()

    @rule()
    def overtaken_tick(self) -> None:
        """Commit a tick that was primed before other microbatches: it is refused."""
        microbatch = self.world.microbatch(self.factory)
        before = self.world.version()
        self.run(100)
        if self.world.version() != before:
            with pytest.raises(LedgerMoved):
                microbatch.run_tick(microbatch.primed.sources.floors.at_least(NOW + HOUR))

    @invariant()
    def books_balance(self) -> None:
        """Check the versions that are new."""
        if hasattr(self, "world"):
            self.checked, self.final = self.world.check_books(self.checked, self.final)

    def other_driver(self) -> None:
        """Let a driver on the embedded engine read everything."""
        self.world.runner(EMBEDDED, **self.values(max_messages=5)).once()

    def two_other_drivers(self) -> None:
        """Let another driver be overtaken by a third."""
        self.world.probed(EMBEDDED, once(Point.BEFORE_COMMIT, self.other_driver), **self.values(max_messages=3)).once()

    def driver_of_other_rules(self) -> None:
        """Let a driver with other rules read everything."""
        self.plain = False
        self.world.runner(EMBEDDED, **self.values(rules=RULES[1 + self.share % 3])).once()

    def tick(self) -> None:
        """Move on, and tick."""
        self.world.clock.advance(LEAPS[self.share])
        self.commit(lambda driver: driver.tick())

    def flush(self) -> None:
        """Flush."""
        self.commit(lambda driver: driver.flush())

    def commit(self, what: Callable[[Runner], Summary]) -> None:
        """Let another driver do what a paused ledger refuses."""
        driver = self.world.runner(EMBEDDED, **self.values(idle_grace="1s"))
        if self.paused:
            with pytest.raises(Paused):
                what(driver)
        elif what(driver).microbatches:
            self.plain = False

    def pause(self) -> None:
        """Pause."""
        self.world.runner(EMBEDDED, **self.values()).pause()
        self.paused = True

    def resume(self) -> None:
        """Resume."""
        self.world.runner(EMBEDDED, **self.values()).resume()
        self.paused = False

    def change_rules(self) -> None:
        """Let drivers have other rules from now on."""
        self.rules = RULES[self.share % len(RULES)]
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
            with pytest.raises(DepotChanged):
                self.run(100)
            self.books_balance()
        self.world.ledger += "+"
        self.begin_ledger(f"version:{DeltaTable(self.world.depot).version() + 1}")

    def compact_ledger(self) -> None:
        """Compact final rows with delta-rs."""
        DeltaTable(self.world.ledger).optimize.compact([("state", "=", FINAL[self.share % 3])])

    def compact_depot(self) -> None:
        """Compact the depot with delta-rs."""
        DeltaTable(self.world.depot).optimize.compact()

    def maintain(self) -> None:
        """Do what `windrow maintain` does."""
        Attic(self.world.depot).keep()
        settings = self.world.settings(EMBEDDED, **self.values())
        maintain(self.world.engine(EMBEDDED), settings, WallClock().now())

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
        """Go on with a copy of both tables elsewhere."""
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


def age(table: str, seconds: int) -> None:
    """Let the files of a table's log look so much older than they are."""
    for file in Path(table, "_delta_log").iterdir():
        since = file.stat().st_mtime - seconds
        os.utime(file, (since, since))


def clean_up(table: str) -> None:
    """Trim the log of a table to its latest version, compact it, and delete every file that it does not need then."""
    DeltaTable(table).create_checkpoint()
    age(table, 100 * DAYS)
    DeltaTable(table).cleanup_metadata()
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
