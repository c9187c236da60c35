"""How a run begins: the ledger of one depot or several is opened, or made at the places where `start_from` says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from windrow.delta.log import Table
from windrow.engine.arrivals import Listed
from windrow.engine.protocol import Engine
from windrow.engine.result import MicrobatchResult
from windrow.errors import DepotChanged, DepotUnreadable, LedgerMoved, OtherDepot, StartFromChanged
from windrow.model.commits import is_other
from windrow.model.open_batches import OpenBatches
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.progress import LedgerState, Reached, control_rows, first_rows, prime
from windrow.settings.settings import Settings
from windrow.settings.start_from import Start


@dataclass(frozen=True, slots=True)
class DepotReader:
    """A depot as a ledger reads it: its name (None in a ledger of one), the engine that reads it, how it is set.

    Where several depots are at the same time, one of smaller `priority` is read first.
    """

    name: str | None
    engine: Engine
    settings: Settings
    priority: int = 0


def open_ledger(inlets: Sequence[DepotReader], algorithm: Algorithm, now: int) -> list[LedgerState]:
    """Return the ledger's state for each inlet, creating it on first use; `now` is the wall clock, in microseconds.

    While nothing was read of a depot, its `start_from` may change. Raises TableMissing without a depot, OtherDepot for
    the ledger of another one, StartFromChanged when the ledger began elsewhere than `start_from` says, DepotUnreadable
    when `start_from` reaches beyond the depot's log or the depot has no change data feed, and what the algorithm
    requires.
    """
    engine, settings = inlets[0].engine, inlets[0].settings
    for inlet in inlets:
        inlet.engine.mend()
    if engine.ledger() is None:
        positions = {inlet.name: _begin(inlet, now) for inlet in inlets}
        first = first_rows(algorithm.schema([inlet.engine.depot() for inlet in inlets]), positions, algorithm.settings)
        engine.create_ledger(first, settings.keep)
    return [_opened(inlet, algorithm, now) for inlet in inlets]


def _opened(inlet: DepotReader, algorithm: Algorithm, now: int) -> LedgerState:
    """Return the ledger's state for an inlet, with a position in its depot."""
    settings = inlet.settings
    primed = prime(inlet.engine, inlet.name)
    if not primed.begun:
        _move_start(inlet, primed, now)
        return _opened(inlet, algorithm, now)
    algorithm.require(primed, require_depot(inlet.engine, primed.reached, settings))
    if "start_from" not in settings.model_fields_set or settings.start_from == primed.start_from:
        return primed
    # guard: start-kept
    if primed.microbatch:
        raise StartFromChanged(
            f"the ledger began from {primed.start_from!r}, start_from now says {settings.start_from!r}",
            f"Set start_from = {primed.start_from!r}, or begin a new ledger (--ledger).",
        )
    _move_start(inlet, primed, now)
    return _opened(inlet, algorithm, now)


def _begin(inlet: DepotReader, now: int) -> Reached:
    """Return where `start_from` says that reading begins."""
    depot, start_from = inlet.engine.depot(), inlet.settings.start_from
    _require_feed(depot, inlet.settings)
    before = Start.parse(start_from).version_before(depot.version, now, inlet.engine.depot_commits)
    return Reached(depot.id, start_from, before, None)


def _move_start(inlet: DepotReader, primed: LedgerState, now: int) -> None:
    """Begin elsewhere: nothing was read yet, so nothing of an earlier choice is left.

    When another driver committed first, nothing is done: the ledger has to be looked at again.
    """
    reached = _begin(inlet, now)
    control = control_rows(primed, primed.sources, OpenBatches.none(), {"token": uuid4().hex}, reached)
    nothing = MicrobatchResult.nothing(control.schema)
    note = {"depot": inlet.name, "start_from": reached.start_from}
    # guard: depot-added-again
    with suppress(LedgerMoved):
        inlet.engine.merge(nothing, control, primed.fence, primed.token, json.dumps(note))


def _require_feed(depot: Table, settings: Settings) -> None:
    # guard: change-feed
    if not depot.feed:
        raise DepotUnreadable(
            f"the change data feed of the depot {settings.depot} is off",
            "Switch it on: ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true). What is added from "
            'then on can be read (start_from = "end"); `windrow ingest --format delta` copies what is there into one.',
        )


def require_depot(engine: Engine, reached: Reached, settings: Settings) -> Table:
    """Return the depot. Raises OtherDepot for another one than the ledger's, DepotChanged for one that was set back.

    A depot that was set back uses its version numbers again: what comes under them would count as read. It is known
    by its end, or, when it has grown since, by the commit in the place of the last one that was read.
    """
    depot, at = engine.depot(), reached.version
    commits = engine.depot_commits(at, at) if reached.mark else ()
    require_listed(Listed.of(depot.id, at + 1, commits), reached, settings)
    # guard: depot-not-behind
    if depot.version < reached.version and reached.start_from != f"version:{reached.version + 1}":
        raise DepotChanged(
            f"the ledger has read depot version {reached.version}, the depot {settings.depot} ends at {depot.version}",
            "It was set back or lost its last versions. Bring them back before anything is appended, or begin a new "
            "ledger (--ledger).",
        )
    return depot


def require_listed(listed: Listed, reached: Reached, settings: Settings) -> None:
    """Raise OtherDepot or DepotChanged, as `require_depot` does, for versions that were listed of another table."""
    # guard: one-depot
    if listed.depot_id != reached.depot_id:
        raise OtherDepot(
            f"the ledger {settings.ledger} belongs to depot {reached.depot_id}, {settings.depot} is {listed.depot_id}",
            "Give this depot a ledger of its own (--ledger); if the depot was made anew, its history is another one.",
        )
    # guard: depot-same-commit
    if is_other(listed.marks.get(reached.version), reached.mark):
        raise DepotChanged(
            f"version {reached.version} of the depot {settings.depot} is another commit than the one that was read",
            "It was set back and has grown since. Bring its versions back, or begin a new ledger (--ledger): what took "
            "their numbers is not read.",
        )


@dataclass(slots=True)
class DepotCursor:
    """How far a run knows an inlet to be read, and up to where it has looked at the depot without finding more.

    `ahead` has the version behind which it looked, and the time of what comes next (microseconds). `turn` says when it
    was read last: whoever waited longest is next, so that a depot which never ends keeps no other one waiting.
    """

    inlet: DepotReader
    known: Reached
    covered: int = -1
    ahead: tuple[int, int] | None = None
    turn: int = 0

    def behind(self) -> bool:
        """Tell whether the depot has versions that were not read yet. Raises as `require_depot` does."""
        # guard: same-depot-each-round
        depot = require_depot(self.inlet.engine, self.known, self.inlet.settings)
        return depot.version > max(self.known.version, self.covered)
