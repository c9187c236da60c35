"""The algorithm of a topology's microbatches: when there is work, and what a microbatch commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from windrow.delta.log import TableInfo
from windrow.errors import IncompatibleTableError
from windrow.ledger import Ledger
from windrow.ledger.result import MicrobatchResult
from windrow.model.floors import Floors
from windrow.runtime.algorithm import Algorithm, MicrobatchPlan, Options
from windrow.runtime.ledger_state import LedgerState
from windrow.runtime.saved_plan import PLANS, SavedPlan, SavedPlans, first_transaction
from windrow.source import Source
from windrow.topology.due import step_time
from windrow.topology.event import due_times
from windrow.topology.feeding import RecordedFeeder, feeders_of
from windrow.topology.migration import migrate_rows, recorded_states, require_allowed
from windrow.topology.options import options_of, recorded_options
from windrow.topology.reading import removed_states
from windrow.topology.topology import Topology
from windrow.topology.work import BUGS, FunctionCalls, application


@dataclass(frozen=True, slots=True)
class FunctionAlgorithm(Algorithm):
    """Runs the functions of a topology over the rows of a microbatch; `sources` read its depots, by name."""

    topology: Topology
    sources: Mapping[str, Source]
    ledger: Ledger

    @property
    def saved_plans(self) -> SavedPlans:
        """Return the plans, which are saved beside the table of states."""
        return SavedPlans(self.ledger.side_files, self.sources, self._is_of_use)

    @property
    def settings(self) -> str:
        """Return what the history records of the topology (JSON)."""
        return self.topology.settings

    def number(self, least: int) -> int:
        """Return a number under which no output has seen an append of these states yet.

        After a RESTORE of the table of states its numbers repeat, and an output would mistake new rows for old ones.
        """
        for name in self.topology.outputs:
            # guard: number-free-in-outputs
            least = -(-self._free(name, first_transaction(least)) // PLANS)
        return least

    def _is_of_use(self, planned: SavedPlan) -> bool:
        """Tell whether no output has an append of a later plan."""
        own = planned.transaction
        return all(self._free(name, own) <= own + 1 for name in self.topology.outputs)

    def _free(self, output: str, least: int) -> int:
        """Return the first transaction number from `least` on that an output has not recorded for these states."""
        engine, application_id = self.ledger.engine, application(self.ledger, output, self.sources)
        return engine.free_number(engine.place(self.topology.outputs[output]), application_id, least)

    def schema(self, depots: Sequence[TableInfo]) -> pa.Schema:
        """Return the columns of the table of states."""
        return self.topology.schema(raw=any(depot.raw for depot in depots))

    def require(self, primed: LedgerState, depot: TableInfo) -> None:
        """Raise IncompatibleTableError if a state's columns changed undeclared, or the table lacks one."""
        schema = primed.progress.schema
        require_allowed(self.topology.states, recorded_states(self.topology.states, primed.rules, schema))
        for field in self.topology.schema(raw=depot.raw):
            if field.name not in schema.names:
                raise IncompatibleTableError(
                    f"the table of states has no column {field.name!r}",
                    "It belongs to another topology: check `states`.",
                )
            if schema.field(field.name).type != field.type:
                raise IncompatibleTableError(
                    f"the column {field.name!r} of the table of states is {schema.field(field.name).type}, but "
                    f"the topology declares {field.type}",
                    "Use another name, or declare a greater version of the state.",
                )

    def options(self, primed: LedgerState) -> Options:
        """Return the options in force."""
        return options_of(primed)

    def due(self, primed: LedgerState, now: int) -> Floors | None:
        """Return no floors if something is due or an event is not scheduled yet, else None."""
        due, topology = due_times(primed.fence.rows), self.topology
        until = now
        if topology.in_step:
            fed = self.until(now)
            until = step_time(primed, now) if fed is None else fed
        states = (name for name, state in topology.states.items() if state.falls_due and name in due)
        if any(due.get(name, now) <= now for name in topology.events) or any(due[name] <= until for name in states):
            return Floors.empty()
        return None

    def until(self, now: int) -> int | None:
        """Return the time that all depots have passed in step, if a topology feeds one of them.

        A later attempt, when that topology has come further, would find another time.
        """
        topology = self.topology
        is_fed = topology.in_step and any(depot.fed_by is not None for depot in topology.depots.values())
        if not is_fed or not any(state.falls_due for state in topology.states.values()):
            return None
        own = RecordedFeeder(topology, self.sources, self.ledger, feeders_of(topology, self.ledger), by_state=False)
        position = own.position(now)
        # guard: timers-wait-for-feeder
        return min(now, position.clock - (position.since is not None))

    def process(self, plan: MicrobatchPlan) -> MicrobatchResult:
        """Return the rows that the functions change, the events that fired, and what the format rejected."""
        with _executors_blamed(plan):
            work = FunctionCalls(self.topology, self.sources, plan)
            work.run()
            work.append()
            due, schema = work.due, plan.primed.progress.schema
            migrated = self._migrate_states(plan.primed) if plan.kind == "rules" else {}
            here = due.rows(schema, work.states, migrated)
            here = pa.concat_tables([MicrobatchResult.nothing(schema).rows, here])
            history = {"options_used": recorded_options(plan.primed), "appended": work.recorded_appends()}
            for name, note in (("migrated", migrated), ("overtook", plan.overtook)):
                if note:
                    history[name] = pa.array([list(note)], pa.list_(pa.string()))
            return work.result(here, history | due.recorded, migrated)

    def _migrate_states(self, primed: LedgerState) -> dict[str, pa.Table]:
        """Return the rows to write of each state whose columns are not the recorded ones.

        Raises IncompatibleTableError, TopologyError.
        """
        states = self.topology.states
        recorded = recorded_states(states, primed.rules, primed.progress.schema)
        new = {name: state for name, state in states.items() if name not in recorded}
        return migrate_rows(states, recorded | removed_states(new, primed, self.ledger), primed)


@contextmanager
def _executors_blamed(plan: MicrobatchPlan) -> Iterator[None]:
    """Raise TopologyError for errors of functions on executors, wherever Spark noticed them."""
    try:
        yield
    except Exception as error:
        if plan.ledger.engine.session_at_work is None:
            raise
        from windrow.engine.spark.errors import of_functions

        blamed = of_functions(error, BUGS)
        if blamed is None:
            raise
        raise blamed from error
