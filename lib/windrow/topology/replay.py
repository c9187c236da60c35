"""Replay a topology: the recorded microbatches again, into a new table, and the states of both compared.

Each microbatch of the history is run with its number, its time, its events and its rows of each depot. So functions
that depend on nothing else compute the same states. Microbatches that a rollback took back are left out. Outputs go
into the directory of the new table. Source of the idea: the replay of Triceps.

A topology may have changed since. With `fresh` ticks its events fire whenever they are due, in microbatches between the
recorded ones; with `merged` ticks recorded events keep their times, and only new ones fire whenever they are due. The
new table records what fired, so a replay of it is exact. A live run can continue from there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import conform
from windrow.delta.database import database
from windrow.delta.scratch import scratch_directory
from windrow.errors import DepotChangedError, EngineUnavailableError, TopologyError
from windrow.ledger import Ledger
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.ledger.versions import latest
from windrow.model.clock import Clock
from windrow.model.timestamps import microseconds_of
from windrow.reading.digests import Digests
from windrow.reading.values import records
from windrow.replaying.digest_tables import REPLAYED, DigestTables
from windrow.replaying.player import local_ledger, require_new
from windrow.replaying.report import Outcome, Ticks
from windrow.runtime.control import Change
from windrow.runtime.ledger_state import LedgerState, prime
from windrow.runtime.loop import Runner
from windrow.runtime.saved_plan import SavedPlan
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.topology.due import earliest_due
from windrow.topology.event import due_times, event_rows
from windrow.topology.migration import recorded_states, replace_rows
from windrow.topology.reading import (
    Row,
    counting,
    first_read,
    history_of,
    pieces_of,
    states_at,
    versions_of,
)
from windrow.topology.running import runner_of, tables_of
from windrow.topology.state import State
from windrow.topology.state_parts import parts_of
from windrow.topology.states_table import states_of
from windrow.topology.status import require_run
from windrow.topology.topology import Topology

AGAIN = "Check it with `windrow verify`, or run these functions over the same depots into new tables."
SHOWN = 3
Example = tuple[str, Row | None, Row | None]  # an id, its recorded row, its replayed one


@dataclass(frozen=True, slots=True)
class StateDifference:
    """How many keys of a state have different rows in the two tables, or one in only one; `examples` has some."""

    state: str
    key_count: int
    examples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TopologyReplay(Outcome):
    """What a replay of a topology did: how many microbatches it ran, how often events fired, and which states differ.

    `digests` are those of the replayed states. `live_microbatch_count` more followed on the wall clock.
    """

    topology: str
    microbatch_count: int
    events_fired: Mapping[str, int]
    row_counts: Mapping[str, int]
    digests: Mapping[str, str]
    differences: list[StateDifference]
    live_microbatch_count: int


class RecordedClock(WallClock):
    """A clock that stands at the time of the replayed microbatch, but measures how long phases take."""

    at = 0

    def now(self) -> int:
        """Return the recorded time."""
        return self.at


def replay_topology(
    topology: Topology,
    settings: Settings,
    into: str | None = None,
    ticks: Ticks = "reuse",
    live: Clock | None = None,
    spark: Any = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> TopologyReplay:
    """Run the recorded microbatches again and compare the states; `into` is a directory for the new table, which stays.

    With a `live` clock a run on the new table follows: it reads what arrived since, and overdue events fire as
    declared. `progress` is called after each microbatch, with how many were run and how many there are. Raises
    NotFoundError if the topology never ran, IncompatibleTableError if `into` has a table of states,
    DepotUnreadableError and DepotChangedError if a depot no longer has what was read.
    """
    _, ledger = tables_of(topology, settings, spark)
    require_run(topology, ledger)
    reads_here = ledger.path is not None
    if not reads_here:
        _require_tables(topology, ledger)
    rows, recorded = history_of(ledger), prime(ledger, list(topology.depots))
    _require_migrated(topology, recorded)
    anew = _anew(topology, rows, ticks)
    planned = _plan_microbatches(topology, rows, ticks, anew)
    with ExitStack() as left:
        directory = into or str(left.enter_context(scratch_directory()))
        again = _place_topology(topology, directory, _starts(recorded, first_read(ledger)))
        clock = RecordedClock()
        clock.at = planned[0].now if planned else 0
        sources, new = tables_of(again, settings, spark)
        new = new if reads_here else local_ledger(new)
        require_new(new)
        runner = runner_of(again, sources, new, clock)
        for done, plan in enumerate(planned, 1):
            if plan.migrated:
                clock.at = plan.now
                runner.commit_change("rules", partial(_take_over, again, ledger, plan))
                continue
            _run(runner, clock, chain(_plan_between(again, new, anew, clock.at, plan.now), [plan]))
            progress(done, len(planned))
        _run(
            runner,
            clock,
            _plan_between(again, new, anew, clock.at, max((plan.now for plan in _recorded_plans(rows)), default=0)),
        )
        fired = Counter(name for row in history_of(new) for name in row["events_fired"] or ())
        row_counts, digests, differences = dict[str, int](), dict[str, str](), list[StateDifference]()
        for name, state in topology.states.items():
            both = [pieces_of(states_of(table), state) for table in (ledger, new)]
            row_counts[name], digests[name], difference = _compare_state(state, both, settings.max_memory_bytes)
            differences += [] if difference is None else [difference]
        went_on = 0 if live is None else len(runner_of(again, sources, new, live).once().microbatches)
    counted = len(planned), dict(fired), row_counts, digests, differences, went_on
    return TopologyReplay(into, ticks, not differences, topology.name, *counted)


def _require_tables(topology: Topology, ledger: Ledger) -> None:
    """Raise EngineUnavailableError for functions on DataFrames: Spark has the depots, this disk the new states."""
    if frames := [function.name for function in topology.functions if function.form == "spark"]:
        raise EngineUnavailableError(
            f"only Spark reaches the files of {ledger.place}, and the function {frames[0]} works with DataFrames: it "
            "cannot be replayed into new states on this disk",
            AGAIN,
        )


def _run(runner: Runner, clock: RecordedClock, plans: Iterable[SavedPlan]) -> None:
    """Run microbatches, each at its time. Raises DepotChangedError if one cannot be repeated."""
    for plan in plans:
        clock.at = plan.now
        if not runner.run_saved_plan(plan):
            raise DepotChangedError(
                f"microbatch {plan.microbatch} cannot be repeated: the depots no longer have what it read",
                "A replay needs the whole history: raise the setting retention.",
            )


def _anew(topology: Topology, rows: list[Row], ticks: Ticks) -> list[str]:
    """Return the events and timers that fire whenever they are due, and states whose keys are forgotten then."""
    if ticks == "reuse":
        return []
    rules = [json.loads(row["rules"] or "{}") for row in rows]
    known = {name for rule in rules for name in (*rule.get("events", ()), *rule.get("timers", ()))}
    declared = (*topology.events, *(name for name, state in topology.states.items() if state.falls_due))
    return [name for name in declared if ticks == "fresh" or name not in known]


def _plan_microbatches(topology: Topology, rows: list[Row], ticks: Ticks, anew: Collection[str]) -> list[SavedPlan]:
    """Return the microbatches to run, with the events and timers that fire in each."""
    declared = [*topology.events, *topology.states]
    recorded = [
        replace(plan, events=[name for name in declared if name in (plan.events or ())])
        for plan in _recorded_plans(rows)
    ]
    if ticks == "reuse" or not recorded:
        return recorded
    schedule = {name: recorded[0].now + event.every for name, event in topology.events.items() if name in anew}
    plans: list[SavedPlan] = []
    for plan in recorded:
        own = [name for name in plan.events or () if name not in anew]
        plans += _due(topology, schedule, plan.now)
        if plan.migrated:
            plans.append(plan)
        elif plan.last_versions or own or topology.in_step or plan is recorded[0]:  # the first one schedules events
            timers = [name for name in anew if name in topology.states]
            plans.append(replace(plan, microbatch=0, events=own + timers))
    return plans


def _plan_between(
    topology: Topology, ledger: Ledger, anew: Collection[str], after: int, until: int
) -> Iterator[SavedPlan]:
    """Yield a microbatch for each time up to `until` at which timers are due, or keys are forgotten, by the wall clock.

    With `in_step`, the recorded microbatches fire them.
    """
    states = [name for name in anew if name in topology.states]
    while states and not topology.in_step and ledger.table() is not None:
        due = due_times(prime(ledger, list(topology.depots)).fence.rows)
        now = max(min((due[name] for name in states if name in due), default=until + 1), after + 1)
        if now > until:
            return
        yield SavedPlan(0, now, {}, states, until=now)
        after = now


def _due(topology: Topology, schedule: dict[str, int], until: int) -> Iterator[SavedPlan]:
    """Yield a microbatch for each time up to `until` at which events of the schedule are due, and move the schedule."""
    while schedule and (now := min(schedule.values())) <= until:
        fired = [name for name, due in schedule.items() if due == now]
        yield SavedPlan(0, now, {}, fired)
        for name in fired:
            schedule[name] = now + topology.events[name].every


def _place_topology(topology: Topology, directory: str, starts: Mapping[str, str]) -> Topology:
    """Return the topology with another table of states, and depots that begin where they were first read."""
    depots = {
        name: replace(depot, start_from=starts.get(name, depot.start_from)) for name, depot in topology.depots.items()
    }
    outputs = {name: str(Path(directory) / "outputs" / name) for name in topology.outputs}
    return topology.with_locations(depots, str(Path(directory) / "states"), outputs)


def _starts(primed: LedgerState, first: Mapping[str, int]) -> dict[str, str]:
    """Return where each depot that the recorded topology knew begins: at its position if nothing was read."""
    return {
        str(name): f"version:{first.get(str(name), depot.reached.depot_version + 1)}"
        for name, depot in primed.depots.items()
        if depot.reached.depot_id
    }


def _recorded_plans(rows: list[Row]) -> list[SavedPlan]:
    """Return the microbatches that count, in order, with the depots from which they took rows.

    In step, a microbatch may find no row in its part of one depot's version, beside that of another depot.
    """
    kept, reached = dict[int, SavedPlan](), dict[str, int]()
    counted = counting(rows)
    taking = {row["microbatch"] for row in counted if row["versions"]}
    for row in counted:
        depot, versions = row["depot"], [part["version"] for part in row["versions"] or ()]
        read = max([row["depot_version"] or 0, *versions])
        # guard: empty-part-is-not-repeated
        takes = bool(versions) or row["microbatch"] not in taking or read > reached.get(depot, read)
        last_versions = {depot: read} if takes and depot is not None else {}
        reached[depot] = max(read, reached.get(depot, read))
        now = microseconds_of(row["planned_at"])
        until = None if row["due_until"] is None else microseconds_of(row["due_until"])
        known = kept.get(row["microbatch"], SavedPlan(row["planned_microbatch"], now, {}, []))
        fired = [*(known.events or ()), *(row["events_fired"] or ())]
        skips = row["kind"] == "skip"
        kept[row["microbatch"]] = replace(
            known,
            last_versions={**known.last_versions, **last_versions},
            events=fired,
            skips=skips,
            migrated=row["migrated"],
            overtook=row["overtook"] or known.overtook,
            until=known.until if until is None else until,
        )
    return list(kept.values())


def _require_migrated(topology: Topology, recorded: LedgerState) -> None:
    """Raise TopologyError if a state is declared with other columns than the table has."""
    states = recorded_states(topology.states, recorded.rules, recorded.progress.schema)
    for name, state in topology.states.items():
        if states.get(name, state).stored != state.stored:
            raise TopologyError(
                f"the columns of the state {name} have changed, and nothing has run since", "Run the topology first."
            )


def _take_over(topology: Topology, ledger: Ledger, planned: SavedPlan, primed: LedgerState) -> Change:
    """Return the rows that states had after a migration: the functions from before no longer exist to repeat it.

    A state that a later migration changed is left out.
    """
    then, schema = states_of(ledger, planned.microbatch), primed.progress.schema
    recorded, states = states_at(then, topology.states), {}
    for name in planned.migrated or ():
        state = topology.states.get(name)
        if state is not None and recorded[name].stored == state.stored:
            rows = latest(versions_of(then, state))
            now = primed.fence.open.of_state(name, state.stored)
            states[name] = replace_rows(_in_state(now, name), _in_state(conform(rows, now.schema), name))
    known = due_times(primed.fence.rows)
    due = {name: earliest_due(rows) for name, rows in states.items() if topology.states[name].falls_due}
    here = pa.concat_tables([MicrobatchResult.nothing(schema).rows, event_rows(schema, due, known)])
    counts = MicrobatchCounts.with_states(here, states.values())
    history = {"migrated": pa.array([list(states)], pa.list_(pa.string()))}
    return MicrobatchResult(here, counts, history=history, states=states), {}


def _in_state(rows: pa.Table, state: str) -> pa.Table:
    return rows.append_column("state", pa.repeat(pa.scalar(state, pa.string()), rows.num_rows))


def digests_of(state: State, rows: pa.Table) -> Digests:
    """Return the digests of rows of a state."""
    return Digests.under(state.ids(rows), rows.select(state.columns.names))


def _compare_state(
    state: State, both: Sequence[Iterable[pa.Table]], max_memory_bytes: int
) -> tuple[int, str, StateDifference | None]:
    """Return the number of recorded rows of a state, the digest of the replayed ones, and how they differ.

    `both` are the versions of the rows in the recorded and in the replayed table.
    """
    rows, keys, examples = 0, 0, list[Example]()
    with database(max_memory_bytes) as connection:
        digests = DigestTables(connection)
        for part in parts_of(state, both, max_memory_bytes):
            own = [digests_of(state, row) for row in part.rows]
            digests.add(REPLAYED, own[1].rows)
            rows += part.rows[0].num_rows
            ids = _differing(*own)
            keys += len(ids)
            shown = ids[:SHOWN]
            sides = (_under(state, row, shown) for row in part.rows)
            examples = sorted([*examples, *zip(shown.to_pylist(), *sides, strict=True)], key=itemgetter(0))[:SHOWN]
        total = digests.total(REPLAYED)
    if not keys:
        return rows, total, None
    named = [{"recorded": recorded, "replayed": replayed} for _, recorded, replayed in examples]
    return rows, total, StateDifference(state.name, keys, named)


def _differing(recorded: Digests, replayed: Digests) -> pa.Array:
    """Return the ids, in order, whose rows have different digests, or that only one side has."""
    ids = [recorded.differing(replayed)["id"], replayed.differing(recorded)["id"]]
    distinct_ids = pa.chunked_array([chunk for differing in ids for chunk in differing.chunks], pa.string()).unique()
    return distinct_ids.take(pc.array_sort_indices(distinct_ids))


def _under(state: State, rows: pa.Table, ids: pa.Array) -> list[Row | None]:
    """Return the row under each id, None if there is none."""
    at = pc.index_in(ids, state.ids(rows))
    columns = records(rows.select(state.columns.names).take(at))
    return [row if there else None for row, there in zip(columns, at.is_valid().to_pylist(), strict=True)]
