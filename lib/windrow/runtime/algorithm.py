"""The `Algorithm` protocol: how a microbatch turns messages into ledger rows.

Microbatch and runner prime, plan, commit, fence and retry; the algorithm decides what happens to the messages. The
batcher is one algorithm (`windrow.runtime.batcher`), the functions of a topology are another (`windrow.topology`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from windrow.model.floors import Floors, FloorsByVersion

if TYPE_CHECKING:
    from windrow.delta.log import Table
    from windrow.engine.arrivals import Slice
    from windrow.engine.protocol import Engine
    from windrow.engine.result import MicrobatchResult
    from windrow.runtime.progress import LedgerState


@dataclass(frozen=True, slots=True)
class MicrobatchInput:
    """What an algorithm gets for one microbatch: the primed state, the messages that arrived, and the clocks.

    `arrived` is None if nothing was read. `latest` is the greatest stamp that is not ahead of the clock and `now` the
    wall time at which the attempt began, both in microseconds. `flush` asks to finish everything that is open.
    """

    primed: LedgerState
    arrived: Slice | None
    floors: FloorsByVersion
    latest: int
    now: int
    attempt: int
    engine: Engine
    flush: bool = False

    @property
    def microbatch(self) -> int:
        """Return the number of the microbatch, the same in every attempt."""
        return self.primed.microbatch + 1


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

    def schema(self, depots: Sequence[Table]) -> pa.Schema:
        """Return the columns of a new ledger that reads these depots."""

    def require(self, primed: LedgerState, depot: Table) -> None:
        """Raise an error if the ledger cannot continue with this algorithm and depot."""

    def options(self, primed: LedgerState) -> Options:
        """Return the options recorded in the ledger."""

    def process(self, turn: MicrobatchInput) -> MicrobatchResult:
        """Return the ledger rows that change."""

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return the floors for a tick that is due at wall time `now` (microseconds); None if no tick is due."""

    def follow(self, primed: LedgerState) -> Floors:
        """Return the floors to set when the settings change from the recorded ones to these."""
