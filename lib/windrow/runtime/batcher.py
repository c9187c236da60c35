"""The batcher: batching by rules as the algorithm of a ledger's microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.batching.rules import Rules
from windrow.batching.step import Batching
from windrow.delta.log import Table
from windrow.engine.result import MicrobatchResult
from windrow.errors import MessagesError, TableRefused, UsageError
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.soundness import DAMAGED
from windrow.model.step import Step, Task, no_streams
from windrow.runtime.algorithm import MicrobatchInput, Options
from windrow.runtime.progress import LedgerState


@dataclass(frozen=True, slots=True)
class Batcher:
    """Batches messages with a step, which is `Batching` by rules or stands around it.

    An idle tick closes what is overdue for `idle_timeout` (microseconds).
    """

    step: Step
    idle_timeout: int = 0

    @classmethod
    def of(cls, rules: Rules, idle_timeout: int | None = None) -> Batcher:
        """Return the batcher of some rules."""
        return cls(Batching(rules), idle_timeout or 0)

    @property
    def settings(self) -> str:
        """Return the rules as the history records them."""
        return self.step.settings

    def schema(self, depots: Sequence[Table]) -> pa.Schema:
        """Return the columns of a ledger of one depot."""
        [depot] = depots
        return tables.ledger_schema(depot.payload, raw=depot.raw)

    def require(self, primed: LedgerState, depot: Table) -> None:
        """Raise MessagesError when payloads became text that were bytes, or the other way round."""
        # guard: payload-type
        if depot.payload != primed.payload:
            raise MessagesError(
                f"the payloads of the depot are {depot.payload}, the ledger holds them as {primed.payload}",
                f"Map payload under [depot.columns] so that it gives {primed.payload}, or begin a new ledger "
                "(--ledger).",
            )

    def options(self, primed: LedgerState) -> Options:  # noqa: ARG002 - one ledger is as another
        """Return that nothing is set in a ledger: the settings hold."""
        return Options()

    def process(self, turn: MicrobatchInput) -> MicrobatchResult:
        """Batch what arrived together with the open batches that it can change."""
        task = Task(self.step, turn.floors, turn.latest, turn.microbatch, turn.flush)
        streams = no_streams if turn.arrived is None else turn.arrived.streams
        wanted = None if turn.flush else self.step.wanted(turn.floors.after, streams)
        return turn.engine.process(task, turn.arrived, turn.primed.fence, wanted)

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return for each source the greatest timeout of an open batch that its idle clock has passed."""
        clocks = primed.sources.idle(now)
        idle = Floors(clocks.source, clocks.floor - self.idle_timeout)
        passed = primed.open.ended(self.step.wanted(idle).passed)
        if not len(passed.source):
            return None
        ended = primed.fence.open.ended(passed)
        return self.step.due(ended) if len(ended.source) else None

    def follow(self, primed: LedgerState) -> Floors:
        """Return the floors with which what was too old before stays so under these rules."""
        before, now = recorded_rules(primed.rules).max_delay, recorded_rules(self.settings).max_delay
        floors = primed.sources.floors
        # guard: floors-rise
        return Floors(floors.source, floors.floor + max(0, now - before))


def recorded_rules(recorded: str) -> Rules:
    """Return the rules that a ledger has in force. Raises TableRefused when they are none."""
    try:
        return Rules.from_json(recorded)
    except (ValueError, TypeError, UsageError) as error:
        raise TableRefused(f"the ledger recorded rules that are none: {recorded}", DAMAGED) from error
