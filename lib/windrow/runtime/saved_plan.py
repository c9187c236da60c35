"""The plan of a microbatch, saved beside the ledger before a function sees its messages.

A function may append to a depot, or write to another system under the number of the microbatch. So every attempt must
see the same number, the same rows and the same events, also one that another process makes after the driver was killed.
The plan is one small text. Its name comes from the token of the state that the microbatch continues, and from the
depots, because a driver can repeat only what it can read. A pause, an option
or changed settings leave this state as it is; every other commit, a rollback and a RESTORE lead to another one, in
which the plan is never found. The commit of the microbatch makes it useless, and it is deleted.

Of two drivers that plan at the same time the first one decides for both. One that is late, after the other has
committed and deleted the plan, would save a second one: so who has saved a plan asks whether the ledger has moved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.engine.engine import SideFiles

Positions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What all attempts have in common: the number, the wall time in microseconds, and the versions to read up to.

    `events` are those that a replay repeats; None: those that are due at this time fire. `until` is the time up to
    which timers are due in a replay; None: it follows from the rest. The number 0 is the next one.
    A microbatch that `skips` a version reads nothing, and neither does one in which the columns of states were
    `migrated`; only replays have these. In step it `overtook` depots whose feeders stood still. Only `attempt` changes
    from one attempt to the next.
    """

    microbatch: int
    now: int
    last_versions: Positions
    events: list[str] | None = None
    skips: bool = False
    migrated: list[str] | None = None
    overtook: list[str] | None = None
    attempt: int = 1
    until: int | None = None


class SavedPlans:
    """The plans of a ledger, by the token of the state that they continue; `files` keeps them."""

    def __init__(self, files: SideFiles, depots: Iterable[str]) -> None:
        """Read nothing yet; `depots` are the names of the depots."""
        self._files, self._depots = files, sorted(depots)

    def recorded(self, state: str) -> SavedPlan | None:
        """Return the plan of an earlier attempt, None if there was none."""
        text = self._files.read(self._name(state))
        return None if text is None else SavedPlan(**json.loads(text))

    def save(self, state: str, planned: SavedPlan) -> SavedPlan:
        """Save a plan, and return the one that stands: that of an earlier attempt, if there was one."""
        # guard: first-plan-stands
        if self._files.create(self._name(state), _text(planned)):
            return planned
        return self.recorded(state) or planned  # its microbatch may have been committed just now

    def begin(self, state: str, wanted: Callable[[], SavedPlan]) -> SavedPlan:
        """Begin an attempt: return the plan that stands. That of an earlier attempt counts this one."""
        planned = self.recorded(state)
        if planned is None:
            new = wanted()
            planned = self.save(state, new)
            if planned == new:
                return planned
        planned = replace(planned, attempt=planned.attempt + 1)
        self._files.replace(self._name(state), _text(planned))
        return planned

    def forget(self, state: str) -> None:
        """Delete the plan of a microbatch that was committed."""
        self._files.delete(self._name(state))

    def _name(self, state: str) -> str:
        return f"plan-{sha256(json.dumps([state, *self._depots]).encode()).hexdigest()[:32]}.json"


def _text(plan: SavedPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True)
