"""An algorithm: what the microbatches of a ledger do with what they read.

Microbatch and runner prime, plan, commit, fence and retry, and know nothing of what is decided in between. The batcher
is one algorithm (`windrow.runtime.batcher`), the functions of a topology are another (`windrow.topology`).
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
    """One turn of an algorithm: the state that was primed, what arrived (None: nothing was read), and the clocks.

    `latest` is the greatest stamp that is not ahead of the clock (microseconds), `now` the wall time at which the
    attempt began, `engine` the one at work. With `flush` all that is open is to be finished.
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
    """What may be set while a ledger is worked on; None where the settings hold. Durations in microseconds.

    `max_messages` a microbatch; `trigger_interval` between two looks at the depots, `idle_sleep` after one that found
    nothing; an attempt of which a phase took longer than `phase_timeout` is not committed, but made again.
    """

    max_messages: int | None = None
    trigger_interval: int | None = None
    idle_sleep: int | None = None
    phase_timeout: int | None = None


class Algorithm(Protocol):
    """What microbatches do between plan and commit. An attempt that fails must have changed nothing."""

    @property
    def settings(self) -> str:
        """Return what it is set to, as the history records it."""

    def schema(self, depots: Sequence[Table]) -> pa.Schema:
        """Return the columns of a ledger that is made for it and some depots."""

    def require(self, primed: LedgerState, depot: Table) -> None:
        """Raise an error when the ledger as it stands cannot go on with this algorithm and depot."""

    def options(self, primed: LedgerState) -> Options:
        """Return what was set in the ledger."""

    def process(self, turn: MicrobatchInput) -> MicrobatchResult:
        """Return the ledger rows that change."""

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return the floors to which a tick is due at wall time `now`; None when none is."""

    def follow(self, primed: LedgerState) -> Floors:
        """Return the floors that go with a change from the recorded settings to these."""
