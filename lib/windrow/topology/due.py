"""What is due in one attempt at a microbatch: the events and timers that fire, and the keys that are forgotten.

Timers and keys are due when the clock of the topology has reached their times. This is the wall clock at the first
attempt, or in a topology in step the time up to which it has read its depots. The history records that time, so that a
replay fires the same timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import clock
from windrow.model.messages import times
from windrow.model.tables import DELETED
from windrow.runtime.algorithm import MicrobatchPlan
from windrow.runtime.ledger_state import LedgerState
from windrow.runtime.version_part import last_time
from windrow.topology.arrow_state import ArrowState
from windrow.topology.event import due_times, event_rows
from windrow.topology.order import event_rows as rows_in_order
from windrow.topology.state import DUE, State, Timer
from windrow.topology.topology import Topology

if TYPE_CHECKING:
    from windrow.topology.frame_state import FrameState

NO_KEYS = pa.table({})


class Due:
    """What is due in one attempt. `until` is the time (microseconds) that timers and keys are compared with.

    `open_state` opens a state, as the functions have left it so far.
    """

    def __init__(self, topology: Topology, plan: MicrobatchPlan, open_state: Callable[[str], ArrowState]) -> None:
        """Choose the events that fire, and read which timers and keys are due."""
        self._topology, self._plan, self._open_state = topology, plan, open_state
        self.known = due_times(plan.primed.fence.rows)
        self.until = due_until(topology, plan)
        # A commit of changed settings has no plan by which another attempt could find what a function appended.
        # guard: rules-fire-nothing
        self._events = [
            event for event in topology.events.values() if plan.kind != "rules" or event.name not in self.known
        ]
        self._fired = {
            event.name: self.known.get(event.name, plan.now)
            for event in self._events
            if (
                event.name in self.known and event.fires(self.known[event.name], plan.now)
                if plan.events is None
                else event.name in plan.events
            )
        }
        self._timers: dict[str, pa.Table] = {}
        self._every: dict[str, None] = dict.fromkeys(self._fired)
        self._next: dict[str, int | None] = {}
        self._stored = {state.name: self._read(state) for state in topology.states.values() if self._may_fire(state)}

    def _may_fire(self, state: State) -> bool:
        """Tell whether rows of a state fire, or are forgotten, in this microbatch if they are due."""
        events = self._plan.events
        repeated = events is None or not isinstance(state, Timer) or state.name in events
        return state.falls_due and self._plan.kind != "rules" and repeated

    def _read(self, state: State) -> pa.Table:
        """Return the rows of a state that are due, as they were before the microbatch."""
        at = self.known.get(state.name)
        if at is None or at > self.until:
            return pa.schema([pa.field("id", pa.string()), *state.columns]).empty_table()
        due = self._plan.primed.fence.open.due(state.name, state.stored, self.until)
        # guard: next-timer-known
        self._next[state.name] = due.next
        return state.rename_columns(due.rows)

    @property
    def fired(self) -> tuple[str, ...]:
        """Return the names of the events and timers that fire now."""
        return (*self._fired, *self._timers)

    @property
    def recorded(self) -> dict[str, pa.Array]:
        """Return what the history records: all that fired, and `until` if it matters."""
        some = self._topology.in_step or any(state.falls_due for state in self._topology.states.values())
        fired = {"events_fired": pa.array([list(self._every)], pa.list_(pa.string()))} if self._every else {}
        return fired | {"due_until": times(np.array([self.until]), np.array([some]))}

    def times(self, after: int) -> list[int]:
        """Return the times after `after` at which something is due, in order (microseconds)."""
        set_ = [self._pending(name)[DUE.name].cast(pa.int64()) for name in self._stored]
        result = pa.chunked_array([chunk for column in set_ for chunk in column.chunks], pa.int64()).unique()
        return sorted(at for at in result.to_pylist() if after < at <= self.until)

    def _pending(self, name: str) -> pa.Table:
        return self._open_state(name).as_changed(self._stored[name])

    def fire(self, after: int, through: int) -> None:
        """Delete the rows due after `after` and up to `through` from their states; those of timers fire."""
        self._fired, self._timers = self._fired if after == clock.UNKNOWN else {}, {}
        for name in self._stored:
            declared, rows = self._topology.states[name], self._pending(name)
            at = rows[DUE.name].cast(pa.int64())
            rows = rows.filter(pc.and_(pc.greater(at, after), pc.less_equal(at, through)))
            if not rows.num_rows:
                continue
            # guard: fires-once
            self._open_state(name).delete(rows if declared.keys.names else None)
            if isinstance(declared, Timer) and (rows := declared.in_time(rows, self.until)).num_rows:
                self._timers[name] = rows.select(declared.columns.names)
        self._every |= dict.fromkeys(self._timers)

    def rows_of(self, timer: Timer) -> pa.Table:
        """Return the rows of a timer that fire now, in the order of their times."""
        return self._timers.get(timer.name, timer.columns.empty_table())

    def in_order(self) -> Iterator[pa.Table]:
        """Yield the events and timers that fire now, as rows beside those of messages."""
        for name, at in self._fired.items():
            yield rows_in_order(name, times(np.array([at])), NO_KEYS)
        for name, rows in self._timers.items():
            keys = rows.select(self._topology.states[name].keys.names)
            yield rows_in_order(name, rows[DUE.name].combine_chunks(), keys)

    def rows(
        self,
        schema: pa.Schema,
        states: Mapping[str, ArrowState | FrameState],
        migrated: Mapping[str, pa.Table],
    ) -> pa.Table:
        """Return the ledger rows that say when something is due next, after the changes of the functions.

        The rows of `migrated` states count as well.
        """
        now = self._plan.now
        following: dict[str, int | None] = {
            event.name: event.next(self.known.get(event.name, now), now) for event in self._events
        }
        for declared in self._topology.states.values():
            if declared.falls_due:
                name = declared.name
                # guard: earliest-timer-counts
                candidates = [self._next.get(name, self.known.get(name)), self._earliest(declared, states.get(name))]
                candidates += [earliest_due(migrated[name])] if name in migrated else []
                following[name] = min((at for at in candidates if at is not None), default=None)
        return event_rows(schema, following, self.known)

    def _earliest(self, declared: State, changed: ArrowState | FrameState | None) -> int | None:
        """Return the earliest time that functions have set in a state, or an earlier one if executors have the rows."""
        if changed is None:
            return None
        if not isinstance(changed, ArrowState):
            if changed.is_on_executors:
                return self.until + (declared.ttl or 0)
            changed = changed.few
        return pc.min(changed.changed[DUE.name].cast(pa.int64())).as_py()  # NULL in rows that were deleted


def earliest_due(rows: pa.Table) -> int | None:
    """Return when the first row of a state is due (microseconds)."""
    gone = pc.fill_null(rows[DELETED], False)
    return cast("int | None", pc.min(rows.filter(pc.invert(gone))[DUE.name].cast(pa.int64())).as_py())


def due_until(topology: Topology, plan: MicrobatchPlan) -> int:
    """Return the time up to which timers and keys are due in a microbatch (microseconds)."""
    # guard: replayed-up-to-the-same-time
    if plan.until is not None:
        return plan.until
    if not topology.in_step:
        return plan.now
    read = [clock.UNKNOWN]
    read += [last_time(depot.summary, depot.floors) for depot in plan.depots.values()]
    return max(read) if max(read) > clock.UNKNOWN else step_time(plan.primed, plan.now)


def step_time(primed: LedgerState, now: int) -> int:
    """Return the time that all depots have passed at wall time `now`: the least idle clock, `now` if there is none."""
    idle = [depot.sources.idle(now).floor for depot in primed.depots.values()]
    return int(np.min(np.concatenate([np.empty(0, np.int64), *idle]), initial=now))
