"""Open or create the ledger of one depot or several, and check that it belongs to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from windrow.delta.log import TableInfo
from windrow.engine import open_engine
from windrow.errors import ConcurrentCommitError, DepotChangedError, DepotMismatchError, StartFromMismatchError
from windrow.ledger import Ledger, ledger_of
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Growth, record_growth
from windrow.model.commits import ListedVersions, differs
from windrow.model.open_batches import OpenBatchTotals
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.feeder import Feeder
from windrow.runtime.ledger_state import DepotPosition, LedgerState, control_rows, first_rows, prime
from windrow.settings.settings import Settings
from windrow.settings.start_from import StartFrom
from windrow.source import Source, source_of


@dataclass(frozen=True, slots=True)
class DepotReader:
    """A depot that a ledger reads: its name (None in a ledger of one depot), and its source.

    Among depots that have reached the same time, the one with the smaller `priority` is read first. In step, other
    depots wait for the `feeder` that fills this one, but only until `wait` microseconds after it stopped.
    """

    name: str | None
    source: Source
    priority: int = 0
    feeder: Feeder | None = None
    wait: int | None = None


def tables_of(settings: Settings, session: Any = None) -> tuple[Source, Ledger]:
    """Return the settings' depot and ledger, reached through one engine.

    Raises MissingExtraError, EngineUnavailableError.
    """
    engine = open_engine(settings, session)
    return source_of(engine, settings), ledger_of(engine, settings)


def open_ledger(readers: Sequence[DepotReader], ledger: Ledger, algorithm: Algorithm, now: int) -> LedgerState:
    """Return the state of the ledger, creating it on first use; `now` is the wall clock, in microseconds.

    The `start_from` of a depot may change until the depot is read. Raises TableMissingError without a depot,
    DepotMismatchError if the ledger belongs to another depot, StartFromMismatchError if the ledger began elsewhere,
    DepotUnreadableError if `start_from` reaches further back than the depot's log, and the errors of
    `Algorithm.require`.
    """
    ledger.repair(reader.source.place for reader in readers)
    if ledger.table() is None:
        for reader in readers:
            reader.source.require_mapping()
        positions = {reader.name: _begin(reader, now) for reader in readers}
        columns = algorithm.schema([reader.source.depot() for reader in readers])
        ledger.create(first_rows(columns, positions, algorithm.settings), ledger.settings.retention)
    while True:
        primed = prime(ledger, [reader.name for reader in readers])
        moved = [reader for reader in readers if _begins_elsewhere(reader, primed, algorithm)]
        if not moved:
            return primed
        _move_starts(ledger, primed, {reader.name: _begin(reader, now) for reader in moved})


def _begins_elsewhere(reader: DepotReader, primed: LedgerState, algorithm: Algorithm) -> bool:
    """Tell whether a depot is new, or begins elsewhere than recorded in a ledger that has read nothing yet."""
    settings, reached = reader.source.settings, primed.depots[reader.name].reached
    if not reached.depot_id:
        return True
    algorithm.require(primed, require_depot(reader.source, reached))
    if "start_from" not in settings.model_fields_set or settings.start_from == reached.start_from:
        return False
    # guard: start-kept
    if primed.microbatch:
        raise StartFromMismatchError(
            f"start_from is {settings.start_from!r}, but the ledger began from {reached.start_from!r}",
            f"Set start_from = {reached.start_from!r}, or begin a new ledger (--ledger).",
        )
    return True


def _begin(reader: DepotReader, now: int) -> DepotPosition:
    depot, start_from = reader.source.depot(), reader.source.settings.start_from
    before = StartFrom.parse(start_from).version_before(depot.version, now, reader.source.commits)
    return DepotPosition(depot.id, start_from, before)


def _move_starts(ledger: Ledger, primed: LedgerState, starts: Mapping[str | None, DepotPosition]) -> None:
    """Set the positions of depots that were not read yet.

    Does nothing if another driver committed first: the caller primes again.
    """
    control = control_rows(primed, {}, OpenBatchTotals.none(), {"token": uuid4().hex}, starts)
    nothing = MicrobatchResult.nothing(control.schema)
    control = record_growth(control, Growth.by(nothing.counts, control, primed.fence.rows))
    note = {"start_from": {name or "depot": at.start_from for name, at in starts.items()}}
    # guard: depot-added-again
    with suppress(ConcurrentCommitError):
        ledger.commit(nothing, control, primed.fence, primed.token, json.dumps(note))


def require_depot(source: Source, reached: DepotPosition) -> TableInfo:
    """Return the depot. Raises DepotMismatchError if it is not the ledger's, DepotChangedError if it was restored.

    A restored depot reuses its version numbers, and new messages under old numbers would count as read. It is
    recognised by its latest version, or, if it has grown since, by another commit under the last number that was read.
    """
    depot, at = source.depot(), reached.depot_version
    commits = source.commits(at, at) if reached.commit_fingerprint else ()
    require_listed(ListedVersions.of(depot.id, at + 1, commits), reached, source.settings)
    # guard: depot-not-behind
    if depot.version < reached.depot_version and reached.start_from != f"version:{reached.depot_version + 1}":
        raise DepotChangedError(
            f"the depot {source.settings.depot} ends at version {depot.version}, "
            f"but the ledger has read version {reached.depot_version}",
            "The depot was restored or lost its last versions. Bring them back before anything is appended, run "
            "`windrow recover` for a ledger on a local disk, or begin a new one (--ledger).",
        )
    return depot


def require_listed(listed: ListedVersions, reached: DepotPosition, settings: Settings) -> None:
    """Raise DepotMismatchError or DepotChangedError, as `require_depot`, if the versions belong to another table."""
    # guard: one-depot
    if listed.depot_id != reached.depot_id:
        raise DepotMismatchError(
            f"the ledger {settings.ledger} belongs to the depot with id {reached.depot_id}, "
            f"but {settings.depot} has id {listed.depot_id}",
            "Give this depot its own ledger (--ledger); a recreated depot needs a new one too.",
        )
    # guard: depot-same-commit
    if differs(listed.fingerprints.get(reached.depot_version), reached.commit_fingerprint):
        raise DepotChangedError(
            f"version {reached.depot_version} of the depot {settings.depot} is not the commit that the ledger has read",
            "The depot was restored and has grown since. Bring its versions back, or begin a new ledger (--ledger): "
            "the commits that reused their numbers are not read.",
        )
