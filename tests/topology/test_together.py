"""Several topologies in one process: each exactly once, over depots that are read once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from windrow.errors import DepotUnreadableError, SettingsError, TopologyError
from windrow.settings.settings import MetricsSettings, Settings
from windrow.source.shared_rows import Key, SharedRows
from windrow.testing import Harness
from windrow.topology import Microbatch, Topology
from windrow.topology.running import open_topology
from windrow.topology.together import TopologyRun, run_together
from windrow.topology.verify import verify_topology

EMBEDDED = Settings(engine="embedded", max_retries=0, max_messages=2)
ROWS = pa.schema([("number", pa.int64())])


def summing(name: str, fails: bool = False) -> Topology:
    """Return a topology that adds up numbers, unless it fails."""
    topology = Topology(name, depots=["numbers"], states=name)
    topology.state(f"sums-of-{name}", value="total BIGINT", initial={"total": 0})

    @topology.function
    def add(microbatch: Microbatch) -> None:
        if fails:
            raise ValueError("as the test wants it")
        microbatch.state(f"sums-of-{name}").combine(microbatch.rows("numbers"), total=("number", "sum"))

    return topology


@pytest.fixture
def placed(tmp_path: Path) -> dict[str, Topology]:
    """Two topologies and one that fails, over one depot with ten versions."""
    topologies = {name: Harness(summing(name, name == "c"), tmp_path).topology for name in "abc"}
    harness = Harness(summing("a"), tmp_path)
    harness.create(ROWS, "numbers")
    for number in range(10):
        harness.append([{"number": number}] * 2, "numbers")
    return topologies


def total(topology: Topology) -> int:
    """Return the sum."""
    [state] = topology.states
    [row] = topology.read(state).to_pylist()
    return int(row["total"])


def test_each_exactly_once(placed: dict[str, Topology]) -> None:
    """All run at the same time, each in microbatches of its own; one that fails does not stop the others."""
    runs = [TopologyRun(topology) for topology in placed.values()]
    run_together(runs, EMBEDDED, lambda runner: runner.once())
    assert [run.error is None for run in runs] == [True, True, False]
    assert "as the test wants it" in str(runs[2].error)
    for run in runs[:2]:
        assert run.summary is not None
        assert (total(run.topology), len(run.summary.microbatches)) == (90, 10)
        assert verify_topology(run.topology, EMBEDDED, replay=True).ok
    assert total(placed["c"]) == 0


def test_until_all_are_stopped(placed: dict[str, Topology]) -> None:
    """A repeating run goes on until each clock is stopped."""
    runs = [TopologyRun(placed[name]) for name in "ab"]
    threading.Thread(target=stop_when_read, args=(runs,), daemon=True).start()
    run_together(runs, EMBEDDED, lambda runner: runner.every(10_000))
    assert [total(run.topology) for run in runs] == [90, 90]


def stop_when_read(runs: list[TopologyRun]) -> None:
    """Stop each topology when it has read all, and is looking for more."""
    for run in runs:
        while not DeltaTable.is_deltatable(run.topology.location) or total(run.topology) < 90:
            time.sleep(0.1)
        run.clock.stop()


def test_read_once(placed: dict[str, Topology]) -> None:
    """What one topology has read the other one does not read from storage again, which by then has it no more."""
    depot = placed["a"].depots["numbers"].location
    shared = SharedRows({depot: 2}, 1_000_000)
    with open_topology(placed["a"], EMBEDDED, TopologyRun(placed["a"]).clock, shared=shared) as runner:
        runner.once()
    for file in DeltaTable(depot).file_uris():
        Path(file).rename(f"{file}.away")
    with open_topology(placed["b"], EMBEDDED, TopologyRun(placed["b"]).clock, shared=shared) as runner:
        runner.once()
    assert total(placed["b"]) == 90
    with (
        open_topology(placed["c"], EMBEDDED, TopologyRun(placed["c"]).clock, shared=shared) as runner,
        pytest.raises(DepotUnreadableError, match="cannot be read"),
    ):
        runner.once()


def test_refused(placed: dict[str, Topology], tmp_path: Path) -> None:
    """Two topologies with one table of states are refused, and so are metrics, which have one place."""
    twice = [
        TopologyRun(placed["a"]),
        TopologyRun(placed["b"].with_locations(placed["b"].depots, placed["a"].location)),
    ]
    with pytest.raises(TopologyError, match="two topologies have their states at"):
        run_together(twice, EMBEDDED, lambda runner: runner.once())
    metrics = EMBEDDED.model_copy(update={"metrics": MetricsSettings(textfile=str(tmp_path / "metrics"))})
    with pytest.raises(SettingsError, match="metrics do not support"):
        run_together([TopologyRun(placed["a"])], metrics, lambda runner: runner.once())


class CallCounter:
    """Counts how often the rows of a version are read."""

    def __init__(self, rows: int = 10) -> None:
        self.times, self.table = 0, pa.table({"number": list(range(rows))})

    def read(self) -> Iterator[pa.Table]:
        """Read them."""
        self.times += 1
        yield self.table


def key(version: int) -> Key:
    """Return the key of a version."""
    return "depot", "id", version, None


class TestSharedRows:
    def test_kept_until_all_have_taken_them(self) -> None:
        """Rows are read for the first reader, kept for the others, and forgotten after the last one."""
        shared, version = SharedRows({"depot": 3}, 1_000), CallCounter()
        for _ in range(3):
            assert shared.rows(key(1), version.read) == [version.table]
        assert version.times == 1
        assert shared.rows(key(1), version.read) == [version.table]
        assert version.times == 2

    def test_limit(self) -> None:
        """Beyond the limit the oldest versions are forgotten, and one that is larger is not kept."""
        shared, versions = SharedRows({"depot": 2}, 200), [CallCounter() for _ in range(3)]
        for number, version in enumerate(versions):
            shared.rows(key(number), version.read)
        for number, version in reversed(list(enumerate(versions))):
            shared.rows(key(number), version.read)
        assert [version.times for version in versions] == [2, 1, 1]
        large = CallCounter(100)
        for _ in range(2):
            shared.rows(key(9), large.read)
        assert large.times == 2

    def test_read_by_many_at_once(self) -> None:
        """Threads that want the same version wait for the one that reads it."""
        shared, version, began = SharedRows({"depot": 8}, 1_000), CallCounter(), threading.Barrier(8)

        def take() -> None:
            began.wait()
            shared.rows(key(1), version.read)

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert version.times == 1
