"""Read and write the state of a ledger: its `progress` row, the clocks of its sources, its position in the depot.

In a ledger of one depot the `progress` row records how far the depot is read. A ledger of several depots has a row
`depot/<name>` for each, and the rows of a depot's sources carry its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import from_numpy, text, to_numpy, where
from windrow.engine.protocol import Engine, Live
from windrow.errors import TableRefused
from windrow.model import clock, tables
from windrow.model.floors import Floors, Ints
from windrow.model.messages import microseconds, times
from windrow.model.open_batches import OpenBatches
from windrow.model.soundness import DAMAGED, require_sound

WHOLE = ("token", "microbatch", "paused", "rules")
BY_SOURCE = ("source", "clock", "floor", "seen_at")


@dataclass(frozen=True, slots=True)
class Sources:
    """The clock of each source: `clock` (greatest T of its data), `floor` (ticks included), `seen_at` (wall time)."""

    source: pa.Array
    clock: Ints
    floor: Ints
    seen_at: Ints

    @property
    def floors(self) -> Floors:
        """Return the floors."""
        return Floors(self.source, self.floor)

    def idle(self, now: int) -> Floors:
        """Return the idle clocks at wall time `now`."""
        return Floors(self.source, clock.idle(self.clock, self.seen_at, now))

    def seen(self, moved: Floors, now: int) -> Sources:
        """Return the sources whose clocks new messages moved, as committed at wall time `now`."""
        return Sources(moved.source, moved.floor, moved.floor, np.full(moved.floor.size, now))

    def ticked(self, after: Floors) -> Sources:
        """Return the known sources whose floor a tick raised."""
        floor = after.of(self.source)
        rows = np.flatnonzero(floor > self.floor)
        return Sources(self.source.take(from_numpy(rows)), self.clock[rows], floor[rows], self.seen_at[rows])

    def changed(self, moved: Sources, others: pa.Array) -> Sources:
        """Return the sources that `moved`, with their new clocks, and the `others`, unchanged."""
        still = np.flatnonzero(~to_numpy(pc.is_in(others, moved.source)).astype(np.bool_))
        source = others.take(from_numpy(still))
        at = to_numpy(pc.index_in(source, self.source))
        rows = ((moved.clock, self.clock), (moved.floor, self.floor), (moved.seen_at, self.seen_at))
        joined = (np.concatenate([new, known[at]]) for new, known in rows)
        return Sources(pa.concat_arrays([moved.source, source]), *joined)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a ledger has read a depot: up to a version, whose commit the fingerprint identifies.

    The fingerprint is None until a microbatch has read a version. A ledger without a position in the depot has no
    `depot_id`: the depot was added later, and nothing was read of it.
    """

    depot_id: str = ""
    start_from: str = ""
    depot_version: int = -1
    commit_fingerprint: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Reached:
        """Return the position in a row of the ledger."""
        return cls(**{name: row[name] for name in POSITION})


POSITION = tuple(Reached.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state that a microbatch starts from; in a ledger of several depots, for the one that it reads."""

    progress: pa.Table  # the one `progress` row
    depot: str | None  # its name, None for a ledger of one depot
    sources: Sources
    partial: pa.Table
    open: OpenBatches
    fence: Live
    token: str
    microbatch: int
    reached: Reached
    paused: bool
    rules: str

    @property
    def payload(self) -> pa.DataType:
        """Return the type of payloads in the ledger."""
        return self.progress.schema.field("payload").type

    def of_state(self, state: str) -> pa.Table:
        """Read the rows of one state of a topology. Raises TableRefused."""
        rows = self.fence.open.of_state(state)
        require_sound(rows, ())
        return rows


def prime(engine: Engine, depot: str | None = None) -> LedgerState:
    """Read the state of the ledger; the open batches are read later, on demand.

    In a ledger of several depots, `depot` is the name of the one to read. Raises TableMissing, or TableRefused for a
    ledger that was damaged from outside.
    """
    fence = engine.live()
    rows = fence.rows
    control = where(rows, pc.equal(rows["state"], text("progress")))
    whole = progress_row(control)
    position, by_source = _placed(control, whole, depot)
    filled = tuple(name for name in POSITION if name != "commit_fingerprint")
    require_sound(rows, ((whole, WHOLE), (position, filled), (by_source, BY_SOURCE)))
    [reached] = [Reached.of(row) for row in position.to_pylist()] or [Reached()]
    return LedgerState(
        progress=whole,
        depot=depot,
        sources=Sources(
            by_source["source"].combine_chunks(),
            microseconds(by_source["clock"]),
            microseconds(by_source["floor"]),
            microseconds(by_source["seen_at"]),
        ),
        open=fence.totals,
        partial=where(rows, pc.equal(rows["state"], text("partial"))),
        fence=fence,
        reached=reached,
        **whole.select(list(WHOLE)).to_pylist()[0],
    )


def progress_row(rows: pa.Table) -> pa.Table:
    """Return the one progress row among the live rows of a ledger. Raises TableRefused."""
    found = np.flatnonzero(to_numpy(pc.equal(rows["id"], text(tables.PROGRESS)), null=0))
    # guard: one-progress-row
    if found.size != 1:
        raise TableRefused(f"the ledger has {found.size} progress rows instead of one", DAMAGED)
    whole = rows.slice(int(found[0]), 1)
    version = whole["schema_version"][0].as_py()
    # guard: schema-version
    if version != tables.SCHEMA_VERSION:
        raise TableRefused(
            f"the ledger has schema version {version}, this version of Windrow reads {tables.SCHEMA_VERSION}",
            "Use the version of Windrow that wrote it, or replay the depot into a new ledger.",
        )
    return whole


def _placed(control: pa.Table, whole: pa.Table, depot: str | None) -> tuple[pa.Table, pa.Table]:
    """Return the row with the position in a depot, and the rows of its sources. Raises TableRefused."""
    if tables.is_of_topology(control.column_names) != (depot is not None):
        raise TableRefused(
            f"the table is the ledger of {'a batcher' if depot else 'a topology'}",
            "Use another ledger (--ledger); `windrow run MODULE:NAME` runs a topology.",
        )
    if depot is None:
        return whole, control.select(["id", *BY_SOURCE]).filter(pc.not_equal(control["id"], text(tables.PROGRESS)))
    own = control.filter(pc.equal(control["depot"], text(depot)))
    is_position = pc.is_null(own["source"])
    return own.filter(is_position), own.filter(pc.invert(is_position))


def control_rows(
    primed: LedgerState, moved: Sources, opened: OpenBatches, advanced: dict[str, object], reached: Reached
) -> pa.Table:
    """Return the progress row with the `advanced` columns, the position in the depot, and the sources that changed.

    A source has changed if its clock `moved` or if its open batches did (`opened`).
    """
    schema, sources = primed.progress.schema, primed.sources.changed(moved, opened.source)
    kept: dict[str, object] = {name: primed.progress[name] for name in schema.names} | advanced
    if primed.depot is None:
        rows = [tables.rows(schema, kept | asdict(reached), 1)]
        id_ = tables.identifier("source", sources.source)
    else:
        rows = [tables.rows(schema, kept, 1), position_row(schema, primed.depot, reached)]
        id_ = tables.identifier("source", pa.repeat(primed.depot, len(sources.source)), sources.source)
    changed: dict[str, object] = {
        "id": id_,
        "state": "progress",
        "depot": primed.depot,
        "source": sources.source,
        "clock": times(sources.clock),
        "floor": times(sources.floor),
        "seen_at": times(sources.seen_at),
    }
    if primed.depot is None:
        changed |= primed.open.updated(opened).on(sources.source).columns()
    return pa.concat_tables([*rows, tables.rows(schema, changed, len(sources.source))])


def position_row(schema: pa.Schema, depot: str, reached: Reached) -> pa.Table:
    """Return the row with the position in one of several depots."""
    id_ = tables.identifier("depot", pa.array([depot]))
    return tables.rows(schema, {"id": id_, "state": "progress", "depot": depot} | asdict(reached), 1)


def first_rows(schema: pa.Schema, positions: Mapping[str | None, Reached], settings: str) -> pa.Table:
    """Return the first rows of a new ledger: the progress row, and one row for each of several depots."""
    columns: dict[str, object] = {
        "id": tables.PROGRESS,
        "state": "progress",
        "schema_version": tables.SCHEMA_VERSION,
        "microbatch": 0,
        "token": uuid4().hex,
        "paused": False,
        "rules": settings,
    }
    only = positions.get(None)
    rows = [tables.rows(schema, columns | (asdict(only) if only else {}), 1)]
    rows += [position_row(schema, depot, reached) for depot, reached in positions.items() if depot is not None]
    return pa.concat_tables(rows)
