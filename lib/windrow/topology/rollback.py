"""Rollback: restore the states of a topology to an earlier microbatch, and read the depots again from there.

A rollback is a microbatch, fenced and recorded like any other: one commit writes the rows of that time as new versions,
tombstones of the keys that came later, and the positions and clocks of the depots. The history stays and records the
rollback. Options do not change. A depot that was added later is read from the version at which it began according to
the history, because `end` means another version by now. States get back the columns that they had then, with the
settings that declare them: if the topology declares others, the next run migrates them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import conform, string_scalar
from windrow.errors import DepotUnreadableError
from windrow.ledger import Ledger
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.ledger.versions import latest
from windrow.model import tables
from windrow.runtime.ledger_state import DepotPosition, LedgerState
from windrow.source import Source
from windrow.topology.migration import recorded_states, replace_rows
from windrow.topology.reading import first_read, rules_at
from windrow.topology.state import State
from windrow.topology.states_table import StatesTable, states_of
from windrow.topology.topology import Topology


def restored_rows(
    topology: Topology, primed: LedgerState, sources: Mapping[str | None, Source], ledger: Ledger, to: int
) -> tuple[MicrobatchResult, dict[str, DepotPosition]]:
    """Return the rows that restore the states to microbatch `to`, and the positions in the depots.

    Raises NotFoundError if Delta's log does not reach back that far, DepotUnreadableError if a depot's log does not.
    """
    schema, then = primed.progress.schema, states_of(ledger, to)
    control_then = _rows_at(then, tables.CONTROL, schema)
    read_then = _positions(control_then) if to else {}  # before the first one a depot may begin elsewhere
    # also of depots that are no longer read
    positions = _start_positions(_positions(primed.fence.rows), first_read(ledger)) | read_then
    for name, source in sources.items():
        _require_readable(str(name), source, positions[str(name)])
    control = replace_rows(_rows_to_restore(_control_now(primed)), _rows_to_restore(control_then))
    control = conform(control, schema.append(control.schema.field("known")))
    recorded = recorded_states(topology.states, primed.rules, schema)
    recorded_then = recorded_states(topology.states, rules_at(then), schema)
    states = {}
    for name in topology.states:
        columns = _columns(recorded.get(name), recorded_then.get(name))
        own = pa.field("id", pa.string()), pa.field("state", pa.string())
        states[name] = replace_rows(_now(primed, name, columns), _rows_at(then, [name], pa.schema([*own, *columns])))
    counts = MicrobatchCounts.with_states(control, states.values())
    # guard: rollback-of-a-migration
    rules = rules_at(then) if any(state != recorded.get(name) for name, state in recorded_then.items()) else None
    history = {"options_used": json.dumps({"to_microbatch": to})}
    result = MicrobatchResult(control, counts, history=history, states=states, rules=rules)
    return result, positions


def _columns(*states: State | None) -> pa.Schema:
    """Return the columns of a state, of all its versions that are not None, as the table has them."""
    stored = [field for state in states if state is not None for field in state.stored]
    return pa.schema({field.name: field for field in stored}.values())


def _control_now(primed: LedgerState) -> pa.Table:
    """Return the control rows, and the unfinished records of raw sources."""
    rows = primed.fence.rows
    if "content" not in primed.fence.schema.names:
        return rows
    partial = conform(primed.fence.partial(None), rows.schema)
    return pa.concat_tables([rows, partial])


def _now(primed: LedgerState, state: str, columns: pa.Schema) -> pa.Table:
    """Return the rows of a state as they are."""
    rows = primed.fence.open.of_state(state, columns)
    return rows.append_column("state", pa.repeat(pa.scalar(state, pa.string()), rows.num_rows))


def _rows_at(table: StatesTable, states: Sequence[str], columns: pa.Schema) -> pa.Table:
    """Return the rows of states at a version; a state or a column that was declared later has none."""
    return conform(latest(table.rows(states)), columns)


def _positions(rows: pa.Table) -> dict[str, DepotPosition]:
    """Return the position in each depot."""
    kept = rows.filter(pc.starts_with(rows["id"], "depot/"))
    return {row["depot"]: DepotPosition.of(row) for row in kept.to_pylist()}


def _start_positions(positions: Mapping[str, DepotPosition], first: Mapping[str, int]) -> dict[str, DepotPosition]:
    """Return the positions before the first read, which the history records."""
    return {name: at.to(first[name] - 1, None) if name in first else at for name, at in positions.items()}


def _rows_to_restore(rows: pa.Table) -> pa.Table:
    """Return the rows that a rollback restores: all but the progress row, positions and options."""
    own = pc.or_(pc.equal(rows["id"], string_scalar(tables.PROGRESS)), pc.starts_with(rows["id"], "depot/"))
    return rows.filter(pc.invert(pc.or_(own, pc.equal(rows["state"], string_scalar("option")))))


def _require_readable(name: str, source: Source, reached: DepotPosition) -> None:
    """Raise DepotUnreadableError if the log of a depot no longer has the versions since then."""
    if reached.depot_version < source.depot().version:
        following = reached.depot_version + 1
        commits = source.commits(following)
        if not commits or commits[0].version != following:
            raise DepotUnreadableError(
                f"version {following} of the depot {name}, which must be read next, is no longer in its log",
                "Roll back to a later microbatch.",
            )
