"""The `Algorithm` protocol: how a microbatch turns messages into ledger rows.

Microbatch and runner prime, plan, commit, fence and retry; the algorithm decides what happens to the messages. The
batcher is one algorithm (`windrow.runtime.batcher`), the functions of a topology are another (`windrow.topology`).

A function may append to a depot, or write to another system under the number of the microbatch. So every attempt must
see the same number, the same rows and the same events, also one that another process makes after the driver was killed.
The plan is durable before a function sees its messages: one small text beside the ledger. Its name comes
from the positions in the depots from which the microbatch reads on, so a pause or an option that is recorded between
two attempts changes nothing. It is deleted once the microbatch is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.clock import UNKNOWN
from windrow.model.floors import Floors, FloorsByVersion
from windrow.model.messages import SUMMARY
from windrow.model.results import Kind

if TYPE_CHECKING:
    from windrow.delta.log import Table
    from windrow.engine.arrivals import Slice
    from windrow.engine.protocol import Engine, Notes
    from windrow.engine.result import MicrobatchResult
    from windrow.runtime.progress import LedgerState, Reached


@dataclass(frozen=True, slots=True)
class DepotPlan:
    """What a microbatch takes from a depot: the messages that arrived, and the clocks that follow from them.

    `reached` is the position in the depot after the microbatch. `summary` counts the messages by version and source
    (`messages.summarise`); `arrived` is None if nothing was read.
    """

    reached: Reached
    floors: FloorsByVersion
    arrived: Slice | None = None
    summary: pa.Table = field(default_factory=SUMMARY.empty_table)

    @property
    def messages(self) -> int:
        """Return how many messages are read."""
        return int(pc.sum(self.summary["messages"]).as_py() or 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a microbatch will do: the primed state, and what it takes from each depot.

    `now` is the wall time at which the first attempt began, and `latest` the greatest stamp that is not ahead of the
    clock, both in microseconds. `id` is the number that the microbatch had in its first attempt: another one if a pause
    was recorded since. `depots` has the depots that are read; the one of a batcher is named None and always there.
    `events` are the events that a replay repeats, None if those that are due fire.
    """

    kind: Kind
    primed: LedgerState
    engine: Engine
    attempt: int
    now: int
    depots: Mapping[str | None, DepotPlan]
    latest: int = UNKNOWN
    id: int = 0
    events: list[str] | None = None

    @property
    def only(self) -> DepotPlan:
        """Return what a batcher takes from its depot."""
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
        """Tell whether everything that is open is to be finished."""
        return self.kind == "flush"


Positions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Planned:
    """What all attempts have in common: the number, the wall time in microseconds, and the versions to read up to.

    `events` are those that a replay repeats; None: those that are due at this time fire. The number 0 is the next one.
    A microbatch that `accepts` a version reads nothing.
    """

    microbatch: int
    now: int
    upto: Positions
    events: list[str] | None = None
    accepts: bool = False


class Plans:
    """The plans of a ledger, by the positions in its depots; `notes` keeps them."""

    def __init__(self, notes: Notes) -> None:
        """Read nothing yet."""
        self._notes = notes

    def recorded(self, positions: Positions) -> Planned | None:
        """Return the plan of an earlier attempt, None if there was none."""
        text = self._notes.read(_name(positions))
        return None if text is None else Planned(**json.loads(text))

    def record(self, positions: Positions, wanted: Planned) -> Planned:
        """Record a plan, and return the one that stands: that of an earlier attempt, if there was one."""
        if (planned := self.recorded(positions)) is None:
            self._notes.write(_name(positions), json.dumps(asdict(wanted), sort_keys=True))
            planned = self.recorded(positions)
        # guard: first-plan-stands
        return wanted if planned is None else planned

    def forget(self, positions: Positions) -> None:
        """Delete the plan of a microbatch that was committed."""
        self._notes.delete(_name(positions))


def _name(positions: Positions) -> str:
    return f"plan-{sha256(json.dumps(dict(positions), sort_keys=True).encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True, slots=True)
class Options:
    """Options recorded in a ledger, which override the settings; None means not set. Durations are in microseconds.

    `max_messages` limits a microbatch. The runner waits `trigger_interval` between two looks at the depots, and
    `idle_sleep` after a look that found nothing. If a phase takes longer than `phase_timeout`, the attempt is not
    committed but repeated.
    """

    max_messages: int | None = None
    trigger_interval: int | None = None
    idle_sleep: int | None = None
    phase_timeout: int | None = None


class Algorithm(Protocol):
    """Decides what a microbatch writes, between plan and commit. A failed attempt must leave nothing changed."""

    @property
    def settings(self) -> str:
        """Return the settings of the algorithm, as the history records them."""

    @property
    def plans(self) -> Plans | None:
        """Return where plans are kept, so that all attempts read the same; None if that does not matter."""
        return None

    def schema(self, depots: Sequence[Table]) -> pa.Schema:
        """Return the columns of a new ledger that reads these depots."""

    def require(self, primed: LedgerState, depot: Table) -> None:
        """Raise an error if the ledger cannot continue with this algorithm and depot."""

    def options(self, primed: LedgerState) -> Options:  # noqa: ARG002 - some have none
        """Return the options recorded in the ledger."""
        return Options()

    def process(self, plan: Plan) -> MicrobatchResult:
        """Return the ledger rows that change."""

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return the floors for a tick that is due at wall time `now` (microseconds); None if no tick is due."""

    def follow(self, primed: LedgerState) -> Floors:  # noqa: ARG002 - some have none
        """Return the floors to set when the settings change from the recorded ones to these; a topology has none."""
        return Floors.empty()
