"""How a run begins: the ledger of a depot is opened, or made at the place where `start_from` says."""

from __future__ import annotations

import json
from uuid import uuid4

import pyarrow as pa

from windrow.batching.rules import Rules
from windrow.batching.step import Batching
from windrow.engine.protocol import Engine, Table
from windrow.errors import (
    DepotChanged,
    DepotUnreadable,
    MessagesError,
    OtherDepot,
    StartFromChanged,
    TableRefused,
    UsageError,
)
from windrow.progress import DAMAGED, Primed, Reached, control_rows, first_rows, mark_of, prime
from windrow.settings import Settings
from windrow.start import Start


def open_ledger(engine: Engine, settings: Settings, now: int) -> Primed:
    """Return the ledger's state, creating it on first use; `now` is the wall clock, in microseconds.

    While nothing was read, `start_from` may change. Raises TableMissing without a depot, OtherDepot for the ledger of
    another one, StartFromChanged when the ledger began elsewhere than `start_from` says, DepotUnreadable when
    `start_from` reaches beyond the depot's log or the depot has no change data feed, MessagesError when payloads
    became text that were octets, or the other way round.
    """
    if engine.ledger() is None:
        depot = engine.depot()
        _require_feed(depot, settings)
        start = Start.parse(settings.start_from)
        reached = start.version_before(depot.version, now, engine.depot_commits)
        rules = Batching(settings.rules.build()).settings
        first = first_rows(depot, settings.start_from, reached, rules, uuid4().hex)
        engine.create_ledger(first, settings.keep)
    primed = prime(engine)
    depot = require_depot(engine, primed.reached, settings)
    held = primed.payload
    if depot.payload != held:
        raise MessagesError(
            f"the payloads of the depot {settings.depot} are {depot.payload}, the ledger holds them as {held}",
            f"Map payload under [depot.columns] so that it gives {held}, or begin a new ledger (--ledger).",
        )
    if "start_from" not in settings.model_fields_set or settings.start_from == primed.start_from:
        return primed
    if primed.microbatch:
        raise StartFromChanged(
            f"the ledger began from {primed.start_from!r}, start_from now says {settings.start_from!r}",
            f"Set start_from = {primed.start_from!r}, or begin a new ledger (--ledger).",
        )
    _move_start(engine, primed, settings, now)
    return open_ledger(engine, settings, now)


def _move_start(engine: Engine, primed: Primed, settings: Settings, now: int) -> None:
    """Begin elsewhere: nothing was read yet, so nothing of the earlier choice is left. Raises LedgerMoved."""
    depot = engine.depot()
    reached = Start.parse(settings.start_from).version_before(depot.version, now, engine.depot_commits)
    moved: dict[str, object] = {"start_from": settings.start_from, "depot_version": reached, "token": uuid4().hex}
    control = control_rows(primed, primed.sources, moved)
    nothing = control.slice(0, 0).append_column("known", pa.array([], pa.bool_()))
    engine.merge(nothing, control, primed.fence, primed.token, json.dumps({"start_from": settings.start_from}))


def _require_feed(depot: Table, settings: Settings) -> None:
    if not depot.feed:
        raise DepotUnreadable(
            f"the change data feed of the depot {settings.depot} is off",
            "Switch it on: ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true). What is added from "
            'then on can be read (start_from = "end"); `windrow ingest --format delta` copies what is there into one.',
        )


def recorded_rules(recorded: str) -> Rules:
    """Return the rules that the ledger has in force. Raises TableRefused when they are none."""
    try:
        return Rules.from_json(recorded)
    except (ValueError, TypeError, UsageError) as error:
        raise TableRefused(f"the ledger recorded rules that are none: {recorded}", DAMAGED) from error


def require_depot(engine: Engine, reached: Reached, settings: Settings) -> Table:
    """Return the depot. Raises OtherDepot for another one than the ledger's, DepotChanged for one that was set back.

    A depot that was set back uses its version numbers again: what comes under them would count as read. It is known
    by its end, or, when it has grown since, by the commit in the place of the last one that was read.
    """
    depot = engine.depot()
    if depot.id != reached.depot_id:
        raise OtherDepot(
            f"the ledger {settings.ledger} belongs to depot {reached.depot_id}, {settings.depot} is {depot.id}",
            "Give this depot a ledger of its own (--ledger); if the depot was made anew, its history is another one.",
        )
    if depot.version < reached.version and reached.start_from != f"version:{reached.version + 1}":
        raise DepotChanged(
            f"the ledger has read depot version {reached.version}, the depot {settings.depot} ends at {depot.version}",
            "It was set back or lost its last versions. Bring them back before anything is appended, or begin a new "
            "ledger (--ledger).",
        )
    if _is_other(mark_of(engine, reached.version), reached.mark):
        raise DepotChanged(
            f"version {reached.version} of the depot {settings.depot} is another commit than the one that was read",
            "It was set back and has grown since. Bring its versions back, or begin a new ledger (--ledger): what took "
            "their numbers is not read.",
        )
    return depot


def _is_other(found: str | None, known: str | None) -> bool:
    """Tell whether two marks are of different commits; those that were found in different ways cannot be compared."""
    if found is None or known is None:
        return False
    return found.partition(":")[0] == known.partition(":")[0] and found != known
