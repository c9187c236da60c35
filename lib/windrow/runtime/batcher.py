"""The batcher: the `Algorithm` that groups messages into batches by rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from windrow.batching.rules import Rules
from windrow.batching.step import Step, closed_through, follow, timeouts
from windrow.delta.log import TableInfo
from windrow.errors import IncompatibleTableError, MessagesError, UsageError
from windrow.ledger.result import MicrobatchResult
from windrow.model import tables
from windrow.model.floors import Cuts, Floors
from windrow.model.payload import name
from windrow.model.tables import DAMAGED
from windrow.runtime.algorithm import Algorithm, MicrobatchPlan
from windrow.runtime.ledger_state import LedgerState
from windrow.runtime.processing import process


@dataclass(frozen=True, slots=True)
class Batcher(Algorithm):
    """Batches messages by rules: all streams, or `only` those with certain values (by column).

    An idle tick closes batches that have been overdue for `idle_timeout` (microseconds).
    """

    rules: Rules
    idle_timeout: int = 0
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """Return the rules as the history records them."""
        return self.rules.to_json()

    def schema(self, depots: Sequence[TableInfo]) -> pa.Schema:
        """Return the columns of a ledger of one depot."""
        [depot] = depots
        return tables.ledger_schema(depot.payload, raw=depot.raw)

    def require(self, primed: LedgerState, depot: TableInfo) -> None:
        """Raise MessagesError if the ledger's payload type differs from that of the depot and the settings."""
        # guard: payload-type
        if depot.payload != primed.payload:
            raise MessagesError(
                f"the depot has payloads of type {name(depot.payload)}, but the ledger stores {name(primed.payload)}",
                f"The type of a ledger never changes. Set payload_type = {name(primed.payload)!r}, map payload to it "
                "under [depot.columns], or begin a new ledger (--ledger).",
            )

    def process(self, plan: MicrobatchPlan) -> MicrobatchResult:
        """Batch the messages that arrived, together with the open batches that they can change."""
        return process(self.step(plan), plan.only.arrived, plan.primed.fence, plan.ledger)

    def step(self, plan: MicrobatchPlan) -> Step:
        """Return the step that runs on the driver or on executors."""
        floors, cuts = plan.only.floors, Floors.empty()
        if not plan.flush:
            ended = plan.primed.open.passed_window_ends(closed_through(self.rules, floors.after))
            # guard: ended-sources-known
            floors = floors.for_sources(ended.source)
        if self.rules.window_anchor == "aligned":
            cuts = plan.primed.sources.cuts.for_sources(floors.source.unique())
        return Step(self.rules, floors, plan.latest, plan.microbatch, plan.flush, only=self.only, cuts=cuts)

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return for each source the greatest timeout of an open batch that its idle clock has passed, or None."""
        clocks = primed.sources.idle(now)
        idle = Floors(clocks.source, clocks.floor - self.idle_timeout)
        reached = primed.open.passed_window_ends(closed_through(self.rules, idle))
        if not len(reached.source):
            return None
        ended = primed.fence.open.passed_window_ends(reached)
        return timeouts(self.rules, ended) if len(ended.source) else None

    def cuts_after_change(self, primed: LedgerState) -> Cuts:
        """Return how a change from the recorded rules to these affects the sources."""
        return follow(recorded_rules(primed.rules), self.rules, primed.sources.floors)


def recorded_rules(recorded: str) -> Rules:
    """Return the rules that a ledger recorded. Raises IncompatibleTableError if they cannot be read."""
    try:
        return Rules.from_json(recorded)
    except (ValueError, TypeError, UsageError) as error:
        raise IncompatibleTableError(f"the rules recorded in the ledger cannot be read: {recorded}", DAMAGED) from error
