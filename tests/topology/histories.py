"""Histories of the bank: the machine of the batcher (`tests/engine/histories.py`) over transfers.

What only a topology knows is added to it: options are set, microbatches are taken back, also beside a driver that is
at work, and a second depot, that of a branch, has transfers of its own. Which depots drivers read is the rule that
changes: the branch is added, taken away, and comes back.
"""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import rule

from tests.engine.histories import ROWS, Histories
from tests.topology.world import BankWorld
from windrow.topology.running import rollback, set_option

MAX_MESSAGES = ["1", "4", "default"]


class BankHistories(Histories):
    """Transfers in two depots, and a table of states in which money is neither lost nor made."""

    worlds = (BankWorld,)
    BESIDE = (*Histories.BESIDE, "set_option", "roll_back")
    BY_HAND = (*Histories.BY_HAND, "set_option", "roll_back")

    def read_all(self) -> None:
        """Read what is left, of the branch as well."""
        *_, self.rules = self.world.rules
        super().read_all()

    @rule(rows=ROWS)
    def publish_in_branch(self, rows: list[tuple[Any, ...]]) -> None:
        """Append a version to the depot of the branch."""
        self.world.publish_in_branch(self.messages(rows))

    def set_option(self) -> None:
        """Set an option, or unset it."""
        set_option(self.driver_beside(), "max_messages", MAX_MESSAGES[self.share % 3])

    def roll_back(self) -> None:
        """Take microbatches back, as far as the logs of ledger and depot reach."""
        first = self.last_microbatch(self.restorable) + (self.restorable > 0)
        last = self.last_microbatch(self.world.version())
        to = max(first, last - 1 - self.share)
        if to < last:
            rollback(self.driver_beside(), to)

    def last_microbatch(self, version: int) -> int:
        """Return the number of the last microbatch at a version of the ledger."""
        return max((row["microbatch"] for row in self.world.rows("microbatch", version=version)), default=0)
