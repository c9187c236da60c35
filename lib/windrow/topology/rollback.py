"""Rollback: restore the states of a topology to an earlier microbatch, and read the depots again from there.

A rollback is a microbatch, fenced and recorded like any other: one commit writes the rows of that time as new versions,
tombstones of the keys that came later, and the positions and clocks of the depots. The history stays and records the
rollback. Options do not change. A depot that was added later is read from the version at which it began according to
the history, since `end` is another version by now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import in_columns, text
from windrow.errors import DepotUnreadable
from windrow.ledger import Ledger
from windrow.ledger.result import Counts, MicrobatchResult
from windrow.ledger.versions import latest
from windrow.model import tables
from windrow.runtime.ledger_state import POSITION, LedgerState, Reached
from windrow.source import Source
from windrow.topology.reading import first_read
from windrow.topology.state import State
from windrow.topology.states_table import StatesTable, states_of
from windrow.topology.topology import Topology


def taken_back(
    topology: Topology, primed: LedgerState, sources: Mapping[str | None, Source], ledger: Ledger, to: int
) -> tuple[MicrobatchResult, dict[str, Reached]]:
    """Return the rows that restore the states to microbatch `to`, and the positions in the depots.

    Raises NotFound if Delta's log does not reach back that far, DepotUnreadable if a depot's log does not.
    """
    schema, then = primed.progress.schema, states_of(ledger, to)
    control_then = _then(then, tables.CONTROL, schema)
    read_then = _positions(control_then) if to else {}  # before the first one a depot may begin elsewhere
    # also of depots that are read no more
    positions = _begun(_positions(primed.fence.rows), first_read(ledger)) | read_then
    for name, source in sources.items():
        _require_readable(str(name), source, positions[str(name)])
    control = _replaced(_restored(primed.fence.rows), _restored(control_then))
    control = in_columns(control, schema.append(control.schema.field("known")))
    own = pa.field("id", pa.string()), pa.field("state", pa.string())
    states = {
        name: _replaced(_now(primed, state), _then(then, [name], pa.schema([*own, *state.columns])))
        for name, state in topology.states.items()
    }
    counts = Counts.with_states(control, states.values())
    history = {"options_used": json.dumps({"to_microbatch": to})}
    result = MicrobatchResult(control, counts, history=history, states=states)
    return result, positions


def _now(primed: LedgerState, state: State) -> pa.Table:
    """Return the rows of a state as they are."""
    rows = primed.fence.open.of_state(state.name, state.columns)
    return rows.append_column("state", pa.repeat(pa.scalar(state.name, pa.string()), rows.num_rows))


def _then(table: StatesTable, states: Sequence[str], columns: pa.Schema) -> pa.Table:
    """Return the rows of states at a version; a state or a column that was declared later has none."""
    return in_columns(latest(table.rows(states)), columns)


def _replaced(now: pa.Table, then: pa.Table) -> pa.Table:
    """Return the rows that put those of `then` in the place of those of `now`, with `known`."""
    gone = now.filter(pc.invert(pc.is_in(now["id"], then["id"].combine_chunks())))
    parts = ((then.select(now.column_names), None), (gone, True))
    written = pa.concat_tables(_marked(rows, deleted) for rows, deleted in parts)
    return written.append_column("known", pc.is_in(written["id"], now["id"].combine_chunks()))


def _marked(rows: pa.Table, deleted: bool | None) -> pa.Table:
    """Return rows as versions, or as tombstones."""
    column = pa.repeat(pa.scalar(deleted, pa.bool_()), rows.num_rows)
    at = rows.schema.get_field_index(tables.DELETED)
    field = pa.field(tables.DELETED, pa.bool_())
    return rows.append_column(field, column) if at < 0 else rows.set_column(at, field, column)


def _positions(rows: pa.Table) -> dict[str, Reached]:
    """Return the position in each depot."""
    kept = rows.filter(pc.starts_with(rows["id"], "depot/"))
    return {row["depot"]: Reached.of(row) for row in kept.select(["depot", *POSITION]).to_pylist()}


def _begun(positions: Mapping[str, Reached], first: Mapping[str, int]) -> dict[str, Reached]:
    """Return the positions before the first read; where reading began is taken from the history."""
    return {
        name: replace(at, depot_version=first[name] - 1, commit_fingerprint=None) if name in first else at
        for name, at in positions.items()
    }


def _restored(rows: pa.Table) -> pa.Table:
    """Return the rows that a rollback restores: all but the progress row, positions and options."""
    own = pc.or_(pc.equal(rows["id"], text(tables.PROGRESS)), pc.starts_with(rows["id"], "depot/"))
    return rows.filter(pc.invert(pc.or_(own, pc.equal(rows["state"], text("option")))))


def _require_readable(name: str, source: Source, reached: Reached) -> None:
    """Raise DepotUnreadable if the log of a depot no longer has the versions since then."""
    if reached.depot_version < source.depot().version:
        following = reached.depot_version + 1
        commits = source.commits(following)
        if not commits or commits[0].version != following:
            raise DepotUnreadable(
                f"version {following} of the depot {name}, which comes next, is no longer in its log",
                "Roll back to a later microbatch.",
            )
