"""The plan of a microbatch, saved beside the ledger before a function sees its messages.

A function may append to a depot, or write to another system under the number of the microbatch. So every attempt must
see the same number, the same rows and the same events, even an attempt by another process after the driver was killed.
The plan is one small text. Its name comes from the token of the state that the microbatch continues, and from the
depots, because a driver can repeat only what it can read. A pause, an option or changed settings leave this state as it
is; every other commit and a rollback lead to another state, under which the plan is not found. Once the microbatch is
committed, its plan is useless and deleted.

If two drivers plan at the same time, the first decides for both. If the first has already committed and deleted the
plan, the other saves a second one: so a driver that has saved a plan checks whether the ledger has moved.

A RESTORE brings back an earlier state, and with it perhaps such a late plan, or one that a store cannot delete. Other
plans may have appended to the outputs meanwhile: the outputs' logs then have a greater transaction number than that of
the plan. The plan is then useless, and a successor replaces it, whose name follows from the plan, so all drivers find
the same one. The same holds if an append finds a greater number at the last moment.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.engine.engine import SideFiles

Positions = Mapping[str, int]
PLANS = 2**20  # transaction numbers reserved for the plans of each microbatch


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What all attempts have in common: the number, the wall time in microseconds, and the versions to read up to.

    `events` are those that a replay repeats; None: events due at this time fire. `until` is the time up to which timers
    are due in a replay; None: it follows from the rest. Number 0 means the next one.
    A microbatch that `skips` a version reads nothing, and neither does one in which the columns of states were
    `migrated`; only replays have these. In step, it `overtook` depots whose feeders stood still. Only `attempt` changes
    from one attempt to the next. The `token` distinguishes the plan from others with its number.
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
    token: str = ""

    @property
    def transaction(self) -> int:
        """Return the transaction number of its appends to outputs, which grows with the number of the microbatch.

        Two plans with the same number get different ones, except once in a million.
        """
        return first_transaction(self.microbatch) + zlib.crc32(self.token.encode()) % PLANS


def first_transaction(microbatch: int) -> int:
    """Return the smallest transaction number of the plans of a microbatch."""
    return microbatch * PLANS


class SavedPlans:
    """The plans of a ledger, by the token of the state that they continue; `files` keeps them.

    A plan that no longer `is_of_use` has a successor, whose name follows from the plan, so all drivers find the same.
    """

    def __init__(
        self, files: SideFiles, depots: Iterable[str], is_of_use: Callable[[SavedPlan], bool] = lambda planned: True
    ) -> None:
        """Read nothing yet; `depots` are the names of the depots."""
        self._files, self._depots, self._is_of_use = files, sorted(depots), is_of_use
        self._names = list[str]()  # of the plan that stands or will stand, after those it replaces

    def load(self, state: str) -> SavedPlan | None:
        """Return the plan of an earlier attempt, None if there was none."""
        self._names = [self._name(state)]
        while (text := self._files.read(self._names[-1])) is not None:
            planned = SavedPlan(**json.loads(text))
            # guard: overtaken-plan-has-a-successor
            if self._is_of_use(planned):
                return planned
            self._names.append(self._name(f"{self._names[-1]} {planned.token}"))
        return None

    def save(self, state: str, planned: SavedPlan) -> SavedPlan:
        """Save a plan, and return the one that stands: that of an earlier attempt, if there was one."""
        return self.load(state) or self._create(state, planned)

    def begin(self, state: str, plan: Callable[[], SavedPlan]) -> SavedPlan:
        """Begin an attempt: return the plan that stands. A plan of an earlier attempt counts this one."""
        planned = self.load(state)
        if planned is None:
            new = plan()
            planned = self._create(state, new)
            if planned == new:
                return planned
        planned = replace(planned, attempt=planned.attempt + 1)
        self._files.replace(self._names[-1], _text(planned))
        return planned

    def forget(self) -> None:
        """Delete the plan of a committed microbatch, after those that replaced it."""
        while self._names:
            self._files.delete(self._names.pop())

    def _create(self, state: str, planned: SavedPlan) -> SavedPlan:
        # guard: first-plan-stands
        if self._files.create(self._names[-1], _text(planned)):
            return planned
        return self.load(state) or planned  # its microbatch may have been committed just now

    def _name(self, state: str) -> str:
        return f"plan-{sha256(json.dumps([state, *self._depots]).encode()).hexdigest()[:32]}.json"


def _text(plan: SavedPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True)
