"""A replay runs the recorded microbatches of a topology again, and compares the states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.topology.banks import bank, transfers
from windrow.errors import IncompatibleTableError
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, Point
from windrow.testing.clock import NOW, ManualClock
from windrow.topology import Microbatch, Topology
from windrow.topology.replay import replay_topology

EMBEDDED = Settings(engine="embedded")


def timed(factor: int = 1) -> Topology:
    """Return a topology whose states depend on ids, times, events and two depots."""
    topology = Topology("timed", depots=["a", "b"], states="timed", outputs={"copies": "copies"})
    topology.state("seen", key="name STRING", value="ids ARRAY<BIGINT>, rows BIGINT")
    topology.event("hour", every="1h")

    @topology.function
    def see(microbatch: Microbatch) -> None:
        rows = sum(microbatch.rows(depot).num_rows for depot in ("a", "b"))
        names = [*microbatch.events, str(microbatch.clock)]
        ids = pa.array([[microbatch.id]] * len(names), pa.list_(pa.int64()))
        microbatch.state("seen").put(pa.table({"name": names, "ids": ids, "rows": [rows * factor] * len(names)}))
        microbatch.append("copies", microbatch.rows("a").select(["payload"]))

    return topology


def run_for_hours(harness: Harness) -> None:
    """Run with messages, events, crashes, a pause, and a rollback in between."""
    for number in range(6):
        harness.append([{"payload": str(number)}], "ab"[number % 2])
        if number % 3:
            harness.append([{"payload": "more"}] * number, "a")
        harness.crash_at(list(Point)[number % 5])
        with pytest.raises(DriverCrash):
            harness.run()
        harness.pause()  # so the attempt that succeeds is recorded under a later number than the first one had
        harness.resume()
        harness.restart()
        harness.advance_clock(1_000)
        harness.run()
        if number == 3:
            harness.rollback(harness.history()[-1]["microbatch"] - 4)
        harness.advance_clock(3_000)
        harness.run()


def test_same_states(tmp_path: Path) -> None:
    """The same functions over the recorded rows, times and events give the same states; outputs go elsewhere."""
    harness = Harness(timed(), tmp_path)
    run_for_hours(harness)
    copies = DeltaTable(tmp_path / "copies").version()
    replayed = replay_topology(harness.topology, EMBEDDED, str(tmp_path / "again"))
    assert replayed.ok, replayed.differences
    assert (replayed.equal, replayed.into) == (True, str(tmp_path / "again"))
    assert replayed.microbatch_count > 6
    assert DeltaTable(tmp_path / "copies").version() == copies
    assert DeltaTable(tmp_path / "again" / "states").version() > 6


def test_changed_function(tmp_path: Path) -> None:
    """Changed functions give other states: the replay says of which keys, and shows some of them in both forms."""
    harness = Harness(timed(), tmp_path)
    run_for_hours(harness)
    changed = timed(2).with_locations(harness.topology.depots, harness.topology.location)
    replayed = replay_topology(changed, EMBEDDED)
    assert not replayed.ok
    assert (replayed.equal, replayed.into) == (False, None)
    [difference] = replayed.differences
    example: Any = difference.examples[0]
    assert difference.state == "seen"
    assert example["recorded"]["rows"] * 2 == example["replayed"]["rows"]


def test_bank(tmp_path: Path) -> None:
    """The money of the bank comes out the same."""
    harness = Harness(bank(), tmp_path, max_messages=7)
    for version in transfers(versions=5, size=5):
        harness.append(version)
        harness.run()
    assert replay_topology(harness.topology, EMBEDDED).ok


def ringing(**events: str) -> Topology:
    """Return a topology that notes when events fire; an event is `1h`, or `1h skip`."""
    topology = Topology("ringing", depots=["a", "b"], states="ringing", outputs={"rings": "rings"})
    topology.state("rings", key="name STRING, at TIMESTAMP", value="ids ARRAY<BIGINT>")
    topology.state("rows", value="rows BIGINT")
    for name, every in events.items():
        topology.event(name, every.split()[0], "skip" if "skip" in every else "once")

    @topology.function
    def note(microbatch: Microbatch) -> None:
        names = list(microbatch.events)
        ids = pa.array([[microbatch.id]] * len(names), pa.list_(pa.int64()))
        at = pa.array([microbatch.clock] * len(names), pa.timestamp("us", "UTC"))
        rung = pa.table({"name": pa.array(names, pa.string()), "at": at, "ids": ids})
        microbatch.state("rings").put(rung)
        microbatch.append("rings", rung)
        for depot in microbatch.depots:
            microbatch.state("rows").combine(microbatch.rows(depot), rows="count")

    return topology


def rings(topology: Topology, name: str) -> list[float]:
    """Return when an event fired, in hours since the clock began."""
    firings = topology.read("rings").filter(pa.compute.equal(topology.read("rings")["name"], name))
    return [(at.timestamp() - NOW / 1_000_000) / 3_600 for at in firings["at"].to_pylist()]


@pytest.fixture
def rung(tmp_path: Path) -> Harness:
    """A topology with hourly events that ran every two hours or so, and stood still for five hours."""
    harness = Harness(ringing(hour="1h", gone="90m"), tmp_path, clock=ManualClock(NOW))
    harness.append([{"payload": "first"}], "a")
    harness.run()
    for hours in (1.25, 1.25, 5, 0.75):
        harness.advance_clock(hours * 3_600)
        harness.append([{"payload": "more"}] * 2, "a")
        harness.run()
    return harness


def changed(harness: Harness, **events: str) -> Topology:
    """Return the topology with other events, over the same tables."""
    return ringing(**events).with_locations(
        harness.topology.depots, harness.topology.location, harness.topology.outputs
    )


def test_into_a_table_that_is_there(tmp_path: Path) -> None:
    """A replay that was stopped halfway, or the recorded table itself, is not run on: `into` must have no table of
    states.
    """

    def stop(replayed: int, _: int) -> None:
        if replayed == 2:
            raise DriverCrash

    harness = Harness(bank(), tmp_path / "bank")
    for version in transfers(versions=3, size=4):
        harness.append(version)
        harness.run()
    half, own = tmp_path / "half", tmp_path / "own"
    with pytest.raises(DriverCrash):
        replay_topology(harness.topology, EMBEDDED, str(half), progress=stop)
    own.mkdir()
    (own / "states").symlink_to(harness.topology.location)
    for into in (half, own):
        with pytest.raises(IncompatibleTableError, match="there is already a table at"):
            replay_topology(harness.topology, EMBEDDED, str(into), live=harness.clock)
    harness.append([{"payload": "1"}])
    assert replay_topology(harness.topology, EMBEDDED, str(tmp_path / "new")).ok
    assert len(harness.history()) == 3


@pytest.mark.ci
class TestTicks:
    RECORDED = (1.25, 2.5, 7.5, 8.25)

    def test_reuse(self, rung: Harness) -> None:
        """With the recorded ticks an event that is new does not fire, and one that is gone is left out."""
        topology = changed(rung, hour="1h", half="30m")
        again = str(rung.directory / "again")
        replayed = replay_topology(topology, EMBEDDED, again)
        assert replayed.events_fired == {"hour": 4}
        placed = topology.with_locations(topology.depots, f"{again}/states")
        assert rings(placed, "hour") == list(self.RECORDED)
        assert rings(placed, "half") == rings(placed, "gone") == []
        assert placed.read("rows").to_pylist() == [{"rows": 9}]

    def test_fresh(self, rung: Harness) -> None:
        """With fresh ticks each event fires when it is due, as in a run that never stands still."""
        topology = changed(rung, hour="1h", slow="150m")
        again = str(rung.directory / "again")
        replayed = replay_topology(topology, EMBEDDED, again, "fresh")
        placed = topology.with_locations(topology.depots, f"{again}/states")
        assert rings(placed, "hour") == [1, 2, 3, 4, 5, 6, 7, 8]
        assert rings(placed, "slow") == [2.5, 5, 7.5]
        assert replayed.events_fired == {"hour": 8, "slow": 3}
        assert replayed.ok
        assert replayed.differences
        assert placed.read("rows").to_pylist() == [{"rows": 9}]

    def test_merged(self, rung: Harness) -> None:
        """With merged ticks the events that were recorded keep their times, and new ones fire when they are due. The
        new log replays exactly, outputs too.
        """
        topology = changed(rung, hour="2h", slow="150m")
        again = str(rung.directory / "again")
        replayed = replay_topology(topology, EMBEDDED, again, "merged")
        placed = topology.with_locations(topology.depots, f"{again}/states", {"rings": f"{again}/outputs/rings"})
        assert rings(placed, "hour") == list(self.RECORDED)
        assert rings(placed, "slow") == [2.5, 5, 7.5]
        exactly = replay_topology(placed, EMBEDDED, f"{again}-2")
        assert exactly.ok, exactly.differences
        assert exactly.events_fired == replayed.events_fired == {"hour": 4, "slow": 3}
        once, twice = (DeltaTable(f"{place}/outputs/rings").to_pyarrow_table() for place in (again, f"{again}-2"))
        order = [("at", "ascending"), ("name", "ascending")]
        assert once.sort_by(order) == twice.sort_by(order)
        assert once.num_rows == 7

    def test_live(self, rung: Harness) -> None:
        """A replay goes over to live: it reads what came since, also from a depot of which nothing was read before, and
        what fell due meanwhile fires once, or is cancelled, as the event says.
        """
        topology = changed(rung, hour="1h", slow="150m skip", often="10m")
        rung.append([{"payload": "since"}] * 3, "a")
        rung.append([{"payload": "other"}], "b")
        rung.advance_clock(10 * 3_600 + 3_000)
        again = str(rung.directory / "again")
        replayed = replay_topology(topology, EMBEDDED, again, "merged", live=rung.clock)
        placed = topology.with_locations(topology.depots, f"{again}/states")
        now = 8.25 + 10 + 3_000 / 3_600
        assert rings(placed, "hour") == pytest.approx([*self.RECORDED, now])
        assert rings(placed, "often")[-2:] == pytest.approx([8 + 1 / 6, now])
        assert rings(placed, "slow") == [2.5, 5, 7.5]  # what is missed is cancelled
        assert placed.read("rows").to_pylist() == [{"rows": 13}]
        assert replayed.live_microbatch_count == 1
