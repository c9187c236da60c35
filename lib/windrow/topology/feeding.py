"""The topology that feeds a depot, an output or a state of it: its recorded position says which time it has passed.

It has passed a time when it has read its own depots up to that, because its appends are committed before its
position. A depot that nobody feeds has passed the idle clock of its sources when it is read to its end. As long as
rows are unread, the clocks stay where the last microbatch that read the depot left them.

Source of the idea: the diamond of Triceps, in which no branch overtakes another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import to_plain_types
from windrow.delta.table import open_table, read_filtered, translate_read_errors
from windrow.errors import TopologyError
from windrow.ledger import Ledger, ledger_of
from windrow.model.clock import UNKNOWN
from windrow.model.commits import note_of
from windrow.runtime.feeder import Feeder, FeederPosition
from windrow.runtime.ledger_state import DepotPosition, DepotState, Sources, prime
from windrow.source import Source
from windrow.topology.depots import settings_of, source_of_depot
from windrow.topology.topology import Topology

NEVER = np.iinfo(np.int64).max
NOT_READ = DepotState(DepotPosition(), Sources.none(), pa.table({}))
NOTES = 20  # how many commits of a depot are searched for their writer; maintenance adds commits between them


@dataclass(slots=True)
class RecordedFeeder(Feeder):
    """A topology, by its tables; `sources` read its depots, `feeders` feed some of them.

    It feeds a depot with a state, or with an output.
    """

    topology: Topology
    sources: Mapping[str, Source]
    ledger: Ledger
    feeders: Mapping[str, Feeder]
    by_state: bool
    _read_to: dict[str, tuple[int, int]] = field(default_factory=dict)  # a search between these versions found nothing

    def position(self, now: int) -> FeederPosition:
        """Return how far it has come: before everything in its depots, if it never ran. Raises TableMissingError."""
        primed = None if self.ledger.table() is None else prime(self.ledger, list(self.sources))
        known = {} if primed is None else primed.depots
        each = [self._depot(name, known.get(name, NOT_READ), now) for name in self.sources]
        least = min(each, key=lambda position: position.clock)
        if primed is None or least.since is None or least.feeder != self.topology.name:
            return least
        committed = self.ledger.tables.log(self.ledger.place).commits(primed.fence.table_version)
        since = max([least.since, *(commit.committed_at for commit in committed)])
        return FeederPosition(least.clock, least.feeder, since)

    def _depot(self, name: str, state: DepotState, now: int) -> FeederPosition:
        """Return which time one of its depots has passed."""
        sources = state.sources
        # guard: feeder-is-asked-first
        fed = self.feeders[name].position(now) if name in self.feeders else None
        # guard: feeder-behind-is-not-idle
        since = self._unread_since(name, state.reached.depot_version)
        if since is not None:
            read_at = int(np.max(sources.seen_at, initial=0))
            clock = int(np.min(sources.idle(read_at).floor)) if len(sources.source) else UNKNOWN
            return FeederPosition(clock, self.topology.name, since)
        return fed or FeederPosition(int(np.min(sources.idle(now).floor, initial=NEVER)), self.topology.name)

    def _unread_since(self, name: str, version: int) -> int | None:
        """Return when the first row after a version of a depot was committed, None if there is none."""
        source, known = self.sources[name], self._read_to.get(name, (-1, -1))
        latest = source.depot().version
        if latest <= version or known == (version, latest):
            return None
        with source.arrivals(version, latest) as arrivals:
            following = None if arrivals is None else arrivals.after(version, 1)
            if following is None:
                self._read_to[name] = version, latest
                return None
            first = min(following.expected)
        return next((commit.committed_at for commit in source.commits(first, first) if commit.version == first), 0)

    def time_of(self, version: int) -> int | None:
        """Return the greatest clock of the microbatch that committed a version of its states, None for an output."""
        if not self.by_state:
            return None
        log, path = self.ledger.tables.log(self.ledger.place), self.ledger.path
        note = next((note_of(entry) for entry in log.history(version) if int(entry["version"]) == version), {})
        if "microbatch" not in note or path is None:
            return None
        own = [("state", "=", "microbatch"), ("microbatch", "=", note["microbatch"])]
        with translate_read_errors(path, "ledger"):
            clocks = to_plain_types(read_filtered(open_table(path, "ledger"), own, ["clocks"]))["clocks"]
        greatest = pc.max(pc.struct_field(pc.list_flatten(clocks), "clock"))
        return None if greatest.as_py() is None else int(greatest.cast("int64").as_py())


def require_fed_as_declared(name: str, source: Source, feeder: RecordedFeeder | None) -> None:
    """Raise TopologyError if, according to the log of a depot, another topology fills it than is declared."""
    if source.log.table() is None:
        return
    first = max(0, source.depot().version - NOTES)
    notes = [note for commit in source.log.history(first) if "output" in (note := note_of(commit))]
    if not notes:
        return
    if feeder is None:
        raise TopologyError(
            f"the depot {name} is an output of another topology, which may fall behind",
            "Declare which one: Depot(..., fed_by=topology), or read without in_step.",
        )
    table = feeder.ledger.table()
    # guard: fed-as-declared
    if table is None or str(notes[0]["output"]).split(":")[1] != table.id:
        raise TopologyError(
            f"the depot {name} is an output of a topology other than {feeder.topology.name}",
            "Declare the topology that appends to it: Depot(..., fed_by=topology).",
        )


def feeders_of(topology: Topology, ledger: Ledger) -> dict[str, RecordedFeeder]:
    """Return the topologies that feed depots, by depot name, as seen through the engine of a ledger."""
    engine, settings, feeders = ledger.engine, ledger.settings, dict[str, RecordedFeeder]()
    for name, depot in topology.depots.items():
        if (feeder := depot.fed_by) is not None:
            used = {depot: settings_of(feeder, place, settings) for depot, place in feeder.depots.items()}
            states = ledger_of(engine, next(iter(used.values())))
            sources = {depot: source_of_depot(engine, place, used[depot]) for depot, place in feeder.depots.items()}
            feeders[name] = RecordedFeeder(feeder, sources, states, feeders_of(feeder, ledger), depot.state is not None)
    return feeders
