"""Replay a topology: the recorded microbatches again, into a new table, and the states of both compared.

Each microbatch of the history is run with its number, its time, its events and its rows of each depot. So functions
that depend on nothing else give the same states. Microbatches that a rollback took back are left out. Outputs go into
the directory of the new table. Source of the idea: the replay of Triceps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from windrow.errors import DepotChanged
from windrow.model.timestamps import microseconds_of
from windrow.runtime.plans import Planned
from windrow.settings.settings import Settings
from windrow.topology.history import Row, counting, history_of
from windrow.topology.running import engine_of, runner_of
from windrow.topology.state import State
from windrow.topology.status import require_run
from windrow.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Difference:
    """How many keys of a state have another row, or none, in one of the two tables; `examples` are some of them."""

    state: str
    keys: int
    examples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did: how many microbatches it ran, and which states came out otherwise."""

    topology: str
    microbatches: int
    rows: Mapping[str, int]
    differences: list[Difference]

    @property
    def ok(self) -> bool:
        """Tell whether all states are equal."""
        return not self.differences


class RecordedClock:
    """A clock that stands at the time of the microbatch that is replayed."""

    def __init__(self, at: int) -> None:
        """Begin at a time, in microseconds."""
        self.at = at

    def now(self) -> int:
        """Return the recorded time."""
        return self.at

    def elapsed(self) -> float:
        """Return the recorded time in seconds."""
        return self.at / 1_000_000

    def wait(self, microseconds: int) -> bool:  # noqa: ARG002 - nothing waits here
        """Return False: no stop is requested."""
        return False


def replay_topology(
    topology: Topology,
    settings: Settings,
    into: str | None = None,
    spark: Any = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Replayed:
    """Run the recorded microbatches again and compare the states; `into` is a directory for the new table, which stays.

    `progress` is called after each microbatch, with how many were run and how many there are. Raises NotFound if the
    topology never ran, DepotUnreadable and DepotChanged if a depot no longer has what was read.
    """
    engines = {name: engine_of(topology, depot, settings, spark) for name, depot in topology.depots.items()}
    first = next(iter(engines.values()))
    require_run(topology, first)
    rows = history_of(first)
    recorded = _recorded(rows)
    with _directory(into) as directory:
        again = _placed(topology, directory, _begun(rows))
        clock = RecordedClock(recorded[0].now if recorded else 0)
        used = {name: engine_of(again, depot, settings, spark) for name, depot in again.depots.items()}
        runner = runner_of(again, used, settings, clock)
        for done, planned in enumerate(recorded, 1):
            clock.at = planned.now
            if not runner.run_planned(planned):
                raise DepotChanged(
                    f"microbatch {planned.microbatch} cannot be repeated: the depots no longer have what it read",
                    "A replay needs the whole history: raise the setting keep.",
                )
            progress(done, len(recorded))
        held = {name: topology.read(name, spark=spark).num_rows for name in topology.states}
        differences = [
            found
            for state in topology.states.values()
            if (found := _difference(state, topology.read(state.name, spark=spark), again.read(state.name))) is not None
        ]
    return Replayed(topology.name, len(recorded), held, differences)


def _placed(topology: Topology, directory: str, begun: Mapping[str, int]) -> Topology:
    """Return the topology with another table of states, and depots that are read from where they were first read."""
    depots = {
        name: replace(depot, start_from=f"version:{begun[name]}" if name in begun else "end")
        for name, depot in topology.depots.items()
    }
    outputs = {name: str(Path(directory) / "outputs" / name) for name in topology.outputs}
    return topology.placed(depots, str(Path(directory) / "states"), outputs)


def _begun(rows: list[Row]) -> dict[str, int]:
    """Return the first version that was read of each depot."""
    begun: dict[str, int] = {}
    for row in rows:
        for part in row["versions"] or ():
            begun[row["depot"]] = min(part["version"], begun.get(row["depot"], part["version"]))
    return begun


def _recorded(rows: list[Row]) -> list[Planned]:
    """Return the microbatches that count, in order."""
    kept: dict[int, Planned] = {}
    for row in counting(rows):
        upto = {} if row["depot"] is None else {row["depot"]: row["depot_version"]}
        known = kept.get(row["microbatch"], Planned(row["planned_id"], microseconds_of(row["planned_at"]), {}))
        kept[row["microbatch"]] = replace(known, upto={**known.upto, **upto})
    return list(kept.values())


def _difference(state: State, recorded: pa.Table, again: pa.Table) -> Difference | None:
    """Return how two tables of a state differ, None if they are equal."""
    if recorded.equals(again):
        return None
    mine = dict(zip(state.ids(recorded).to_pylist(), recorded.to_pylist(), strict=True))
    other = dict(zip(state.ids(again).to_pylist(), again.to_pylist(), strict=True))
    keys = [id_ for id_ in mine | other if mine.get(id_) != other.get(id_)]
    if not keys:
        return None
    examples = [{"recorded": mine.get(id_), "replayed": other.get(id_)} for id_ in keys[:3]]
    return Difference(state.name, len(keys), examples)


@contextmanager
def _directory(into: str | None) -> Iterator[str]:
    """Yield the directory for the new tables, a temporary one unless it is given."""
    if into is not None:
        yield into
        return
    with TemporaryDirectory(prefix="windrow-replay-") as directory:
        yield directory
