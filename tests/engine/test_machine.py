"""Histories of everything that can happen to a ledger, on the embedded engine."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.clocks import NOW, ManualClock
from tests.conftest import EngineFactory
from tests.engine.probe import Point, once
from tests.engine.world import World
from tests.messages import SECOND, message
from windrow.errors import LedgerMoved
from windrow.opening import open_ledger

EMBEDDED = EngineFactory("embedded")
LEAPS = [0, 1, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(-7, 2).map(lambda seconds: seconds * SECOND),
        st.sampled_from(["", "s"]),
        st.sampled_from(["k", "l", None]),
    ),
    min_size=1,
    max_size=6,
)


class Crash(BaseException):
    """The end of a driver, which nothing catches."""


class Histories(RuleBasedStateMachine):
    """A depot that is written, drivers that come and go, and a ledger whose books must balance all the time."""

    @initialize()
    def begin(self):
        """Create depot and ledger."""
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, ManualClock())
        self.ticks = False
        self.last = []
        open_ledger(self.world.engine(EMBEDDED), self.world.settings(EMBEDDED), NOW)
        self.checked, self.final = -1, {}

    def teardown(self):
        """Read what is left; without ticks the result is that of one call."""
        self.run()
        if not self.ticks:
            assert self.world.canonical() == self.world.expected()
        self.world.assert_balanced()
        shutil.rmtree(self.folder)

    @rule(rows=ROWS, leap=st.sampled_from(LEAPS))
    def publish(self, rows, leap):
        """Append a depot version of messages near the clock."""
        self.world.clock.advance(leap)
        now = self.world.clock.now()
        self.last = [message(type_, now + off, now, source=source, key=key) for type_, off, source, key in rows]
        self.world.publish(self.last)

    @rule()
    def resend(self):
        """Append the last version again."""
        if self.last:
            self.world.publish(self.last)

    @rule(max_messages=st.sampled_from([1, 5, 100]))
    def run_in_slices(self, max_messages):
        """Run with small microbatches."""
        self.world.runner(EMBEDDED, max_messages=max_messages).once()

    @rule()
    def run(self):
        """Run."""
        self.world.runner(EMBEDDED).once()

    @rule(leap=st.sampled_from(LEAPS))
    def tick(self, leap):
        """Move on, and tick."""
        self.world.clock.advance(leap)
        self.ticks |= bool(self.world.runner(EMBEDDED, idle_grace="1s").tick().microbatches)

    @rule()
    def flush(self):
        """Flush."""
        self.ticks |= bool(self.world.runner(EMBEDDED).flush().microbatches)

    @rule(point=st.sampled_from(Point))
    def crash(self, point):
        """End a driver at a point."""

        def die():
            raise Crash

        with suppress(Crash):
            self.world.probed(EMBEDDED, once(point, die), max_messages=5).once()

    @rule(point=st.sampled_from([Point.AFTER_PRIME, Point.BEFORE_COMMIT]))
    def second_driver(self, point):
        """Let another driver read everything at a point."""
        rival = self.world.runner(EMBEDDED, max_messages=5)
        self.world.probed(EMBEDDED, once(point, rival.once), max_messages=3).once()

    @rule(point=st.sampled_from([Point.AFTER_PRIME, Point.AFTER_COMMIT]))
    def lost_reply(self, point):
        """Let a microbatch fail at a point, and be retried."""

        def fail():
            raise OSError("lost")

        self.world.probed(EMBEDDED, once(point, fail)).once()

    @rule(state=st.sampled_from(["closed", "rejected", "microbatch"]))
    def optimize(self, state):
        """Compact final rows."""
        DeltaTable(self.world.ledger).optimize.compact(partition_filters=[("state", "=", state)])

    @rule()
    def overtaken_tick(self):
        """Commit a tick that was primed before other microbatches: it is refused."""
        microbatch = self.world.microbatch(EMBEDDED)
        before = self.world.version()
        self.world.runner(EMBEDDED).once()
        if self.world.version() == before:
            return
        try:
            microbatch.run_tick(microbatch.primed.sources.floors.at_least(NOW + 3_600 * SECOND))
        except LedgerMoved:
            return
        raise AssertionError("an overtaken tick was committed")

    @invariant()
    def books_balance(self):
        """Check the versions that are new."""
        if hasattr(self, "world"):
            self.checked, self.final = self.world.check_books(self.checked, self.final)


Histories.TestCase.settings = settings(max_examples=settings.default.max_examples * 2 // 5, stateful_step_count=12)
TestHistories = Histories.TestCase
