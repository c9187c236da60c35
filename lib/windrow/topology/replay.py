"""Replay a topology: the recorded microbatches again, into a new table, and the states of both compared.

Each microbatch of the history is run with its number, its time, its events and its rows of each depot. So functions
that depend on nothing else give the same states. Microbatches that a rollback took back are left out. Outputs go into
the directory of the new table. Source of the idea: the replay of Triceps.

A topology may have changed since. With `fresh` ticks its events fire whenever they are due, in microbatches between the
recorded ones; with `merged` ticks the recorded ones keep their times, and only new ones fire whenever they are due. The
new table records what fired, so a replay of it is exact. A live run can go on from there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import DepotChanged, EngineUnavailable
from windrow.model.clock import Clock
from windrow.model.timestamps import microseconds_of
from windrow.reading.digests import Digests
from windrow.reading.values import records
from windrow.replaying.player import require_new
from windrow.replaying.report import Outcome, Ticks
from windrow.runtime.ledger_state import LedgerState, prime
from windrow.runtime.saved_plan import SavedPlan
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.topology.reading import Row, counting, first_read, history_of
from windrow.topology.running import runner_of, tables_of
from windrow.topology.state import State
from windrow.topology.status import require_run
from windrow.topology.topology import Topology

AGAIN = "`windrow verify` checks it; or run a topology of these functions over the same depots into new tables."


@dataclass(frozen=True, slots=True)
class Difference:
    """How many keys of a state have another row, or none, in one of the two tables; `examples` are some of them."""

    state: str
    keys: int
    examples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Replayed(Outcome):
    """What a replay of a topology did: how many microbatches it ran, how often events fired, and which states differ.

    `digests` are those of the replayed states. `live` microbatches followed on the wall clock.
    """

    topology: str
    microbatches: int
    events: Mapping[str, int]
    rows: Mapping[str, int]
    digests: Mapping[str, str]
    differences: list[Difference]
    live: int


class RecordedClock(WallClock):
    """A clock that stands at the time of the microbatch that is replayed; how long phases take it measures."""

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
) -> Replayed:
    """Run the recorded microbatches again and compare the states; `into` is a directory for the new table, which stays.

    With a `live` clock the new table is then run on: it reads what came since, and what fell due fires as each event
    says. `progress` is called after each microbatch, with how many were run and how many there are. Raises NotFound if
    the topology never ran, TableRefused if `into` has a table of states, DepotUnreadable and DepotChanged if a depot no
    longer has what was read.
    """
    _, ledger = tables_of(topology, settings, spark)
    if ledger.path is None and ledger.table() is not None:
        raise EngineUnavailable(
            f"only Spark reaches the files of {ledger.place}: it cannot be replayed at a path", AGAIN
        )
    require_run(topology, ledger)
    rows = history_of(ledger)
    planned = _planned(topology, rows, ticks)
    fired: Counter[str] = Counter()
    with ExitStack() as left:
        directory = into or left.enter_context(TemporaryDirectory(prefix="windrow-replay-"))
        again = _placed(topology, directory, _starts(prime(ledger, list(topology.depots)), first_read(ledger)))
        clock = RecordedClock()
        clock.at = planned[0].now if planned else 0
        sources, new = tables_of(again, settings, spark)
        require_new(new)
        runner = runner_of(again, sources, new, clock)
        for done, one in enumerate(planned, 1):
            clock.at = one.now
            if not runner.run_saved_plan(one):
                raise DepotChanged(
                    f"microbatch {one.microbatch} cannot be repeated: the depots no longer have what it read",
                    "A replay needs the whole history: raise the setting keep.",
                )
            fired.update(one.events or ())
            progress(done, len(planned))
        held, digests, differences = dict[str, int](), dict[str, str](), list[Difference]()
        for name, state in topology.states.items():
            both = topology.read(name, spark=spark), again.read(name)
            found = digests_of(state, both[0]), digests_of(state, both[1])
            held[name], digests[name] = both[0].num_rows, found[1].total
            differences += _differences(state, both, found)
        went_on = 0 if live is None else len(runner_of(again, sources, new, live).once().microbatches)
    counted = len(planned), dict(fired), held, digests, differences, went_on
    return Replayed(into, ticks, not differences, topology.name, *counted)


def _planned(topology: Topology, rows: list[Row], ticks: Ticks) -> list[SavedPlan]:
    """Return the microbatches to run, with the events that fire in each."""
    declared = list(topology.events)
    recorded = [
        replace(one, events=[name for name in declared if name in (one.events or ())]) for one in _recorded(rows)
    ]
    if ticks == "reuse" or not recorded:
        return recorded
    known = {name for row in rows for name in json.loads(row["rules"] or "{}").get("events", ())}
    kept = known if ticks == "merged" else set()
    schedule = {name: recorded[0].now + event.every for name, event in topology.events.items() if name not in kept}
    found: list[SavedPlan] = []
    for one in recorded:
        own = [name for name in one.events or () if name in kept]
        found += _due(topology, schedule, one.now)
        if one.upto or own or one is recorded[0]:  # the first one schedules events
            found.append(replace(one, microbatch=0, events=own))
    return found


def _due(topology: Topology, schedule: dict[str, int], until: int) -> Iterator[SavedPlan]:
    """Yield a microbatch for each time up to `until` at which events of the schedule are due, and move the schedule."""
    while schedule and (now := min(schedule.values())) <= until:
        fired = [name for name, due in schedule.items() if due == now]
        yield SavedPlan(0, now, {}, fired)
        for name in fired:
            schedule[name] = now + topology.events[name].every


def _placed(topology: Topology, directory: str, starts: Mapping[str, str]) -> Topology:
    """Return the topology with another table of states, and depots that are read from where they were first read."""
    depots = {
        name: replace(depot, start_from=starts.get(name, depot.start_from)) for name, depot in topology.depots.items()
    }
    outputs = {name: str(Path(directory) / "outputs" / name) for name in topology.outputs}
    return topology.placed(depots, str(Path(directory) / "states"), outputs)


def _starts(primed: LedgerState, first: Mapping[str, int]) -> dict[str, str]:
    """Return where each depot that the recorded topology knew is read from: if nothing was read, where it stands."""
    return {
        str(name): f"version:{first.get(str(name), depot.reached.depot_version + 1)}"
        for name, depot in primed.depots.items()
        if depot.reached.depot_id
    }


def _recorded(rows: list[Row]) -> list[SavedPlan]:
    """Return the microbatches that count, in order."""
    kept: dict[int, SavedPlan] = {}
    for row in counting(rows):
        upto = {} if row["depot"] is None else {row["depot"]: row["depot_version"]}
        now = microseconds_of(row["planned_at"])
        known = kept.get(row["microbatch"], SavedPlan(row["planned_id"], now, {}, []))
        fired = [*(known.events or ()), *(row["events_fired"] or ())]
        accepts = row["kind"] == "accept"
        kept[row["microbatch"]] = replace(known, upto={**known.upto, **upto}, events=fired, accepts=accepts)
    return list(kept.values())


def digests_of(state: State, rows: pa.Table) -> Digests:
    """Return the digests of rows of a state."""
    return Digests.under(state.ids(rows), rows.select(state.columns.names))


def _differences(
    state: State, tables: tuple[pa.Table, pa.Table], found: tuple[Digests, Digests]
) -> Iterator[Difference]:
    """Yield how two tables of a state with these digests differ, if they do."""
    if found[0].total == found[1].total:
        return
    differing = [found[0].differing(found[1])["id"], found[1].differing(found[0])["id"]]
    keys = pa.chunked_array([chunk for ids in differing for chunk in ids.chunks], pa.string()).unique()
    recorded, replayed = (_under(state, rows, keys[:3]) for rows in tables)
    examples = [{"recorded": one, "replayed": other} for one, other in zip(recorded, replayed, strict=True)]
    yield Difference(state.name, len(keys), examples)


def _under(state: State, rows: pa.Table, ids: pa.Array) -> list[dict[str, Any] | None]:
    """Return the row under each id, None if there is none."""
    at = pc.index_in(ids, state.ids(rows))
    return [
        row if there else None for row, there in zip(records(rows.take(at)), at.is_valid().to_pylist(), strict=True)
    ]
