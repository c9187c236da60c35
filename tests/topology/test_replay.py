"""A replay runs the recorded microbatches of a topology again, and compares the states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.topology.banks import bank, transfers
from windrow.settings.settings import Settings
from windrow.testing import Crashed, Harness, Point
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
        with pytest.raises(Crashed):
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
    """
    The same functions over the recorded rows, times and events give the same states; outputs go elsewhere.
    """
    harness = Harness(timed(), tmp_path)
    run_for_hours(harness)
    copies = DeltaTable(tmp_path / "copies").version()
    found = replay_topology(harness.topology, EMBEDDED, str(tmp_path / "again"))
    assert found.ok, found.differences
    assert found.microbatches > 6
    assert DeltaTable(tmp_path / "copies").version() == copies
    assert DeltaTable(tmp_path / "again" / "states").version() > 6


def test_changed_function(tmp_path: Path) -> None:
    """
    Changed functions give other states: the replay says of which keys, and shows some of them in both forms.
    """
    harness = Harness(timed(), tmp_path)
    run_for_hours(harness)
    changed = timed(2).placed(harness.topology.depots, harness.topology.location)
    found = replay_topology(changed, EMBEDDED)
    assert not found.ok
    [difference] = found.differences
    example: Any = difference.examples[0]
    assert difference.state == "seen"
    assert example["recorded"]["rows"] * 2 == example["replayed"]["rows"]


def test_bank(tmp_path: Path) -> None:
    """
    The money of the bank comes out the same.
    """
    harness = Harness(bank(), tmp_path, max_messages=7)
    for version in transfers(versions=5, size=5):
        harness.append(version)
        harness.run()
    assert replay_topology(harness.topology, EMBEDDED).ok
