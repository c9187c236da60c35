"""A state machine over the bank: whatever happens in whatever order, money is neither lost nor made."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.clocks import ManualClock
from tests.conftest import EMBEDDED, one_in
from tests.messages import log
from tests.topology.world import BankWorld
from windrow.errors import MicrobatchFailed
from windrow.runner import Runner
from windrow.testing.points import Point, failing, once
from windrow.topology.running import rollback, set_option


class Bank(RuleBasedStateMachine):
    """Transfers come, drivers run, fail, race, are paused and rolled back; the table is restored and compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.world = BankWorld(Path(self.folder.name), ManualClock())
        self.random, self.paused, self.checked = Random(1), False, -1
        self.publish(1, 1)
        self.runner().once()

    def teardown(self) -> None:
        """When all is over, one run reaches what transfers one by one give."""
        if self.paused:
            self.runner().resume()
        self.runner().once()
        assert self.world.canonical() == self.world.expected()
        self.folder.cleanup()

    def runner(self, **settings: Any) -> Runner:
        """Return a runner."""
        return self.world.runner(EMBEDDED, **settings)

    @rule(versions=st.integers(1, 3), size=st.integers(1, 4))
    def publish(self, versions: int, size: int) -> None:
        """Transfers come."""
        self.world.publish(*log(versions=versions, size=size, seed=self.random.randrange(1_000)))

    @rule(most=st.sampled_from([1, 5, 100]))
    def run(self, most: int) -> None:
        """A driver reads all there is."""
        self.runner(max_messages=most).once()

    @precondition(lambda self: not self.paused)
    @rule(point=st.sampled_from(list(Point)))
    def fail(self, point: Point) -> None:
        """A driver fails at a point, if it comes to one."""
        try:
            self.world.probed(EMBEDDED, failing(point, times=1), retries=0, max_messages=3).once()
        except MicrobatchFailed:
            return

    @precondition(lambda self: not self.paused)
    @rule(point=st.sampled_from(list(Point)))
    def race(self, point: Point) -> None:
        """At a point another driver reads everything."""
        rival = self.runner()
        self.world.probed(EMBEDDED, once(point, rival.once), max_messages=3).once()

    @rule()
    def switch(self) -> None:
        """It is paused, or goes on."""
        self.runner().resume() if self.paused else self.runner().pause()
        self.paused = not self.paused

    @rule(value=st.sampled_from(["1", "4", "default"]))
    def option(self, value: str) -> None:
        """An option is set."""
        set_option(self.runner(), "max_messages", value)

    @precondition(lambda self: not self.paused)
    @rule(share=st.floats(0, 1))
    def roll_back(self, share: float) -> None:
        """Microbatches are taken back."""
        last = max((row["microbatch"] for row in self.world.history()), default=0)
        rollback(self.runner(), int(last * share))

    @rule()
    def compact(self) -> None:
        """The files of both tables are put together."""
        DeltaTable(self.world.ledger).optimize.compact()
        DeltaTable(self.world.depot).optimize.compact()

    @precondition(lambda self: not self.paused)
    @rule(back=st.integers(1, 3))
    def restore(self, back: int) -> None:
        """The table of states is restored to an earlier version, in which nothing was paused."""
        version = self.world.version()
        earlier = [at for at in range(max(0, version - back), version) if not self.was_paused(at)]
        if earlier:
            DeltaTable(self.world.ledger).restore(earlier[0])

    def was_paused(self, version: int) -> bool:
        """Tell whether a version of the table says that it is paused."""
        [row] = [row for row in self.world.rows("progress", version=version) if row["id"] == "progress"]
        return bool(row["paused"])

    @invariant()
    def money_is_there(self) -> None:
        """No version of the table lacks money or has too much."""
        version = self.world.version()
        for at in range(self.checked + 1, version + 1):
            self.world.check_money(at)
        self.checked = version


TestBank = Bank.TestCase
TestBank.settings = one_in(20)
