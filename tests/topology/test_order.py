"""The messages of all depots of a microbatch in one order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import one_in
from tests.engine.factory import EngineFactory
from windrow.errors import DepotChangedError, TopologyError
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, ManualClock, Point
from windrow.topology import Depot, Microbatch, SparkMicrobatch, Topology
from windrow.topology.replay import replay_topology
from windrow.topology.verify import verify_topology

EMBEDDED = Settings(engine="embedded")
NOON = datetime(2023, 5, 1, 12, tzinfo=UTC)
AT_NOON = int(NOON.timestamp()) * 1_000_000


def ordering(frames: bool = False, **depots: Depot) -> Topology:
    """Return a topology that notes in which place each payload came, and at what time."""
    topology = Topology("ordering", depots=depots, states="ordering")
    topology.state("places", key="microbatch BIGINT, place BIGINT", value="what STRING, at TIMESTAMP")

    def note(microbatch: Any, rows: pa.Table) -> None:
        numbers = pa.array(range(rows.num_rows), pa.int64())
        noted = {"microbatch": pa.repeat(microbatch.id, rows.num_rows), "place": numbers, "what": rows["payload"]}
        if isinstance(microbatch, SparkMicrobatch):
            from windrow.rows.frame import frame_of

            table = pa.table(noted | {"at": rows["processing_time"]})
            session = microbatch.rows(next(iter(depots))).sparkSession
            microbatch.state("places").put(frame_of(session, table))
        else:
            microbatch.state("places").put(pa.table(noted | {"at": rows["processing_time"]}))

    if frames:

        @topology.function
        def note_frames(microbatch: SparkMicrobatch) -> None:
            note(microbatch, microbatch.in_order().toArrow())

    else:

        @topology.function
        def note_rows(microbatch: Microbatch) -> None:
            note(microbatch, microbatch.in_order())

    return topology


def message(text: str, seconds: float, **other: Any) -> dict[str, Any]:
    """Return a message that was stamped so many seconds after noon."""
    return {"payload": text, "received_at": NOON + timedelta(seconds=seconds), **other}


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("frames", [False, True], ids=["arrow", "frames"])
def test_by_time_then_priority(tmp_path: Path, engine: EngineFactory, frames: bool) -> None:
    """Messages of all depots come by processing time, at equal times by priority, then by version and sequence. A late
    message has the time that its source had reached; one without a time comes last.
    """
    if frames and engine.session is None:
        pytest.skip("frames need Spark")
    topology = ordering(frames, first=Depot("first", priority=2), second=Depot("second", priority=1))
    harness = Harness(topology, tmp_path, engine.name, engine.session, **engine.more)
    harness.append([message("b", 1, sequence=2), message("a", 1, sequence=1), message("late", 5)], "first")
    harness.append([message("floor", 2), message("other", 2, source="other"), message("bad", 0, key=None)], "first")
    harness.append([message("c", 1), message("d", 7), message("ahead", 10**9)], "second")
    harness.run()
    places = [(row["what"], row["at"] and (row["at"] - NOON).total_seconds()) for row in harness.state("places")]
    assert places == [
        ("c", 1), ("a", 1), ("b", 1), ("other", 2), ("late", 5), ("floor", 5), ("d", 7), ("ahead", None), ("bad", None),
    ]  # fmt: skip
    harness.append([message("again", 3)], "second")
    harness.run()
    assert [(row["what"], row["at"]) for row in harness.state("places") if row["microbatch"] == 2] == [
        ("again", NOON + timedelta(seconds=7))
    ]


def run_to_the_end(harness: Harness) -> None:
    """Run until nothing comes any more: each microbatch may let others wait for the depot that it read."""
    harness.run()
    before = -1
    while len(harness.history()) != before:
        before = len(harness.history())
        harness.advance_clock(1_000)
        harness.run()


@pytest.mark.ci
@given(
    gaps=st.lists(st.tuples(st.sampled_from(["first", "second", "third"]), st.integers(0, 3)), min_size=1, max_size=14),
    cuts=st.lists(st.integers(1, 14), max_size=6),
    runs=st.lists(st.booleans(), min_size=7, max_size=7),
)
@one_in(4)
def test_any_cutting_in_step(tmp_path_factory: pytest.TempPathFactory, gaps: Any, cuts: Any, runs: Any) -> None:
    """However the messages of several depots are cut into versions and microbatches, in step they come by time, at
    equal times by priority, each once; live, replayed and in the books.
    """
    depots = {name: Depot(name, priority=number) for number, name in enumerate(["third", "second", "first"])}
    topology = ordering(**depots)
    topology.in_step = True
    harness = Harness(topology, tmp_path_factory.mktemp("order"), clock=ManualClock(AT_NOON))
    now, log = 0, list[tuple[str, int]]()
    for number, (depot, gap) in enumerate(gaps):  # what is appended later is of a later time
        log.append((depot, now := now + max(gap, number in cuts)))
    for depot in depots:
        harness.append([], depot)
    start = 0
    for end, runs_now in zip([*sorted(min(cut, len(log)) for cut in cuts), len(log)], runs, strict=False):
        for depot in depots:
            if part := [message(f"{depot} {at}", at) for name, at in log[start:end] if name == depot]:
                harness.append(part, depot)
        start = max(start, end)
        harness.clock.set(AT_NOON + 1_000_000 * (log[start - 1][1] + 1))
        if runs_now:
            harness.run()
    run_to_the_end(harness)
    by_time = sorted(log, key=lambda entry: (entry[1], depots[entry[0]].priority))
    assert [row["what"] for row in harness.state("places")] == [f"{depot} {at}" for depot, at in by_time]
    assert replay_topology(harness.topology, EMBEDDED).equal
    assert verify_topology(harness.topology, EMBEDDED).ok


def test_empty_part(tmp_path: Path) -> None:
    """A replay repeats a microbatch that took a part of a version in which there was no row yet."""
    topology = ordering(first=Depot("first"), second=Depot("second"), third=Depot("third"))
    topology.in_step = True
    harness = Harness(topology, tmp_path, clock=ManualClock(AT_NOON + 10_000_000))
    harness.append([message("a", 0), message("d", 2)], "first")
    harness.append([message("b", 0)], "second")
    harness.append([message("c", 1)], "third")
    run_to_the_end(harness)
    assert [row["what"] for row in harness.state("places")] == ["a", "b", "c", "d"]
    assert [row["versions"] for row in harness.history() if row["depot"] == "first"][1] == []
    assert replay_topology(harness.topology, EMBEDDED).equal


@pytest.mark.parametrize("point", Point)
def test_crash_between_parts(tmp_path: Path, point: Point) -> None:
    """A version of which a part was taken is read on after a crash: each message once, in order."""
    topology = ordering(first=Depot("first"), second=Depot("second"))
    topology.in_step = True
    harness = Harness(topology, tmp_path, clock=ManualClock(AT_NOON))
    harness.append([message(f"first {at}", at) for at in (1, 5, 9)], "first")
    for at in (2, 6, 12):
        harness.append([message(f"second {at}", at)], "second")
    for _ in range(2):
        harness.crash_at(point)
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
    run_to_the_end(harness)
    places = [row["what"] for row in harness.state("places")]
    assert places == ["first 1", "second 2", "first 5", "second 6", "first 9", "second 12"]
    assert len({row["microbatch"] for row in harness.history() if row["depot"] == "first"}) == 3
    assert verify_topology(harness.topology, EMBEDDED, replay=True).ok


def test_rest_of_another_version(tmp_path: Path) -> None:
    """A depot that is set back after a part of a version was taken, and grew otherwise, is refused."""
    topology = ordering(first=Depot("first"), second=Depot("second"))
    topology.in_step = True
    harness = Harness(topology, tmp_path, clock=ManualClock(AT_NOON))
    harness.append([message("first 1", 1), message("first 9", 9)], "first")
    harness.append([message("second 2", 2)], "second")
    harness.run()
    assert [row["what"] for row in harness.state("places")] == ["first 1", "second 2"]
    place = Path(harness.topology.depots["first"].location)
    newest = place / "_delta_log" / "00000000000000000001.json"
    newest.unlink()
    harness.append([message("first 1", 1), message("other 9", 9)], "first")
    harness.restart()
    harness.advance_clock(100)
    with pytest.raises(DepotChangedError):
        harness.run()


def test_in_step(tmp_path: Path) -> None:
    """In step the places of all microbatches together are in the order of time."""
    topology = ordering(first=Depot("first", priority=2), second=Depot("second", priority=1))
    topology.in_step = True
    harness = Harness(topology, tmp_path)
    for at in range(4):
        harness.append([message(f"first {at}", at), message(f"again {at}", at)], "first")
        harness.append([message(f"second {at}.5", at + 0.5)], "second")
    harness.run()
    harness.advance_clock(10)  # or the last one waits for the other depot
    harness.run()
    times = [row["at"] for row in harness.state("places")]
    assert times == sorted(times)
    assert len(times) == 12


def test_in_step_today(tmp_path: Path) -> None:
    """The clock of a harness begins now, so messages of today are not ahead of it, and depots in step are ordered by
    them.
    """
    topology, now = ordering(first=Depot("first"), second=Depot("second")), datetime.now(UTC)
    topology.in_step = True
    harness = Harness(topology, tmp_path)
    for depot, seconds in (("first", 3), ("second", 2), ("first", 1)):
        at = now - timedelta(seconds=seconds)
        harness.append([{"payload": f"{seconds} s ago", "event_time": at, "received_at": at}], depot)
    harness.run()
    harness.advance_clock(10)
    harness.run()
    assert [row["what"] for row in harness.state("places")] == ["3 s ago", "2 s ago", "1 s ago"]


def test_of_rows(tmp_path: Path) -> None:
    """Rows that are no messages have no time, so they are refused."""
    harness = Harness(ordering(first=Depot("first"), rows=Depot("rows")), tmp_path)
    harness.create(pa.schema([("number", pa.int64())]), "rows")
    harness.append([message("a", 1)], "first")
    with pytest.raises(TopologyError, match="in_order needs messages, which the depot rows does not hold"):
        harness.run()
