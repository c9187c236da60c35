"""The `Algorithm` protocol: how a microbatch turns messages into ledger rows.

The microbatch and the runner prime, plan, commit, fence and retry; the algorithm decides what happens to messages. The
batcher is one algorithm (`windrow.runtime.batcher`), the functions of a topology are another (`windrow.topology`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.clock import UNKNOWN
from windrow.model.floors import Cuts, Floors, FloorsByVersion
from windrow.model.results import Kind
from windrow.model.summary import SUMMARY

if TYPE_CHECKING:
    from windrow.delta.log import TableInfo
    from windrow.ledger.ledger import Ledger
    from windrow.ledger.result import MicrobatchResult
    from windrow.runtime.ledger_state import DepotPosition, LedgerState
    from windrow.runtime.saved_plan import SavedPlans
    from windrow.source.slices import Slice


@dataclass(frozen=True, slots=True)
class DepotPlan:
    """What a microbatch takes from a depot: the messages that arrived, and the clocks that follow from them.

    `reached` is the position in the depot after the microbatch. `summary` counts the messages by version and source
    (`summary.summarise_messages`); `arrived` is None if nothing was read. `fingerprints` covers the commits of these
    versions, and perhaps others.
    """

    reached: DepotPosition
    floors: FloorsByVersion
    arrived: Slice | None = None
    summary: pa.Table = field(default_factory=SUMMARY.empty_table)
    fingerprints: Mapping[int, str] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """Return how many messages are read."""
        return int(pc.sum(self.summary["messages"]).as_py() or 0)


@dataclass(frozen=True, slots=True)
class MicrobatchPlan:
    """What a microbatch will do: the primed state, and what it takes from each depot.

    `now` is the wall time at which the first attempt began, and `latest` the greatest stamp that is not ahead of the
    clock, both in microseconds. `id` is the number of the microbatch in its first attempt, which differs if a pause was
    recorded since. `depots` has the depots that are read; a batcher's depot is named None and always present. `events`
    are the events that a replay repeats, None if due events fire; `until` is the time up to which it repeats timers,
    None if that follows from the rest. `overtook` names the depots that it overtakes in step. The `transaction` number
    distinguishes its appends to outputs from those of other plans.
    """

    kind: Kind
    primed: LedgerState
    ledger: Ledger
    attempt: int
    now: int
    depots: Mapping[str | None, DepotPlan]
    latest: int = UNKNOWN
    id: int = 0
    events: list[str] | None = None
    until: int | None = None
    overtook: Sequence[str] = ()
    transaction: int = 0

    @property
    def only(self) -> DepotPlan:
        """Return the plan of a batcher's one depot."""
        return self.depots[None]

    @property
    def microbatch(self) -> int:
        """Return the number under which the ledger records the microbatch."""
        return self.primed.microbatch + 1

    @property
    def messages(self) -> int:
        """Return how many messages it reads from all depots."""
        return sum(depot.messages for depot in self.depots.values())

    @property
    def flush(self) -> bool:
        """Tell whether to finish everything that is open."""
        return self.kind == "flush"


@dataclass(frozen=True, slots=True)
class Options:
    """Options recorded in a ledger, which override the settings; None means not set. Durations are in microseconds.

    `max_messages` limits a microbatch. The runner waits `trigger_interval` between two looks at the depots, and
    `idle_sleep` after a look that found nothing. A phase that takes longer than `phase_timeout` is cut off, and the
    attempt repeated.
    """

    max_messages: int | None = None
    trigger_interval: int | None = None
    idle_sleep: int | None = None
    phase_timeout: int | None = None


class Algorithm(Protocol):
    """Decides what a microbatch writes, between plan and commit. A failed attempt must change nothing."""

    @property
    def settings(self) -> str:
        """Return the settings of the algorithm, as the history records them."""

    @property
    def saved_plans(self) -> SavedPlans | None:
        """Return the saved plans, which make all attempts read the same; None if attempts may differ."""
        return None

    def number(self, least: int) -> int:
        """Return the number under which a new plan appends to outputs: `least`, or one that no output has seen yet."""
        return least

    def schema(self, depots: Sequence[TableInfo]) -> pa.Schema:
        """Return the columns of a new ledger that reads these depots."""

    def require(self, primed: LedgerState, depot: TableInfo) -> None:
        """Raise an error if the ledger cannot continue with this algorithm and depot."""

    def options(self, primed: LedgerState) -> Options:  # noqa: ARG002 - some have none
        """Return the options recorded in the ledger."""
        return Options()

    def until(self, now: int) -> int | None:  # noqa: ARG002 - only topologies have timers
        """Return the time up to which a tick at wall time `now` fires timers; None: it follows from the plan."""
        return None

    def process(self, plan: MicrobatchPlan) -> MicrobatchResult:
        """Return the ledger rows that change."""

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return the floors for a tick that is due at wall time `now` (microseconds); None if no tick is due."""

    def cuts_after_change(self, primed: LedgerState) -> Cuts:  # noqa: ARG002 - some have none
        """Return how a change from the recorded settings to these affects the sources; a topology has none."""
        return Cuts.none()
