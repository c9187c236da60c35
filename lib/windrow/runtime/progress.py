"""Where a ledger stands: its `progress` row, the clocks of its sources and the open batches, of one table version.

A ledger of one depot has in its `progress` row how far the depot is read. One of several has a row `depot/<name>` for
each, and the clocks of a depot's sources bear its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
POSITION = ("depot_version", "depot_id", "start_from")
BY_SOURCE = ("source", "clock", "floor", "seen_at")
NOWHERE = {"depot_version": -1, "depot_id": "", "start_from": "", "commit_fingerprint": None}


@dataclass(frozen=True, slots=True)
class Sources:
    """The clock of each source: `clock` (greatest T of its data), `floor` (ticks included), `seen_at` (wall time)."""

    source: pa.Array
    clock: Ints
    floor: Ints
    seen_at: Ints

    @property
    def floors(self) -> Floors:
        """Return the floors alone."""
        return Floors(self.source, self.floor)

    def idle(self, now: int) -> Floors:
        """Return the idle clocks at wall time `now`."""
        return Floors(self.source, clock.idle(self.clock, self.seen_at, now))

    def seen(self, moved: Floors, now: int) -> Sources:
        """Return the rows of the sources whose data moved their clock, committed at wall time `now`."""
        return Sources(moved.source, moved.floor, moved.floor, np.full(moved.floor.size, now))

    def ticked(self, after: Floors) -> Sources:
        """Return the rows of the known sources whose floor a tick raised."""
        floor = after.of(self.source)
        rows = np.flatnonzero(floor > self.floor)
        return Sources(self.source.take(from_numpy(rows)), self.clock[rows], floor[rows], self.seen_at[rows])

    def changed(self, moved: Sources, others: pa.Array) -> Sources:
        """Return the rows of the sources that `moved`, as they are now, and of `others`, as they were."""
        still = np.flatnonzero(~to_numpy(pc.is_in(others, moved.source)).astype(np.bool_))
        source = others.take(from_numpy(still))
        at = to_numpy(pc.index_in(source, self.source))
        rows = ((moved.clock, self.clock), (moved.floor, self.floor), (moved.seen_at, self.seen_at))
        joined = (np.concatenate([new, known[at]]) for new, known in rows)
        return Sources(pa.concat_arrays([moved.source, source]), *joined)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a ledger has read which depot: up to `version`, whose commit has the `mark` (None: not known)."""

    depot_id: str
    start_from: str
    version: int
    mark: str | None


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state that a microbatch starts from, in a ledger of several depots with the position in the one it reads."""

    progress: pa.Table  # the one `progress` row
    depot: str | None  # its name, None for a ledger of one depot
    sources: Sources
    partial: pa.Table
    open: OpenBatches
    fence: Live
    token: str
    microbatch: int
    depot_version: int
    depot_id: str
    commit_fingerprint: str | None  # of the commit `depot_version`; None until a microbatch read one
    start_from: str
    paused: bool
    rules: str

    @property
    def reached(self) -> Reached:
        """Return how far the depot is read."""
        return Reached(self.depot_id, self.start_from, self.depot_version, self.commit_fingerprint)

    @property
    def begun(self) -> bool:
        """Tell whether the ledger has a position in the depot: one that was added later has none at first."""
        return bool(self.depot_id)

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
    """Read the live rows, the open batches when they are asked for.

    `depot` is the name of the one to be read in a ledger of several. Raises TableMissing, or TableRefused for a ledger
    that was damaged from outside.
    """
    fence = engine.live()
    rows = fence.rows
    control = where(rows, pc.equal(rows["state"], text("progress")))
    whole = progress_row(control)
    position, by_source = _placed(control, whole, depot)
    require_sound(rows, ((whole, WHOLE), (position, POSITION), (by_source, BY_SOURCE)))
    [reached] = position.select([*POSITION, "commit_fingerprint"]).to_pylist() or [NOWHERE]
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
        **whole.select(list(WHOLE)).to_pylist()[0],
        **reached,
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
            f"the ledger has schema version {version}, this Windrow knows {tables.SCHEMA_VERSION}",
            "Use the Windrow that wrote it, or replay the depot into a new ledger.",
        )
    return whole


def _placed(control: pa.Table, whole: pa.Table, depot: str | None) -> tuple[pa.Table, pa.Table]:
    """Return the row that says how far a depot is read, and those of its sources. Raises TableRefused."""
    if tables.is_of_topology(control.column_names) != (depot is not None):
        raise TableRefused(
            f"the table is the ledger of {'a batcher' if depot else 'a topology'}",
            "Give each a table of its own; `windrow run MODULE:NAME` runs a topology.",
        )
    if depot is None:
        return whole, control.select(["id", *BY_SOURCE]).filter(pc.not_equal(control["id"], text(tables.PROGRESS)))
    own = control.filter(pc.equal(control["depot"], text(depot)))
    is_position = pc.is_null(own["source"])
    return own.filter(is_position), own.filter(pc.invert(is_position))


def control_rows(
    primed: LedgerState, moved: Sources, opened: OpenBatches, advanced: dict[str, object], reached: Reached
) -> pa.Table:
    """Return the progress row with the `advanced` columns, how far the depot is read, and the sources that changed.

    A source changed when its clock `moved` or other batches of it are open (`opened`).
    """
    schema, sources = primed.progress.schema, primed.sources.changed(moved, opened.source)
    kept: dict[str, object] = {name: primed.progress[name] for name in schema.names} | advanced
    if primed.depot is None:
        rows = [tables.rows(schema, kept | _position(reached), 1)]
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
    """Return the row that says how far one of several depots is read."""
    id_ = tables.identifier("depot", pa.array([depot]))
    return tables.rows(schema, {"id": id_, "state": "progress", "depot": depot} | _position(reached), 1)


def _position(reached: Reached) -> dict[str, object]:
    return {
        "depot_id": reached.depot_id,
        "start_from": reached.start_from,
        "depot_version": reached.version,
        "commit_fingerprint": reached.mark,
    }


def first_rows(schema: pa.Schema, positions: Mapping[str | None, Reached], settings: str) -> pa.Table:
    """Return the rows that a new ledger begins with: the progress row, and one for each of several depots."""
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
    rows = [tables.rows(schema, columns | (_position(only) if only else {}), 1)]
    rows += [position_row(schema, depot, reached) for depot, reached in positions.items() if depot is not None]
    return pa.concat_tables(rows)
