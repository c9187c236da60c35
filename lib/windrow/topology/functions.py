"""The algorithm of a topology's microbatches: call the functions of its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.delta.log import Table
from windrow.engine.protocol import no_messages
from windrow.engine.result import Counts, MicrobatchResult
from windrow.errors import TableRefused, TopologyRefused
from windrow.model.floors import Floors
from windrow.runtime.algorithm import Options, Plan
from windrow.runtime.progress import LedgerState
from windrow.topology.event import event_rows, scheduled
from windrow.topology.microbatch import Microbatch
from windrow.topology.options import options_of, recorded_options
from windrow.topology.state import State
from windrow.topology.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Functions:
    """Runs the function of each state over the messages of a microbatch."""

    topology: Topology

    @property
    def settings(self) -> str:
        """Return what the history records of the topology (JSON)."""
        return self.topology.settings

    def schema(self, depots: Sequence[Table]) -> pa.Schema:
        """Return the columns of the table of states. Raises TopologyRefused for several raw depots."""
        raw = sum(depot.raw for depot in depots)
        if raw > 1:
            raise TopologyRefused(f"{raw} of the depots are raw", "Use at most one raw depot in a topology.")
        return self.topology.schema(raw=bool(raw))

    def require(self, primed: LedgerState, depot: Table) -> None:
        """Raise TableRefused if the table lacks a column of a state, or has it with another type."""
        held = primed.progress.schema
        for wanted in self.topology.schema(raw=depot.raw):
            if wanted.name not in held.names:
                raise TableRefused(
                    f"the table of states has no column {wanted.name!r}", "It belongs to another topology: check state."
                )
            if held.field(wanted.name).type != wanted.type:
                raise TableRefused(
                    f"the column {wanted.name!r} of the table of states is {held.field(wanted.name).type}, the "
                    f"topology declares {wanted.type}",
                    "Declare the old type, use another name, or begin a new table (state=...).",
                )

    def options(self, primed: LedgerState) -> Options:
        """Return the options in force."""
        return options_of(primed)

    def process(self, plan: Plan) -> MicrobatchResult:
        """Return the rows that the functions change, the events that fired, and what the format rejected."""
        primed = plan.primed
        schema = primed.progress.schema
        due = scheduled(primed.fence.rows)
        events = self.topology.events.values()
        fired = tuple(event.name for event in events if event.name in due and event.fires(due[event.name], plan.now))
        changes = self._changed(plan, fired) if plan.arrived is not None or fired else Changes([], [])
        moved = {event.name: event.next(due.get(event.name, plan.now), plan.now) for event in events}
        moved = {name: at for name, at in moved.items() if due.get(name) != at}
        here = [MicrobatchResult.nothing(schema).rows, *changes.tables, event_rows(schema, moved, due)]
        history: dict[str, object] = {"options_used": recorded_options(primed)}
        if fired:
            history["events_fired"] = pa.array([list(fired)], pa.list_(pa.string()))
        if changes.frames:
            from windrow.topology.frames import processed

            return processed(changes, pa.concat_tables(here), plan, history)
        if plan.arrived is not None:
            here += plan.arrived.extra_rows(plan.microbatch, schema)
        joined = pa.concat_tables(here)
        return MicrobatchResult(joined, Counts.of(joined), Floors.empty(), history=history)

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return the unchanged floors if an event is due or not scheduled yet, else None."""
        due = scheduled(primed.fence.rows)
        return primed.sources.floors if any(due.get(name, now) <= now for name in self.topology.events) else None

    def follow(self, primed: LedgerState) -> Floors:
        """Return the unchanged floors."""
        return primed.sources.floors

    def _changed(self, plan: Plan, fired: tuple[str, ...]) -> Changes:
        """Call the functions, and return the changed ledger rows with `known`."""
        primed, topology = plan.primed, self.topology
        reads, changes = Reads(primed, topology), Changes([], [])
        depot = primed.depot if plan.arrived is not None else None
        for state in topology.states.values():
            if state.depot is not None and state.depot != depot:
                continue
            microbatch = Microbatch(
                id=plan.microbatch,
                attempt=plan.attempt,
                depot=depot,
                messages=None,
                events=fired,
                clock=datetime.fromtimestamp(plan.now / 1_000_000, UTC),
                states=topology.states,
                read=reads.columns,
            )
            if state.form == "spark":
                changes.frames.append(_called_with_frames(state, microbatch, plan))
            else:
                messages = no_messages(primed.progress.schema) if plan.arrived is None else plan.arrived.table()
                returned = _called(state, replace(microbatch, messages=messages))
                changes.tables.append(state.changes(returned, reads.rows(state.name), primed.progress.schema))
        return changes


@dataclass(frozen=True, slots=True)
class Changes:
    """The changed ledger rows, with `known`: Arrow tables, and DataFrames of functions that work with those."""

    tables: list[pa.Table]
    frames: list[DataFrame]


def _called(state: State, microbatch: Microbatch) -> pa.Table:
    """Call the function of a state with Arrow tables."""
    returned = state.function(microbatch)
    if not isinstance(returned, pa.Table):
        raise TopologyRefused(
            f"the function of the state {state.name} returned {type(returned).__name__}", "Return a pa.Table."
        )
    return returned


def _called_with_frames(state: State, microbatch: Microbatch, plan: Plan) -> DataFrame:
    """Call the function of a state with Spark DataFrames."""
    if plan.engine.session_at_work is None:
        raise TopologyRefused(
            f"the function of the state {state.name} needs Spark DataFrames, which the embedded engine does not have",
            "Use --engine spark, or let the function work with Arrow tables (-> pa.Table).",
        )
    from windrow.topology.frames import changed

    return changed(state, microbatch, plan)


class Reads:
    """The states that a microbatch reads, each once."""

    def __init__(self, primed: LedgerState, topology: Topology) -> None:
        """Start without reading anything."""
        self._primed, self._topology = primed, topology
        self._held: dict[str, pa.Table] = {}

    def rows(self, name: str) -> pa.Table:
        """Return the ledger rows of a state, which are read once. Raises TableRefused."""
        if name not in self._held:
            self._held[name] = self._primed.of_state(name)
        return self._held[name]

    def columns(self, name: str) -> pa.Table:
        """Return the rows of a state with only its own columns."""
        return self.rows(name).select(self._topology.states[name].columns.names)
