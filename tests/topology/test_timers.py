"""Timers that functions set, keys with a time to live, and events among the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import one_in
from tests.engine.factory import EngineFactory
from windrow.errors import TopologyError
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, Point
from windrow.testing.clock import NOW, ManualClock
from windrow.topology import Depot, Microbatch, SparkMicrobatch, Topology
from windrow.topology.replay import replay_topology
from windrow.topology.status import status_of
from windrow.topology.verify import verify_topology

EMBEDDED = Settings(engine="embedded")
BEGIN = datetime.fromtimestamp(NOW / 1_000_000, UTC)
COMMANDS = pa.schema([("key", pa.string()), ("seconds", pa.int64()), ("note", pa.string())])


def alarms(cancel_after: str | None = None, frames: bool = False) -> Topology:
    """Return a topology that sets a timer so many seconds from now, cancels it without them, and notes what fires."""
    topology = Topology("alarms", depots=["commands"], states="alarms")
    topology.timer("alarm", key="key STRING", payload="note STRING", cancel_after=cancel_after)
    topology.state("fired", key="key STRING, at TIMESTAMP", value="note STRING, times BIGINT")

    def rows_of(microbatch: Any, timer: str) -> pa.Table:
        return microbatch.due(timer) if isinstance(microbatch, Microbatch) else microbatch.due(timer).toArrow()

    def set_them(microbatch: Any, rows: pa.Table, convert: Callable[[pa.Table], Any]) -> None:
        fired = rows_of(microbatch, "alarm").rename_columns({"due": "at"})
        microbatch.state("fired").combine(convert(fired), note=("note", "max"), times="count")
        set_, cancelled = rows.filter(pc.is_valid(rows["seconds"])), rows.filter(pc.is_null(rows["seconds"]))
        due = pc.add(pa.scalar(microbatch.clock), pc.multiply(set_["seconds"], 1_000_000).cast(pa.duration("us")))
        microbatch.schedule("alarm", convert(pa.table({"key": set_["key"], "due": due, "note": set_["note"]})))
        microbatch.cancel("alarm", convert(cancelled.select(["key"])))

    if frames:

        @topology.function
        def set_frames(microbatch: SparkMicrobatch) -> None:
            from windrow.rows.frame import frame_of

            rows = microbatch.rows("commands")
            set_them(
                microbatch,
                rows.toArrow().cast(pa.schema([*COMMANDS, ("version", pa.int64())])),
                lambda table: frame_of(rows.sparkSession, table),
            )

    else:

        @topology.function
        def set_rows(microbatch: Microbatch) -> None:
            set_them(microbatch, microbatch.rows("commands"), lambda table: table)

    return topology


class Model:
    """What the timers of `alarms` do, one by one."""

    def __init__(self) -> None:
        self.now, self.set, self.fired = 0, dict[str, int](), list[tuple[str, int]]()

    def run(self, commands: Mapping[str, int | None]) -> None:
        """Fire what is due, then set and cancel; what is set in the past fires at once."""
        self._fire()
        for key, seconds in commands.items():
            self.set.pop(key, None)
            if seconds is not None:
                self.set[key] = self.now + seconds
        self._fire()

    def _fire(self) -> None:
        due = sorted((at, key) for key, at in self.set.items() if at <= self.now)
        self.fired += [(key, at) for at, key in due]
        for _, key in due:
            del self.set[key]


def run(harness: Harness, commands: Mapping[str, int | None], depot: str = "commands") -> None:
    """Append commands in one version, if there are any, and run."""
    if commands:
        rows = [{"key": key, "seconds": seconds, "note": f"{key}!"} for key, seconds in commands.items()]
        harness.append(pa.Table.from_pylist(rows, COMMANDS), depot)
    harness.run()


def fired(harness: Harness) -> list[tuple[str, int]]:
    """Return which timers fired, so many times, with the second at which they were due, in the order of these."""
    rows = sorted((row["at"], row["key"], row["times"]) for row in harness.state("fired"))
    return [(key, round((at - BEGIN).total_seconds())) for at, key, times in rows for _ in range(times)]


def new(tmp_path: Path, topology: Topology | None = None, **more: Any) -> Harness:
    """Return a harness whose clock begins at a fixed time."""
    harness = Harness(topology or alarms(), tmp_path, clock=ManualClock(NOW), **more)
    harness.create(COMMANDS, "commands")
    return harness


STEPS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.integers(-5, 60)), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(steps=STEPS)
@one_in(4)
def test_each_fires_once_at_its_time(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """Timers that are set, moved to earlier and later times, and cancelled, fire as in the model, live and replayed."""
    harness, model = new(tmp_path_factory.mktemp("timers")), Model()
    for seconds, commands in steps:
        harness.advance_clock(seconds)
        model.now += seconds
        run(harness, commands)
        model.run(commands)
    assert fired(harness) == sorted(model.fired, key=lambda firing: firing[::-1])
    assert {row["key"] for row in harness.state("alarm")} == set(model.set)
    assert replay_topology(harness.topology, EMBEDDED).equal
    assert verify_topology(harness.topology, EMBEDDED).ok


def test_moved_and_cancelled(tmp_path: Path) -> None:
    """The second time of a key counts, earlier or later; a cancelled timer does not fire."""
    harness = new(tmp_path)
    run(harness, {"earlier": 100, "later": 10, "gone": 10})
    run(harness, {"earlier": 5, "later": 50, "gone": None})
    for _ in range(12):
        harness.advance_clock(5)
        run(harness, {})
    assert fired(harness) == [("earlier", 5), ("later", 50)]
    assert [row["events_fired"] for row in harness.history() if row["events_fired"]] == [["alarm"], ["alarm"]]


@pytest.mark.parametrize(("cancel_after", "expected"), [(None, ["a", "b"]), ("10s", ["b"])])
def test_after_downtime(tmp_path: Path, cancel_after: str | None, expected: list[str]) -> None:
    """What fell due while nothing ran fires once, or not at all if it is too late."""
    harness = new(tmp_path, alarms(cancel_after))
    run(harness, {"a": 5, "b": 95})
    harness.advance_clock(100)
    run(harness, {})
    assert [key for key, _ in fired(harness)] == expected
    assert harness.state("alarm") == []


@pytest.mark.parametrize("point", Point)
def test_crash_where_it_fires(tmp_path: Path, point: Point) -> None:
    """A timer whose microbatch fails fires in the next attempt, and once."""
    harness = new(tmp_path)
    run(harness, {"a": 10, "b": 10, "c": 50})
    harness.advance_clock(20)
    harness.crash_at(point)
    with pytest.raises(DriverCrash):
        run(harness, {"d": 1})
    harness.restart()
    harness.advance_clock(5)
    run(harness, {})
    assert [key for key, _ in fired(harness)] in (["a", "b"], ["a", "b", "d"])
    harness.advance_clock(50)
    run(harness, {})
    assert [key for key, _ in fired(harness)] == ["a", "b", "d", "c"]


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
def test_read_after_a_tick_that_crashed(tmp_path: Path, point: Point) -> None:
    """The run that repeats a tick of an earlier attempt also reads what came since."""
    harness = new(tmp_path)
    run(harness, {"a": 10})
    harness.advance_clock(20)
    harness.crash_at(point)
    with pytest.raises(DriverCrash):
        harness.run()
    harness.restart()
    run(harness, {"b": 0})
    assert [key for key, _ in fired(harness)] == ["a", "b"]
    assert harness.state("alarm") == []


def test_rollback(tmp_path: Path) -> None:
    """A timer that fired in a microbatch that is taken back is set again, and fires again."""
    harness = new(tmp_path)
    run(harness, {"a": 10})
    harness.advance_clock(20)
    run(harness, {})
    harness.rollback(1)
    assert [row["key"] for row in harness.state("alarm")] == ["a"]
    harness.restart()
    run(harness, {})
    assert fired(harness) == [("a", 10)]
    assert replay_topology(harness.topology, EMBEDDED).equal


@pytest.mark.parametrize("ticks", ["fresh", "merged"])
def test_replay_of_changed_timers(tmp_path: Path, ticks: Any) -> None:
    """In a replay with fresh ticks timers fire exactly when they are due, also those that the history does not have."""
    harness = new(tmp_path)
    run(harness, {"a": 10, "b": 30})
    for _ in range(2):
        harness.advance_clock(40)
        run(harness, {"c": 10})
    again = replay_topology(harness.topology, EMBEDDED, ticks=ticks)
    assert again.equal
    assert again.events_fired == {"alarm": 3 if ticks == "fresh" else 2}


def test_status_tells_the_next_one(tmp_path: Path) -> None:
    """Status says when the first timer is due, not before the latest of moved ones fired; nothing if none is set."""
    harness = new(tmp_path)
    run(harness, {"a": 60, "b": 90})
    due = status_of(harness.topology, NOW).events_due_at["alarm"]
    assert datetime.fromisoformat(due) == BEGIN + timedelta(seconds=60)
    harness.advance_clock(60)
    run(harness, {"b": None})
    harness.advance_clock(60)
    run(harness, {})
    assert status_of(harness.topology, NOW).events_due_at == {}


def test_time_to_live(tmp_path: Path) -> None:
    """A key is deleted when it was not written for as long as its time to live; a write that changes nothing counts."""
    topology = Topology("seen", depots=["commands"], states="seen")
    topology.state("seen", key="key STRING", value="note STRING", ttl="60s")

    @topology.function
    def see(microbatch: Microbatch) -> None:
        microbatch.state("seen").put(microbatch.rows("commands").select(["key", "note"]))

    harness = new(tmp_path, topology)
    run(harness, {"a": 0, "b": 0})
    harness.advance_clock(50)
    run(harness, {"a": 0})
    harness.advance_clock(20)
    run(harness, {})
    rows = harness.state("seen")
    assert [(row["key"], row["due"]) for row in rows] == [("a", BEGIN + timedelta(seconds=110))]
    harness.advance_clock(60)
    run(harness, {})
    assert harness.state("seen") == []
    for ticks in ("reuse", "fresh"):
        assert replay_topology(harness.topology, EMBEDDED, ticks=ticks).equal  # type: ignore[arg-type]


def message(text: str, seconds: float, **other: Any) -> dict[str, Any]:
    """Return a message that was stamped so many seconds after the clock of the harness began."""
    return {"payload": text, "received_at": BEGIN + timedelta(seconds=seconds), **other}


def noting(depots: Mapping[str, Depot], in_step: bool, frames: bool = False) -> Topology:
    """Return a topology that sets a timer for each payload that is a number, and notes all in order."""
    topology = Topology("noting", depots=depots, states="noting", in_step=in_step)
    topology.timer("wake", key="name STRING, number BIGINT")
    topology.state("places", key="microbatch BIGINT, place BIGINT", value="what STRING")

    def note(microbatch: Any, rows: pa.Table, convert: Callable[[pa.Table], Any]) -> None:
        numbers = pa.array(range(1_000 * microbatch.step, 1_000 * microbatch.step + rows.num_rows), pa.int64())
        what = pc.coalesce(rows["payload"], rows["key"])
        noted = {"microbatch": pa.repeat(microbatch.id, rows.num_rows), "place": numbers, "what": what}
        microbatch.state("places").put(convert(pa.table(noted)))
        seconds = [int(row) for row in rows["payload"].to_pylist() if row and row.isdecimal()]
        due = [BEGIN + timedelta(seconds=second) for second in seconds]
        timers = {"name": pa.array(["w"] * len(seconds), pa.string()), "number": pa.array(seconds, pa.int64())}
        microbatch.schedule("wake", convert(pa.table(timers | {"due": pa.array(due, pa.timestamp("us", "UTC"))})))

    if frames:

        @topology.function
        def note_frames(microbatch: SparkMicrobatch) -> None:
            from windrow.rows.frame import frame_of

            rows = microbatch.in_order()
            note(microbatch, rows.toArrow(), lambda table: frame_of(rows.sparkSession, table))

    else:

        @topology.function
        def note_rows(microbatch: Microbatch) -> None:
            note(microbatch, microbatch.in_order(), lambda table: table)

    return topology


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("frames", [False, True], ids=["arrow", "frames"])
def test_among_messages(tmp_path: Path, engine: EngineFactory, frames: bool) -> None:
    """A timer comes at its own time among the messages, before those of the same time, with its key."""
    if frames and engine.session is None:
        pytest.skip("frames need Spark")
    depots = {"first": Depot("first"), "second": Depot("second")}
    more = {"engine": engine.name, "session": engine.session, **engine.more}
    harness = Harness(noting(depots, True, frames), tmp_path, clock=ManualClock(NOW), **more)
    harness.append([message("5", 1), message("3", 1), message("99", 1)], "first")
    harness.append([message("2nd", 1.5)], "second")
    harness.append([message("before", 2), message("same", 3), message("between", 4), message("after", 6)], "first")
    harness.append([message("late", 7)], "second")
    harness.run()
    harness.advance_clock(20)
    harness.run()
    places = [row["what"] for row in harness.state("places")]
    assert places == ["3", "5", "99", "2nd", "before", "w/3", "same", "between", "w/5", "after", "late"]
    assert [row["number"] for row in harness.state("wake")] == [99]
    if not frames:
        assert replay_topology(harness.topology, EMBEDDED).equal


def sessions(min_delay: str = "0s") -> Topology:
    """Return a topology in step that counts the messages of each key until none comes for ten seconds."""
    topology = Topology("sessions", depots=["clicks"], states="sessions", in_step=True)
    topology.state("running", key="key STRING", value="begin TIMESTAMP, until TIMESTAMP, clicks BIGINT")
    topology.state("ended", key="key STRING, begin TIMESTAMP", value="until TIMESTAMP, clicks BIGINT")
    topology.timer("end", key="key STRING", min_delay=min_delay)

    @topology.function
    def count(microbatch: Microbatch) -> None:
        running, over = microbatch.state("running"), microbatch.due("end").select(["key"])
        microbatch.state("ended").put(running.get(over))
        running.delete(over)
        clicks = microbatch.rows("clicks")
        at = {name: ("received_at", operation) for name, operation in (("begin", "min"), ("until", "max"))}
        running.combine(clicks, clicks="count", **at)
        active = running.get(pa.table({"key": clicks["key"].unique()}))
        due = pc.add(active["until"], timedelta(seconds=10))
        microbatch.schedule("end", pa.table({"key": active["key"], "due": due}))

    return topology


def expected_sessions(clicks: list[tuple[str, int]]) -> list[tuple[str, int, int, int]]:
    """Return the sessions of clicks, one by one: key, first and last second, clicks."""
    sessions_by_key: dict[str, list[list[int]]] = {}
    for key, at in clicks:
        of_key = sessions_by_key.setdefault(key, [])
        if of_key and at < of_key[-1][1] + 10:
            of_key[-1] = [of_key[-1][0], at, of_key[-1][2] + 1]
        else:
            of_key.append([at, at, 1])
    return sorted((key, *session) for key, of_key in sessions_by_key.items() for session in of_key)


@pytest.mark.ci
@given(
    clicks=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 12), max_size=4),
    runs=st.lists(st.booleans(), min_size=5, max_size=5),
    min_delay=st.sampled_from(["0s", "10s"]),
)
@example(clicks=[("a", 0), ("a", 12)], cuts=[], runs=[True] * 5, min_delay="0s")  # two sessions of one version
@one_in(4)
def test_any_cutting_in_step(
    tmp_path_factory: pytest.TempPathFactory, clicks: Any, cuts: Any, runs: Any, min_delay: str
) -> None:
    """However messages are cut into versions and microbatches, the sessions are those of the messages one by one."""
    seconds, log = 0, list[tuple[str, int]]()
    for key, later in clicks:
        log.append((key, seconds := seconds + later))
    harness = Harness(sessions(min_delay), tmp_path_factory.mktemp("sessions"), clock=ManualClock(NOW))
    begin = 0
    for end, runs_now in zip([*sorted(cuts), len(log)], runs, strict=False):
        harness.append([message("", at, key=key) for key, at in log[begin:end]])
        begin = max(begin, end)
        if runs_now:
            harness.run()
    harness.run()
    harness.advance_clock(1_000)
    harness.run()
    rows = [(row["key"], row["begin"], row["until"], row["clicks"]) for row in harness.state("ended")]
    ended = [(key, *(round((at - BEGIN).total_seconds()) for at in times), clicks) for key, *times, clicks in rows]
    assert sorted(ended) == expected_sessions(log)
    assert harness.state("running") == harness.state("end") == []
    assert replay_topology(harness.topology, EMBEDDED).equal


def test_replay_in_step(tmp_path: Path) -> None:
    """A replay fires the timers that fired, also where a slow function held the clocks of silent depots up."""
    topology, clock = noting({"first": Depot("first")}, True), ManualClock(NOW)

    @topology.function
    def slow(microbatch: Microbatch) -> None:
        clock.advance(6_000_000 * len(microbatch.depots))

    harness = Harness(topology, tmp_path, clock=clock)
    harness.append([message("5", 1), message("8", 1)], "first")
    harness.run()
    for seconds in (4.5, 20):
        harness.advance_clock(seconds)
        harness.run()
    assert [row["events_fired"] for row in harness.history()] == [None, ["wake"], ["wake"]]
    assert replay_topology(harness.topology, EMBEDDED).equal


@pytest.mark.spark
@pytest.mark.slow_on_spark
@pytest.mark.parametrize("few", [20_000, 0])
def test_frames(tmp_path: Path, spark_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Functions on DataFrames set timers, cancel them and get those that fire, also where executors have the rows."""
    from windrow.topology import frame_state

    monkeypatch.setattr(frame_state, "FEW_ROWS", few)
    more = {"engine": "spark", "session": spark_engine.session, **spark_engine.more}
    harness, model = new(tmp_path, alarms(frames=True), **more), Model()
    for seconds, commands in [(0, {"a": 10, "b": 30, "c": 40}), (15, {"b": 5, "c": None}), (10, {"d": 100})]:
        harness.advance_clock(seconds)
        model.now += seconds
        run(harness, commands)
        model.run(commands)
    assert fired(harness) == model.fired == [("a", 10), ("b", 20)]
    assert {row["key"] for row in harness.state("alarm")} == set(model.set) == {"d"}


class TestRefused:
    def test_no_time(self, tmp_path: Path) -> None:
        """A timer needs a time."""
        topology = Topology("alarms", depots=["commands"], states="alarms")
        topology.timer("alarm", key="key STRING")

        @topology.function
        def set_it(microbatch: Microbatch) -> None:
            microbatch.schedule("alarm", pa.table({"key": ["a"], "due": pa.nulls(1, pa.timestamp("us", "UTC"))}))

        harness = new(tmp_path, topology)
        with pytest.raises(TopologyError, match="put of the state alarm has a row whose 'due' is NULL"):
            run(harness, {"a": 1})

    @pytest.mark.parametrize("what", ["due", "schedule", "cancel"])
    def test_state(self, tmp_path: Path, what: str) -> None:
        """A state is no timer."""
        topology = Topology("alarms", depots=["commands"], states="alarms")
        topology.state("notes", key="key STRING", value="note STRING")

        @topology.function
        def ask(microbatch: Microbatch) -> None:
            arguments = () if what == "due" else (pa.table({"key": ["a"]}),)
            getattr(microbatch, what)("notes", *arguments)

        harness = new(tmp_path, topology)
        with pytest.raises(TopologyError, match="'notes' is a state, not a timer"):
            run(harness, {"a": 1})

    def test_declaration(self) -> None:
        """Names are given once, a time to live is an interval, and `due` is a column of Windrow's."""
        topology = Topology("names", depots=["a"], states="names")
        topology.timer("one")
        with pytest.raises(TopologyError, match="there are two states or events 'one'"):
            topology.state("one", value="count BIGINT")
        with pytest.raises(TopologyError, match="there are two events or states 'one'"):
            topology.event("one", every="1h")
        with pytest.raises(TopologyError, match="ttl='0s' is not an interval"):
            topology.state("two", value="count BIGINT", ttl="0s")
        with pytest.raises(TopologyError, match="a column cannot be called 'due'"):
            topology.state("three", value="due TIMESTAMP")
