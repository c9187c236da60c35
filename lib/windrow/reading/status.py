"""Read the status of a ledger: what was read, what waits, the last microbatches, and how far back the logs reach.

This part is common to batchers and topologies, whose statuses add their own fields. The fields are those of
`windrow status --json`. Times are ISO 8601 text in UTC; the name of a number ends in its unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windrow.model.timestamps import time_text
from windrow.reading.log import earliest_readable, log_retention, waiting_versions
from windrow.reading.tables import (
    LEDGER_COLUMNS,
    Ledger,
    column_names,
    equal,
    ledger_log,
    open_depot,
    skipped_versions,
)
from windrow.reading.values import records

LAST_MICROBATCHES = 10


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """The earliest version of a table that can still be read, and how long the table keeps removed files."""

    version: int
    retention: str | None


@dataclass(frozen=True, slots=True)
class DepotStatus:
    """How far a depot was read. A batcher's depot is named `depot`.

    Only versions that added rows wait. `messages_waiting` is None when the log does not say how many rows these have,
    and `lag_seconds` is the time since the oldest of them was committed. `changed_version` is the first unread version
    that removed or changed rows, which stops a run unless it is told to ignore it. `skipped_versions` changed rows too;
    runs skipped them without reading any row. `clock` is the latest clock of the depot's sources.
    """

    name: str
    path: str
    start_from: str
    version: int
    read_version: int
    versions_waiting: int
    messages_waiting: int | None
    oldest_waiting_version: int | None
    oldest_waiting_at: str | None
    lag_seconds: float
    changed_version: int | None
    skipped_versions: tuple[int, ...]
    clock: str | None
    readable_range: ReadableRange


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """Identifies the ledger, or the table of states, and the number of its last microbatch."""

    path: str
    version: int
    microbatch: int
    paused: bool
    readable_range: ReadableRange


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the ledger is behind: the messages waiting, and the seconds since the oldest was committed."""

    message_count: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over the history."""

    microbatch_count: int
    message_count: int
    accepted: int
    rejected: int
    opened: int
    closed: int


@dataclass(frozen=True, slots=True)
class MicrobatchRow:
    """One microbatch of the history; in a topology, one row for each `depot` that it read, or a single row."""

    microbatch: int
    kind: str
    attempt: int
    depot: str | None
    depot_version: int | None
    message_count: int
    accepted: int
    rejected: int
    opened: int
    closed: int
    engine: str
    processed_on: str
    started_at: str
    prime_ms: float
    plan_ms: float
    process_ms: float


@dataclass(frozen=True, slots=True)
class Status:
    """What `windrow status` prints for any ledger. `microbatches` begins with the latest."""

    depots: tuple[DepotStatus, ...]
    ledger: LedgerStatus
    lag: Lag
    totals: Totals
    microbatches: tuple[MicrobatchRow, ...]

    @property
    def versions_waiting(self) -> int:
        """Return how many versions of all depots wait."""
        return sum(depot.versions_waiting for depot in self.depots)


@dataclass(frozen=True, slots=True)
class DepotPlace:
    """Where a depot is; in a table of states, `state` is the state that is read as a depot."""

    location: str
    state: str | None = None


Places = Mapping[str | None, DepotPlace]  # the depots by name; a batcher's has none


def common_status(book: Ledger, places: Places, now: int) -> dict[str, Any]:
    """Return the fields of `Status`, at wall time `now` (microseconds).

    Raises TableMissingError, IncompatibleTableError, and DepotMismatchError for a depot that the ledger does not read.
    """
    depots = tuple(_depot(book, name, place, now) for name, place in places.items())
    progress = book.progress(next(iter(places)))
    waiting = [depot.messages_waiting for depot in depots]
    messages = None if None in waiting else sum(number or 0 for number in waiting)
    own = ledger_log(book)
    reach = ReadableRange(earliest_readable(own), log_retention(own))
    return {
        "depots": depots,
        "ledger": LedgerStatus(book.location, book.version, progress.microbatch, progress.paused, reach),
        "lag": Lag(messages, max(depot.lag_seconds for depot in depots)),
        "totals": Totals(**one_row(book, "microbatch", TOTALS)),
        "microbatches": _last(book, progress.microbatch),
    }


def one_row(book: Ledger, state: str, columns: str) -> dict[str, Any]:
    """Return the values of an aggregate over the rows in a state."""
    return dict(records(book.rows(state, columns))[0])


TOTALS = (
    "count(DISTINCT microbatch) AS microbatch_count, coalesce(sum(messages_read), 0) AS message_count, "
    + ", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in ("accepted", "rejected", "opened", "closed"))
)


def _depot(book: Ledger, name: str | None, place: DepotPlace, now: int) -> DepotStatus:
    """Return how far a depot is read, and what waits at wall time `now` (microseconds)."""
    progress = book.progress(name)
    log = open_depot(place.location, book, progress)
    is_ledger = place.state is None and column_names(log) >= LEDGER_COLUMNS
    waits = waiting_versions(log, progress.depot_version, "closed" if is_ledger else place.state)
    since = waits.committed_at
    clocks = book.rows("progress", "max(clock) AS clock", f"source IS NOT NULL AND {equal({'depot': name})}")
    return DepotStatus(
        name=name or "depot",
        path=place.location,
        start_from=progress.start_from,
        version=log.version(),
        read_version=progress.depot_version,
        versions_waiting=waits.version_count,
        messages_waiting=waits.message_count,
        oldest_waiting_version=waits.oldest,
        oldest_waiting_at=None if since is None else time_text(since),
        lag_seconds=0.0 if since is None else max(0, now - since) / 1_000_000,
        changed_version=waits.changed,
        skipped_versions=tuple(at for at in skipped_versions(book, name) if at <= progress.depot_version),
        clock=records(clocks)[0]["clock"],
        readable_range=ReadableRange(earliest_readable(log, depot=True), log_retention(log)),
    )


def _last(book: Ledger, reached: int) -> tuple[MicrobatchRow, ...]:
    depot = "depot" if book.of_topology else "CAST(NULL AS VARCHAR) AS depot"
    own = {"message_count": "messages_read AS message_count", "depot": depot}
    columns = ", ".join(own.get(name, name) for name in MicrobatchRow.__dataclass_fields__)
    recent = f"microbatch > {reached - LAST_MICROBATCHES}"
    rows = book.rows("microbatch", columns, recent, "ORDER BY microbatch DESC, depot")
    return tuple(MicrobatchRow(**row) for row in records(rows))
