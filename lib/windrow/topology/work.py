"""Call a topology's functions in one attempt at a microbatch, and gather what they change."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import to_numpy
from windrow.errors import TopologyError
from windrow.ledger import Ledger
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.model import messages, tables
from windrow.model.clock import UNKNOWN
from windrow.model.floors import Floors, FloorsByVersion, Ints
from windrow.model.messages import LATEST
from windrow.rows.arrow import ArrowRows
from windrow.rows.rows import Rows
from windrow.runtime.algorithm import DepotPlan, MicrobatchPlan
from windrow.source import Source
from windrow.topology.arrow_state import ArrowState
from windrow.topology.due import Due
from windrow.topology.microbatch import Microbatch, SparkMicrobatch
from windrow.topology.order import merge_in_order, with_processing_times
from windrow.topology.state import State, Timer
from windrow.topology.steps import run_steps
from windrow.topology.topology import Function, Topology
from windrow.version import VERSION

if TYPE_CHECKING:
    from windrow.topology.frame_state import FrameState

# Program errors that would recur in each attempt. Those of the system, Spark and other libraries may be transient.
BUGS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)


@dataclass(slots=True)
class FunctionCalls:
    """One attempt at a microbatch: the rows and states that its functions ask for, and what they change.

    In step, they are called several times. `span` is then the times of the messages that they see (microseconds), and
    `now` the current time for keys with a time to live.
    """

    topology: Topology
    sources: Mapping[str, Source]
    plan: MicrobatchPlan
    due: Due = field(init=False)
    states: dict[str, ArrowState | FrameState] = field(default_factory=dict)
    appended: list[tuple[str, Any]] = field(default_factory=list)
    span: tuple[int, int] = (UNKNOWN, LATEST)
    step: int = 0
    now: int = 0
    _times_by_depot: dict[str, Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is due."""
        self.due = Due(self.topology, self.plan, self.arrow_state)

    def run(self) -> None:
        """Call the functions: in step once for each time at which something is due, else once."""
        topology, due = self.topology, self.due
        stepped = topology.in_step and any(state.falls_due for state in topology.states.values())
        forms = {function.form for function in topology.functions}
        # guard: steps-of-tables
        if stepped and forms == {"arrow"} and not any(map(_is_on_executors, self.plan.depots.values())):
            arrived = [self._arrival_times(name) for name in topology.depots]
            run_steps(self.next_rows, due, np.sort(np.concatenate(arrived)), topology.step_length)
        else:
            due.fire(UNKNOWN, due.until)
            self.next_rows(UNKNOWN, LATEST)

    def next_rows(self, after: int, through: int) -> None:
        """Call the functions with what is due and the messages after `after` and up to `through` (microseconds)."""
        self.span, self.now = (after, through), min(through, self.due.until)
        if self.plan.depots or self.due.fired:
            for function in self.topology.functions:
                self.call(function)
            self.step += 1

    def _arrival_times(self, depot: str) -> Ints:
        """Return the processing times of a depot's messages (microseconds); one without a time comes at the end."""
        if depot not in self._times_by_depot:
            rows, times = self._all_rows(depot), np.empty(0, np.int64)
            if self._holds_messages(depot):
                times = to_numpy(
                    with_processing_times(rows, *self._times_of(depot))["processing_time"], null=self.due.until
                )
            self._times_by_depot[depot] = times if times.size else np.full(rows.num_rows, self.due.until)
        return self._times_by_depot[depot]

    def call(self, function: Function) -> None:
        """Call a function with Arrow tables, or with DataFrames. Raises TopologyError."""
        plan, frames = self.plan, function.form == "spark"
        if frames and plan.ledger.engine.session_at_work is None:
            raise TopologyError(
                f"the function {function.name} needs Spark DataFrames, which the embedded engine does not have",
                "Use --engine spark, or let the function work with Arrow tables (microbatch: Microbatch).",
            )
        made: type[Any] = SparkMicrobatch if frames else Microbatch
        microbatch = made(
            plan.id,
            self.step,
            plan.attempt,
            datetime.fromtimestamp(plan.now / 1_000_000, UTC),
            self.due.fired,
            tuple(str(name) for name in plan.depots),
            self._frame if frames else self._table,
            self._frame_state if frames else self.arrow_state,
            self._append,
            self._frames_in_order if frames else self._in_order,
            self._due_frame if frames else self._due,
        )
        try:
            function.call(microbatch)
        # guard: bugs-not-retried
        except BUGS as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise TopologyError(
                f"the function {function.name} failed: {type(error).__name__}: {error}, in line {place.lineno} of "
                f"{place.filename}",
                "Nothing was committed. Fix the function and run again.",
            ) from error

    def append(self) -> None:
        """Append to the outputs, to each in one commit that a later attempt at the same plan finds.

        Raises TableUnwritableError if the output has an append of a later plan, so that this one's may be missing.
        """
        engine, topology = self.plan.ledger.engine, self.topology
        for output, rows in self._by_output().items():
            transaction = application(self.plan.ledger, output, self.sources), self.plan.transaction
            note = {"windrow": VERSION, "output": transaction[0], "number": self.plan.id, "transaction": transaction[1]}
            engine.append(engine.place(topology.outputs[output]), rows, transaction, json.dumps(note))

    def _by_output(self) -> dict[str, list[Any]]:
        """Return the rows to append to each output; tables without rows are left out."""
        rows_by_output: dict[str, list[Any]] = {}
        for output, rows in self.appended:
            if not isinstance(rows, pa.Table) or rows.num_rows:
                rows_by_output.setdefault(output, []).append(rows)
        return rows_by_output

    def recorded_appends(self) -> pa.Array:
        """Return how many rows are appended to each output, NULL where Spark has them, for the history."""
        counted = []
        for output, rows in self._by_output().items():
            here = [row.num_rows for row in rows if isinstance(row, pa.Table)]
            counted.append({"output": output, "rows": sum(here) if len(here) == len(rows) else None})
        return pa.array([counted or None], tables.APPENDED)

    def result(
        self, here: pa.Table, history: Mapping[str, object], migrated: Mapping[str, pa.Table]
    ) -> MicrobatchResult:
        """Return the rows to commit: those of the states, those that are `here`, and other rows from formats."""
        few = {name: state if isinstance(state, ArrowState) else state.few for name, state in self.states.items()}
        changed = {**migrated}
        for name, state in few.items():
            if (rows := state.changes()) is not None:
                changed[name] = self._declaration_of(name).as_stored(rows)
        extra, spread = self._extra(), any(_is_on_executors(depot) for depot in self.plan.depots.values())
        schema, states = self.plan.primed.progress.schema, self.states.values()
        changes = [state.changes(schema) for state in states if not isinstance(state, ArrowState)]
        frames = [rows for rows in changes if rows is not None]
        if frames or any(rows.processed_on == "executors" for rows in extra):
            from windrow.topology.frame_state import rows_to_commit

            return rows_to_commit(self.plan, frames, [*extra, *map(ArrowRows, [here, *changed.values()])], history)
        rows, processed_on = (
            pa.concat_tables([here, *(rows.table() for rows in extra)]),
            "executors" if spread else "driver",
        )
        counts = MicrobatchCounts.with_states(rows, changed.values())
        return MicrobatchResult(rows, counts, processed_on=processed_on, history=history, states=changed)

    def _extra(self) -> list[Rows]:
        """Return what formats rejected or left unfinished, named after its depot."""
        schema = self.plan.primed.progress.schema
        return [
            rows.map(partial(of_depot, depot=name), schema.append(pa.field("known", pa.bool_())))
            for name, depot in self.plan.depots.items()
            if depot.arrived is not None
            for rows in depot.arrived.extra_rows(self.plan.microbatch, schema)
        ]

    def _table(self, depot: str) -> pa.Table:
        """Return the new rows of a depot, in a step those of its times."""
        rows, (after, through) = self._all_rows(depot), self.span
        if self.span == (UNKNOWN, LATEST) or not rows.num_rows:
            return rows
        at = self._arrival_times(depot)
        return rows.filter(pa.array((at > after) & (at <= through)))

    def _all_rows(self, depot: str) -> pa.Table:
        """Return the new rows of a depot."""
        arrived = self._arrivals_of(depot)
        return self.sources[depot].no_rows() if arrived is None else arrived.rows.table()

    def _frame(self, depot: str) -> Any:
        """Return the new rows of a depot as a DataFrame."""
        from windrow.topology.frame_state import frame_of_depot

        return frame_of_depot(self.plan, self._arrivals_of(depot), self.sources[depot])

    def _in_order(self) -> pa.Table:
        """Return the messages of all depots in order."""
        arrived = (with_processing_times(self._table(name), *times) for name, times in self._times().items())
        return merge_in_order([*arrived, *self.due.in_order()])

    def _frames_in_order(self) -> Any:
        """Return the messages of all depots in order, as a DataFrame."""
        from windrow.topology.frame_state import frames_in_order

        frames = ((self._frame(name), times) for name, times in self._times().items())
        return frames_in_order(frames, list(self.due.in_order()))

    def _times(self) -> dict[str, tuple[FloorsByVersion, int, str, int]]:
        """Return by depot what determines the processing times and order of its messages."""
        times = {}
        for name in self.topology.depots:
            if not self._holds_messages(name):
                raise TopologyError(
                    f"in_order needs messages, which the depot {name} does not hold",
                    "Map its columns: Depot(columns=...).",
                )
            times[name] = self._times_of(name)
        return times

    def _holds_messages(self, depot: str) -> bool:
        return set(messages.COLUMNS) <= set(self.sources[depot].no_rows().column_names)

    def _times_of(self, depot: str) -> tuple[FloorsByVersion, int, str, int]:
        plan = self.plan.depots.get(depot)
        floors = FloorsByVersion.none(Floors.empty()) if plan is None else plan.floors
        return floors, self.plan.latest, depot, self.topology.depots[depot].priority

    def _arrivals_of(self, depot: str) -> Any:
        if depot not in self.topology.depots:
            known = ", ".join(self.topology.depots)
            raise TopologyError(f"there is no depot {depot!r}", f"The depots are {known}.")
        slice_ = self.plan.depots.get(depot)
        return None if slice_ is None else slice_.arrived

    def _due(self, name: str) -> pa.Table:
        """Return the rows of a timer that fire."""
        timer = self._declaration_of(name)
        if not isinstance(timer, Timer):
            raise TopologyError(f"{name!r} is a state, not a timer", "Declare it with topology.timer(...).")
        return self.due.rows_of(timer)

    def _due_frame(self, name: str) -> Any:
        """Return the rows of a timer that fire, as a DataFrame."""
        from windrow.topology.frame_state import of_session

        return of_session(self.plan, self._due(name))

    def _append(self, output: str, rows: Any) -> None:
        if output not in self.topology.outputs:
            known = ", ".join(self.topology.outputs) or "none"
            raise TopologyError(
                f"there is no output {output!r}", f"Declare it with outputs=...; the outputs are {known}."
            )
        if not hasattr(rows, "schema"):
            raise TopologyError(f"append to {output} got {type(rows).__name__}", "Pass a pa.Table or a DataFrame.")
        self.appended.append((output, rows))

    def arrow_state(self, name: str) -> ArrowState:
        """Return a state for functions on Arrow tables. Raises TopologyError."""
        declared, state = self._declaration_of(name), self.states.get(name)
        if not isinstance(state, ArrowState):
            opened = self.plan.primed.fence.open
            new = ArrowState(
                declared,
                lambda id_filter: declared.rename_columns(opened.of_state(name, declared.stored, id_filter)),
                lambda: self.now,
            )
            if state is not None:
                new.load_changes(state.collect())
            self.states[name] = state = new
        return state

    def _frame_state(self, name: str) -> FrameState:
        from windrow.topology.frame_state import FrameState

        declared, state = self._declaration_of(name), self.states.get(name)
        if not isinstance(state, FrameState):
            new = FrameState(declared, self.plan, self.now)
            if state is not None:
                new.load_changes(state.changed)
            self.states[name] = state = new
        return state

    def _declaration_of(self, name: str) -> State:
        states = self.topology.states
        if name not in states:
            raise TopologyError(f"there is no state {name!r}", f"The states are {', '.join(states)}.")
        return states[name]


def application(ledger: Ledger, output: str, depots: Iterable[str]) -> str:
    """Return the transaction id of the appends of a table of states to an output.

    Drivers that read other depots have other plans, under numbers of their own.
    """
    table = ledger.table()
    return f"windrow:{table and table.id}:{output}:{sha256(json.dumps(sorted(depots)).encode()).hexdigest()[:8]}"


def _is_on_executors(depot: DepotPlan) -> bool:
    return depot.arrived is not None and depot.arrived.processed_on == "executors"


def of_depot(rows: pa.Table, depot: str | None) -> pa.Table:
    """Return ledger rows from a depot, named after it: several depots may have the same sources."""
    for name, column in (
        ("id", pc.binary_join_element_wise(tables.identifier("of", pa.array([depot]))[0], rows["id"], "/")),
        ("depot", pa.repeat(pa.scalar(depot, pa.string()), rows.num_rows)),
    ):
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows
