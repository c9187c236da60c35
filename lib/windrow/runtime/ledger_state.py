"""Read and write the state of a ledger: its `progress` row, the clocks of its sources, its position in the depot.

In a ledger of one depot, the `progress` row records how far the depot was read. A ledger of several depots has a row
`depot/<name>` for each, and the rows of a depot's sources carry its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar import arrow
from windrow.columnar.arrow import filter_rows, from_numpy, string_array, string_scalar, to_numpy
from windrow.errors import IncompatibleTableError, TableUnreadableError
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live
from windrow.ledger.versions import rows_to_write
from windrow.model import clock, tables
from windrow.model.chain import CHAIN
from windrow.model.floors import Floors, Ints
from windrow.model.messages import microseconds, times
from windrow.model.open_batches import OpenBatchTotals
from windrow.model.tables import DAMAGED, require_filled
from windrow.model.timestamps import microseconds_of

WHOLE = ("token", "microbatch", "paused", "rules")
STATE_TOKEN = "state_token"
CLEANED_UP = 3  # how often somebody may clean up during one read of a ledger: a guess, once was seen
BY_SOURCE = ("source", "clock", "floor", "seen_at")


@dataclass(frozen=True, slots=True)
class Sources:
    """For each source `clock` (its greatest processing time), `floor` (ticks included), `seen_at` (wall time).

    All windows that may lie off the calendar end at `cut` (UNKNOWN: there is none) or earlier.
    """

    source: pa.Array
    clock: Ints
    floor: Ints
    cut: Ints
    seen_at: Ints

    @classmethod
    def none(cls) -> Sources:
        """Return no source."""
        nothing = np.empty(0, np.int64)
        return cls(pa.array([], pa.string()), nothing, nothing, nothing, nothing)

    @property
    def floors(self) -> Floors:
        """Return the floors."""
        return Floors(self.source, self.floor)

    @property
    def cuts(self) -> Floors:
        """Return the cuts."""
        return Floors(self.source, self.cut)

    def idle(self, now: int) -> Floors:
        """Return the idle clocks at wall time `now`."""
        return Floors(self.source, clock.idle_clocks(self.clock, self.seen_at, now))

    def move_clocks(self, moved: Floors, now: int) -> Sources:
        """Return the sources whose clocks new messages moved, as committed at wall time `now`."""
        cut = self.cuts.of(moved.source)
        return Sources(moved.source, moved.floor, moved.floor, cut, np.full(moved.floor.size, now))

    def raise_floors(self, after: Floors, cuts: Floors) -> Sources:
        """Return the known sources whose floor or cut a tick, a flush or a change of the rules raised."""
        floor, cut = after.of(self.source), np.maximum(self.cut, cuts.of(self.source))
        rows = np.flatnonzero((floor > self.floor) | (cut > self.cut))
        source = self.source.take(from_numpy(rows))
        return Sources(source, self.clock[rows], floor[rows], cut[rows], self.seen_at[rows])

    def replace_moved(self, moved: Sources, others: pa.Array) -> Sources:
        """Return the sources that `moved`, with their new clocks, and the `others`, unchanged."""
        source = others.take(from_numpy(np.flatnonzero(arrow.index_in(others, moved.source) < 0)))
        at = arrow.index_in(source, self.source)
        columns = ("clock", "floor", "cut", "seen_at")
        joined = (np.concatenate([getattr(moved, name), getattr(self, name)[at]]) for name in columns)
        return Sources(pa.concat_arrays([moved.source, source]), *joined)


@dataclass(frozen=True, slots=True)
class DepotPosition:
    """How far a ledger has read a depot: up to a version, whose commit the fingerprint identifies.

    The fingerprint is None until a microbatch has read a version. An empty `depot_id` means that the ledger has no
    position in the depot: it was added later, and none of it was read. In step, part of the next version may be read:
    its messages up to `part_until` (microseconds).
    """

    depot_id: str = ""
    start_from: str = ""
    depot_version: int = -1
    commit_fingerprint: str | None = None
    part_until: int | None = None
    part_fingerprint: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> DepotPosition:
        """Return the position in a row of the ledger."""
        until = row.get("part_until")
        part = None if until is None else microseconds_of(until)
        named = {name: row[name] for name in POSITION}
        return cls(**named, part_until=part, part_fingerprint=row.get("part_fingerprint"))

    def to(self, version: int, fingerprint: str | None) -> DepotPosition:
        """Return the position after a version that was read whole."""
        return DepotPosition(self.depot_id, self.start_from, version, fingerprint)


POSITION = ("depot_id", "start_from", "depot_version", "commit_fingerprint")


@dataclass(frozen=True, slots=True)
class PartialRows:
    """The unfinished raw records of a depot, read only for the raw sources that need them."""

    live: Live
    depot: str | None

    def __call__(self, sources: pa.Array) -> pa.Table:
        """Return the records of some raw sources, with the ids that they have in a batcher's ledger."""
        # guard: partial-of-these-sources
        own = self.live.partial(self.depot, sources.unique())
        if self.depot is None:
            return own
        prefix = tables.identifier("of", string_array([self.depot]))[0].as_py()
        ids = pc.utf8_slice_codeunits(own["id"], len(prefix) + 1)
        return own.set_column(own.schema.get_field_index("id"), own.schema.field("id"), ids)


@dataclass(frozen=True, slots=True)
class DepotState:
    """What a ledger knows about a depot: how far it was read, the clocks of its sources, and unfinished raw records."""

    reached: DepotPosition
    sources: Sources
    partial: PartialRows


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state that a microbatch starts from. `depots` has the depots by name; a batcher's is named None."""

    progress: pa.Table  # the one `progress` row
    depots: Mapping[str | None, DepotState]
    open: OpenBatchTotals
    fence: Live
    token: str
    microbatch: int
    paused: bool
    rules: str

    @property
    def state_token(self) -> str:
        """Return the token of the last commit that changed the states of a topology, or positions in its depots."""
        return str(self.progress[STATE_TOKEN][0].as_py() or "")

    @property
    def chain(self) -> str | None:
        """Return the last link of the history's chain; None before the first microbatch."""
        link: str | None = self.progress[CHAIN][0].as_py()
        return link

    @property
    def payload(self) -> pa.DataType:
        """Return the type of payloads in the ledger."""
        return self.progress.schema.field("payload").type

    @property
    def reached(self) -> DepotPosition:
        """Return how far a batcher has read its depot."""
        return self.depots[None].reached

    @property
    def sources(self) -> Sources:
        """Return the clocks of a batcher's sources."""
        return self.depots[None].sources

    @property
    def partial(self) -> PartialRows:
        """Return the unfinished raw records of a batcher."""
        return self.depots[None].partial


def _live(ledger: Ledger) -> Live:
    """Read the live rows, even while somebody cleans up.

    A fold and a vacuum by another process may delete the files of a version after it was looked up and before it is
    read. The files of the next version exist by then. Raises TableUnreadableError.
    """
    for _ in range(CLEANED_UP):
        # guard: cleaned-up-is-read-again
        with suppress(TableUnreadableError):
            return ledger.live()
    return ledger.live()


def prime(ledger: Ledger, depots: Sequence[str | None] = (None,)) -> LedgerState:
    """Read the state of the ledger; the open batches, or the states of a topology, are read later, on demand.

    `depots` are the names of a topology's depots. Raises TableMissingError, or IncompatibleTableError for a ledger that
    was damaged from outside.
    """
    fence = _live(ledger)
    rows = fence.rows
    control = filter_rows(rows, pc.equal(rows["state"], string_scalar("progress")))
    whole = progress_row(control)
    require_filled(whole, WHOLE)
    return LedgerState(
        progress=arrow.conform(whole, fence.schema),
        depots={name: _depot_state(control, fence, whole, name) for name in depots},
        open=fence.totals,
        fence=fence,
        **whole.select(list(WHOLE)).to_pylist()[0],
    )


def _depot_state(control: pa.Table, live: Live, whole: pa.Table, depot: str | None) -> DepotState:
    """Return what the rows of a ledger say about a depot. Raises IncompatibleTableError."""
    position, by_source = _position_rows(control, whole, depot)
    filled = tuple(name for name in POSITION if name != "commit_fingerprint")
    require_filled(position, filled)
    require_filled(by_source, BY_SOURCE)
    [reached] = [DepotPosition.of(row) for row in position.to_pylist()] or [DepotPosition()]
    sources = Sources(
        arrow.combine_chunks(by_source["source"]),
        microseconds(by_source["clock"]),
        microseconds(by_source["floor"]),
        to_numpy(by_source["cut"], null=clock.UNKNOWN),
        microseconds(by_source["seen_at"]),
    )
    return DepotState(reached, sources, PartialRows(live, depot))


def progress_row(rows: pa.Table) -> pa.Table:
    """Return the one progress row among the live rows of a ledger. Raises IncompatibleTableError."""
    places = np.flatnonzero(to_numpy(pc.equal(rows["id"], string_scalar(tables.PROGRESS)), null=0))
    # guard: one-progress-row
    if places.size != 1:
        raise IncompatibleTableError(f"the ledger has {places.size} progress rows instead of one", DAMAGED)
    whole = rows.slice(int(places[0]), 1)
    version = whole["schema_version"][0].as_py()
    # guard: schema-version
    if version != tables.SCHEMA_VERSION:
        raise IncompatibleTableError(
            f"the ledger has schema version {version}, but this Windrow reads {tables.SCHEMA_VERSION}",
            "Use the version of Windrow that wrote it, or replay the depot into a new ledger.",
        )
    return whole


def _position_rows(control: pa.Table, whole: pa.Table, depot: str | None) -> tuple[pa.Table, pa.Table]:
    """Return the row with the position in a depot, and the rows of its sources. Raises IncompatibleTableError."""
    if tables.is_topology_ledger(control.column_names) != (depot is not None):
        raise IncompatibleTableError(
            f"the table is the ledger of {'a batcher' if depot else 'a topology'}",
            "Use another ledger (--ledger); `windrow run MODULE:NAME` runs a topology.",
        )
    if depot is None:
        return whole, control.select(["id", *BY_SOURCE, "cut"]).filter(
            pc.not_equal(control["id"], string_scalar(tables.PROGRESS))
        )
    own = control.filter(pc.equal(control["depot"], string_scalar(depot)))
    is_position = pc.is_null(own["source"])
    return own.filter(is_position), own.filter(pc.invert(is_position))


def control_rows(
    primed: LedgerState,
    moved: Mapping[str | None, Sources],
    opened: OpenBatchTotals,
    advanced: dict[str, object],
    reached: Mapping[str | None, DepotPosition],
) -> pa.Table:
    """Return the progress row with the `advanced` columns, the positions in depots, and the sources that changed.

    A source has changed if its clock `moved` or its open batches changed (`opened`). Positions that are not in
    `reached` stay as they are.
    """
    schema = primed.progress.schema
    kept: dict[str, object] = {name: primed.progress[name] for name in schema.names} | advanced
    kept |= dict.fromkeys(name for name, _ in tables.ROW_FIELDS)
    kept |= asdict(reached[None]) if None in reached else {}
    rows = [tables.rows(schema, kept, 1)]
    rows += [position_row(schema, name, at) for name, at in reached.items() if name is not None]
    if None in primed.depots:
        sources = primed.sources.replace_moved(moved.get(None, Sources.none()), opened.source)
        totals = primed.open.updated(opened, sources.source).columns()
        return pa.concat_tables([*rows, _source_rows(schema, None, sources, totals)])
    return pa.concat_tables([*rows, *(_source_rows(schema, name, sources, {}) for name, sources in moved.items())])


def _source_rows(schema: pa.Schema, depot: str | None, sources: Sources, totals: Mapping[str, object]) -> pa.Table:
    """Return the rows of the sources of a depot, with the `totals` of their open batches."""
    named = [] if depot is None else [pa.repeat(depot, len(sources.source))]
    columns: dict[str, object] = {
        "id": tables.identifier("source", *named, sources.source),
        "state": "progress",
        "depot": depot,
        "source": sources.source,
        "clock": times(sources.clock),
        "floor": times(sources.floor),
        "cut": times(sources.cut, sources.cut != clock.UNKNOWN),
        "seen_at": times(sources.seen_at),
    }
    return tables.rows(schema, columns | dict(totals), len(sources.source))


def position_row(schema: pa.Schema, depot: str, reached: DepotPosition) -> pa.Table:
    """Return the row with the position in one of several depots."""
    id_ = tables.identifier("depot", pa.array([depot]))
    return tables.rows(schema, {"id": id_, "state": "progress", "depot": depot} | asdict(reached), 1)


def first_rows(schema: pa.Schema, positions: Mapping[str | None, DepotPosition], settings: str) -> pa.Table:
    """Return the first rows of a new ledger: the progress row, and one row for each of several depots."""
    columns: dict[str, object] = {
        "id": tables.PROGRESS,
        "state": "progress",
        "schema_version": tables.SCHEMA_VERSION,
        "versions_written": len(positions) + (None not in positions),
        "versions_obsolete": 0,
        "messages_written": 0,
        "microbatch": 0,
        "token": uuid4().hex,
        "paused": False,
        "rules": settings,
    }
    only = positions.get(None)
    rows = [tables.rows(schema, columns | (asdict(only) if only else {}), 1)]
    rows += [position_row(schema, depot, reached) for depot, reached in positions.items() if depot is not None]
    return rows_to_write(pa.concat_tables(rows), 1)
