"""The plan of a microbatch, saved beside the ledger before a function sees its messages.

A function may append to a depot, or write to another system under the number of the microbatch. So every attempt must
see the same number, the same rows and the same events, also one that another process makes after the driver was killed.
The plan is one small text. Its name comes from the positions in the depots from which the microbatch reads on, so a
pause or an option that is recorded between two attempts changes nothing. The commit of the microbatch makes it useless,
and it is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.engine.protocol import SideFiles

Positions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What all attempts have in common: the number, the wall time in microseconds, and the versions to read up to.

    `events` are those that a replay repeats; None: those that are due at this time fire. The number 0 is the next one.
    A microbatch that `accepts` a version reads nothing.
    """

    microbatch: int
    now: int
    upto: Positions
    events: list[str] | None = None
    accepts: bool = False


class SavedPlans:
    """The plans of a ledger, by the positions in its depots; `files` keeps them."""

    def __init__(self, files: SideFiles) -> None:
        """Read nothing yet."""
        self._files = files

    def recorded(self, positions: Positions) -> SavedPlan | None:
        """Return the plan of an earlier attempt, None if there was none."""
        text = self._files.read(_name(positions))
        return None if text is None else SavedPlan(**json.loads(text))

    def record(self, positions: Positions, wanted: SavedPlan) -> SavedPlan:
        """Record a plan, and return the one that stands: that of an earlier attempt, if there was one."""
        if (planned := self.recorded(positions)) is None:
            self._files.write(_name(positions), json.dumps(asdict(wanted), sort_keys=True))
            planned = self.recorded(positions)
        # guard: first-plan-stands
        return wanted if planned is None else planned

    def forget(self, positions: Positions) -> None:
        """Delete the plan of a microbatch that was committed."""
        self._files.delete(_name(positions))


def _name(positions: Positions) -> str:
    return f"plan-{sha256(json.dumps(dict(positions), sort_keys=True).encode()).hexdigest()[:32]}.json"
