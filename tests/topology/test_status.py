"""What the status of a topology says: each depot, what waits, the microbatches, and its own states."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log
from tests.topology.test_chains import Chain, mirror
from windrow.errors import DepotMismatchError, NotFoundError, TableMissingError
from windrow.testing import Harness
from windrow.topology import Microbatch, Topology
from windrow.topology.status import TopologyStatus, status_of


def counting() -> Topology:
    """Return a topology that counts the messages of two depots."""
    topology = Topology("both", depots=["one", "two"], states="states")
    topology.state("counts", key="type STRING", value="count BIGINT")
    topology.state("never", value="total BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        for depot in ("one", "two"):
            microbatch.state("counts").combine(microbatch.rows(depot), count="count")

    return topology


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Two depots, which the topology has read."""
    harness = Harness(counting(), tmp_path)
    harness.append([{"payload": "a"}, {"payload": "b", "type": "other"}])
    harness.append([{"payload": "c"}], "two")
    harness.run()
    return harness


def look(harness: Harness, now: int = NOW) -> TopologyStatus:
    """Return the status."""
    return status_of(harness.topology, now)


def test_lag(harness: Harness) -> None:
    """What waits is told by depot and in sum, with how long the oldest of it waits; versions without rows do not
    wait.
    """
    assert [depot.versions_waiting for depot in look(harness).depots] == [0, 0]
    assert (look(harness).lag.message_count, look(harness).lag.seconds) == (0, 0.0)
    two = harness.topology.depots["two"].location
    DeltaTable(two).alter.set_table_properties({"delta.appendOnly": "true"})
    harness.append([{"payload": "d"}, {"payload": "e"}], "two")
    harness.append([{"payload": "f"}], "two")
    appended = DeltaTable(two).version() - 1
    committed = {commit["version"]: commit["timestamp"] * 1_000 for commit in DeltaTable(two).history()}
    status = look(harness, committed[appended] + 90 * SECOND)
    assert [(depot.name, depot.versions_waiting, depot.messages_waiting) for depot in status.depots] == [
        ("one", 0, 0),
        ("two", 2, 3),
    ]
    assert status.depots[1].oldest_waiting_version == appended > status.depots[1].read_version + 1
    assert (status.lag.message_count, status.lag.seconds, status.versions_waiting) == (3, 90.0, 2)


def test_microbatches(harness: Harness) -> None:
    """The last microbatches stand there, one row for each depot that was read, with the sums over all of them."""
    harness.append([{"payload": "d"}])
    harness.run()
    harness.pause()
    status = look(harness)
    assert [(row.microbatch, row.kind, row.depot, row.message_count) for row in status.microbatches] == [
        (3, "pause", None, 0),
        (2, "data", "one", 1),
        (1, "data", "one", 2),
        (1, "data", "two", 1),
    ]
    assert (status.totals.microbatch_count, status.totals.message_count) == (3, 4)
    assert (status.ledger.microbatch, status.ledger.paused) == (3, True)
    assert (status.ledger.readable_range.version, status.depots[0].readable_range.version) == (0, 0)


def test_own(harness: Harness) -> None:
    """The rows of each state are counted, and depots that a topology no longer has are named."""
    assert look(harness).states == {"counts": 2, "never": 0}
    fewer = counting().with_locations({"one": harness.topology.depots["one"]}, harness.topology.location)
    status = status_of(fewer, NOW)
    assert ([depot.name for depot in status.depots], status.former_depots) == (["one"], ["two"])


def test_changed_and_accepted(harness: Harness) -> None:
    """A version that changed rows is foretold, and told as accepted afterwards until a rollback, of its own depot."""
    table = DeltaTable(harness.topology.depots["one"].location)
    table.delete("payload = 'a'")
    assert [depot.changed_version for depot in look(harness).depots] == [table.version(), None]
    harness.runner().skip_version(table.version(), "one")
    depots = look(harness).depots
    assert [(depot.changed_version, depot.skipped_versions) for depot in depots] == [
        (None, (table.version(),)),
        (None, ()),
    ]
    harness.rollback(1)
    assert (look(harness).depots[0].changed_version, look(harness).depots[0].skipped_versions) == (table.version(), ())


def test_refused(harness: Harness, tmp_path: Path) -> None:
    """A topology that never ran, a depot that is another table, and one that is missing are refused."""
    with pytest.raises(NotFoundError, match="never ran"):
        status_of(counting().with_locations(harness.topology.depots, str(tmp_path / "nowhere")), NOW)
    one, two = harness.topology.depots.values()
    with pytest.raises(DepotMismatchError):
        status_of(counting().with_locations({"one": two, "two": one}, harness.topology.location), NOW)
    with pytest.raises(TableMissingError):
        status_of(
            counting().with_locations({"one": one, "two": str(tmp_path / "nowhere")}, harness.topology.location), NOW
        )


def test_closed_batches_wait(tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
    """In a depot that is the ledger of a batcher, only versions that closed batches wait, and their batches are
    counted.
    """
    world = World(tmp_path, clock)
    world.publish(*log(versions=3, seed=4))
    runner = world.runner(embedded, max_messages=1)
    runner.once()
    runner.pause()
    topology = Topology("hourly", depots={"closed": world.ledger}, states=str(tmp_path / "hourly"))
    topology.state("counts", value="batches BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        microbatch.state("counts").combine(microbatch.rows("closed"), batches="count")

    read = Harness(topology.with_locations(topology.depots, topology.location), tmp_path, clock=clock)
    read.topology = topology
    read.run()
    read.rollback(0)
    closed = [row["closed"] for row in world.history() if row["closed"]]
    [depot] = status_of(topology, NOW).depots
    assert (depot.messages_waiting, depot.versions_waiting) == (sum(closed), len(closed))
    assert depot.version > len(closed) > 0
    assert depot.changed_version is None
    read.run()
    assert status_of(topology, NOW).depots[0].messages_waiting == 0


def test_changes_of_a_state_wait(tmp_path: Path, embedded: EngineFactory) -> None:
    """In a depot that is a state of another topology, only versions that changed this state wait."""
    chain = Chain(tmp_path, embedded)
    chain.say("to be")
    chain.mirror.run()
    assert look(chain.mirror).depots[0].messages_waiting == 0
    chain.words.pause()
    chain.words.resume()
    chain.say("be", "-to or")
    assert mirror().depots["counts"].state == "counts"
    [depot] = look(chain.mirror).depots
    assert (depot.versions_waiting, depot.messages_waiting) == (1, 3)
