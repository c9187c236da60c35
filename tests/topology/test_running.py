"""Several depots, steps in time, options, events, pause and rollback."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.topology.banks import bank, expected, transfers
from windrow import RawProducer
from windrow.delta.maintenance import DeltaRsMaintenance
from windrow.errors import (
    DepotChangedError,
    EngineUnavailableError,
    IncompatibleTableError,
    NotFoundError,
    RetriesExhaustedError,
    SettingsError,
    TopologyError,
    UsageError,
)
from windrow.model.results import CommittedMicrobatch
from windrow.runtime import driver
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.source.embedded import EmbeddedSource
from windrow.testing import DriverCrash, Harness, ManualClock, Point
from windrow.topology import ArrowState, Depot, Microbatch, Topology, open_topology, run_topology
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.running import rollback, set_option
from windrow.topology.verify import verify_topology
from windrow.topology.work import FunctionCalls, application

EMBEDDED = Settings(engine="embedded")


def counter(*depots: str, in_step: bool = False, **declared: Depot) -> Topology:
    """Return a topology that counts messages by depot, and notes the microbatch in which it first saw the depot."""
    named = {name: Depot(name) for name in depots} | declared
    topology = Topology("counter", depots=named, states="counted", in_step=in_step)
    topology.state("counts", key="name STRING", value="count BIGINT, first BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        for depot in microbatch.depots:
            rows = microbatch.rows(depot)
            named = pa.table({"name": [depot] * rows.num_rows, "id": [microbatch.id] * rows.num_rows})
            microbatch.state("counts").combine(named, count="count", first=("id", "first"))

    return topology


def count_states(harness: Harness) -> dict[str, int]:
    """Return the counts by depot."""
    return {row["name"]: row["count"] for row in harness.state("counts")}


def message(number: int = 0) -> dict[str, object]:
    """Return a message."""
    return {"payload": str(number)}


class TestDepots:
    def test_progress_is_kept_by_name(self, tmp_path: Path) -> None:
        """A depot that is added is read from its beginning, one that is taken away and comes back from where it was
        left: nothing is lost, nothing counts twice, and the history says which depots there were.
        """
        single = Harness(counter("a"), tmp_path)
        single.append([message()] * 3)
        single.run()
        both = Harness(counter("a", "b"), tmp_path)
        both.append([message()] * 2, "b")
        both.append([message()], "a")
        both.run()
        assert count_states(both) == {"a": 4, "b": 2}
        other = Harness(counter("b"), tmp_path)
        both.append([message()] * 5, "a")
        other.append([message()], "b")
        other.run()
        assert count_states(other) == {"a": 4, "b": 3}
        again = Harness(counter("a", "b"), tmp_path)
        again.run()
        assert count_states(again) == {"a": 9, "b": 3}
        kinds = [(row["kind"], row["depot"]) for row in again.history() if row["kind"] == "rules"]
        assert len(kinds) == 3
        assert sum(row["messages_read"] for row in again.history()) == 12

    def test_start_from(self, tmp_path: Path) -> None:
        """Each depot begins where it is told to."""
        harness = Harness(counter(a=Depot("a", start_from="version:2"), b=Depot("b")), tmp_path)
        for depot in ("a", "a", "b"):
            harness.append([message()], depot)
        harness.run()
        assert count_states(harness) == {"a": 1, "b": 1}

    def test_all_in_one_microbatch(self, tmp_path: Path) -> None:
        """A microbatch reads what is new in all depots, and of each no more than its share of the limit."""
        harness = Harness(counter("a", "b", "c"), tmp_path, max_messages=4)
        for depot in ("a", "a", "a", "b"):
            harness.append([message()] * 2, depot)
        harness.run()
        read = [(row["microbatch"], row["depot"], row["messages_read"]) for row in harness.history()]
        assert read == [(1, "a", 2), (1, "b", 2), (2, "a", 2), (3, "a", 2)]
        assert count_states(harness) == {"a": 6, "b": 2}

    def test_exchanged_while_it_catches_up(self, tmp_path: Path) -> None:
        """A depot that is exchanged between two microbatches for a copy which grew otherwise stops the run, and with
        the depot back it goes on.
        """
        harness = Harness(counter("a"), tmp_path, max_messages=1)
        harness.append([message(0)])
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        for number in range(1, 4):
            harness.append([message(number)])
            rows = DeltaTable(tmp_path / "a").to_pyarrow_table().slice(0, 1)
            write_deltalake(tmp_path / "copy", rows, mode="append")
        runner = harness.runner()

        def exchange(committed: CommittedMicrobatch) -> None:
            if committed.depots == {"a": 2}:
                (tmp_path / "a").rename(tmp_path / "away")
                (tmp_path / "copy").rename(tmp_path / "a")

        runner.driver.report = exchange
        with pytest.raises(DepotChangedError, match="was replaced by another table"):
            runner.once()
        assert count_states(harness) == {"a": 2}
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "away").rename(tmp_path / "a")
        harness.restart()
        harness.run()
        assert count_states(harness) == {"a": 4}


class TestInStep:
    def test_in_the_order_of_time(self, tmp_path: Path) -> None:
        """Depots are read version by version in the order of their times, whichever was written first."""
        harness = Harness(counter("a", "b", in_step=True), tmp_path)
        for _ in range(3):
            harness.append([message()], "a")
            harness.advance_clock(1)
            harness.append([message()], "b")
            harness.advance_clock(1)
        harness.run()
        harness.advance_clock(10)  # by which the idle clock of a has passed the last of b
        harness.run()
        assert [row["depot"] for row in harness.history() if row["kind"] == "data"] == ["a", "b"] * 3

    def test_priority(self, tmp_path: Path) -> None:
        """Depots that have reached the same time are read together, that with the smaller priority first."""
        topology, seen = counter(a=Depot("a", priority=2), b=Depot("b", priority=1), in_step=True), []

        @topology.function
        def see(microbatch: Microbatch) -> None:
            seen.append((microbatch.depots, microbatch.in_order()["depot"].to_pylist()))

        harness = Harness(topology, tmp_path)
        for depot in ("a", "b"):
            harness.append([message()], depot)
        harness.run()
        assert seen == [(("b", "a"), ["b", "a"])]

    def test_waits_for_the_other(self, tmp_path: Path) -> None:
        """What lies beyond the idle clock of the other depot waits until that has passed it."""
        harness = Harness(counter("a", "b", in_step=True), tmp_path)
        harness.append([message()], "b")
        harness.run()
        early = harness.clock.now()
        harness.advance_clock(60)
        harness.append([message()], "a")
        harness.clock.set(early)
        harness.run()
        assert count_states(harness) == {"b": 1}
        harness.advance_clock(61)
        harness.run()
        assert count_states(harness) == {"a": 1, "b": 1}


class TestOptions:
    def test_max_messages(self, tmp_path: Path) -> None:
        """An option that is set holds from the next microbatch on, and the history says what was used."""
        harness = Harness(counter("a"), tmp_path)
        for _ in range(2):
            harness.append([message()])
        harness.run()
        harness.set_option("max_messages", "1")
        for _ in range(3):
            harness.append([message()])
        harness.run()
        harness.set_option("max_messages", "default")
        for _ in range(3):
            harness.append([message()])
        harness.run()
        data = [(row["messages_read"], row["options_used"]) for row in harness.history() if row["kind"] == "data"]
        assert data == [(2, None), *[(1, '{"max_messages": "1"}')] * 3, (3, None)]

    def test_pauses(self, tmp_path: Path) -> None:
        """A run that goes on rests for trigger_interval where something was new, for idle_sleep where nothing was."""
        harness = Harness(counter("a"), tmp_path)
        harness.append([message()])
        harness.set_option("trigger_interval", "3s")
        harness.set_option("idle_sleep", "20s")
        runner = harness.runner()
        harness.clock.stop_after(2)
        runner.every(1_000_000)
        assert harness.clock.waits == [3_000_000, 20_000_000]

    @pytest.mark.parametrize(
        ("name", "value"), [("max_message", "1"), ("max_messages", "many"), ("idle_sleep", "long")]
    )
    def test_refused(self, tmp_path: Path, name: str, value: str) -> None:
        """An option that nobody knows, or a value that is none, is refused and not recorded."""
        harness = Harness(counter("a"), tmp_path)
        harness.append([message()])
        harness.run()
        with pytest.raises(SettingsError):
            harness.set_option(name, value)
        assert [row["kind"] for row in harness.history()] == ["data"]

    def test_phase_timeout(self, tmp_path: Path) -> None:
        """An attempt of which a phase took too long commits nothing."""
        topology = Topology("slow", depots=["a"], states="slow")
        topology.state("seen", value="count BIGINT")
        slow = [True]

        @topology.function
        def see(microbatch: Microbatch) -> None:
            if slow[0]:
                harness.advance_clock(5)
            microbatch.state("seen").combine(microbatch.rows("a"), count="count")

        harness = Harness(topology, tmp_path)
        harness.set_option("phase_timeout", "2s")
        harness.append([message()])
        with pytest.raises(RetriesExhaustedError, match="process took 5,000 ms"):
            harness.run()
        assert harness.state("seen") == [{"count": None}]
        slow[0] = False
        harness.run()
        assert harness.state("seen") == [{"count": 1}]

    def test_phase_timeout_that_is_too_short(self, tmp_path: Path) -> None:
        """If the limit is too short for any phase nothing is read, but a pause, a rollback and another limit go
        through.
        """
        harness = Harness(counter("a"), tmp_path)
        harness.append([message()])
        harness.set_option("phase_timeout", "1us")
        with open_topology(harness.topology, Settings(engine="embedded", max_retries=0), WallClock()) as runner:
            with pytest.raises(RetriesExhaustedError, match="Raise the option phase_timeout"):
                runner.once()
            runner.pause()
            runner.resume()
            rollback(runner, 0)
            set_option(runner, "phase_timeout", "default")
            runner.once()
        assert [row["kind"] for row in harness.history()] == ["option", "pause", "resume", "rollback", "option", "data"]

    @pytest.mark.parametrize("beside", [False, True], ids=["main", "thread"])
    def test_hanging_function(self, tmp_path: Path, beside: bool) -> None:
        """A function that hangs is cut off and the attempt made again, also in a thread that is not the main one."""
        topology = Topology("hanging", depots=["a"], states="hanging")
        topology.state("seen", value="count BIGINT")
        cut = []

        @topology.function
        def see(microbatch: Microbatch) -> None:
            microbatch.state("seen").combine(microbatch.rows("a"), count="count")
            begun = time.monotonic()
            while microbatch.attempt == 1 and time.monotonic() < begun + 60:
                time.sleep(0.01 if beside else 60)
            cut.append(microbatch.attempt)

        harness = Harness(topology, tmp_path, max_retries=1)
        harness.append([message()])
        harness.set_option("phase_timeout", "500ms")
        if beside:
            thread = threading.Thread(target=harness.run)
            thread.start()
            thread.join()
        else:
            harness.run()
        assert cut == [2]
        assert harness.state("seen") == [{"count": 1}]


class TestEvents:
    @pytest.mark.parametrize(("on_missed", "fired"), [("once", 3), ("skip", 2)])
    def test_fire_by_the_clock(self, tmp_path: Path, on_missed: str, fired: int) -> None:
        """An event fires when its time has come, without messages; of those that were missed one fires, or none."""
        topology = Topology("hours", depots=["a"], states="hours")
        topology.state("hours", key="name STRING", value="fired BIGINT")
        topology.event("hour", every="1h", on_missed=on_missed)  # type: ignore[arg-type]

        @topology.function
        def count(microbatch: Microbatch) -> None:
            fired = pa.table({"name": pa.array(microbatch.events, pa.string())})
            microbatch.state("hours").combine(fired, fired="count")

        harness = Harness(topology, tmp_path)
        harness.append([message()])
        harness.run()
        for hours_later in (1, 0.5, 0.5, 5.5):
            harness.advance_clock(hours_later * 3_600)
            harness.run()
        assert harness.state("hours") == [{"name": "hour", "fired": fired}]
        assert sum(row["events_fired"] == ["hour"] for row in harness.history()) == fired

    def test_changed_settings_fire_nothing(self, tmp_path: Path) -> None:
        """The commit of changed settings, which has no plan, leaves due events to a microbatch of their own."""
        topology = Topology("hours", depots=["a"], states="hours")
        topology.event("hour", every="1h")
        topology.function(noting_nothing)
        harness = Harness(topology, tmp_path)
        harness.append([message()])
        harness.run()
        harness.advance_clock(4_000)
        harness.topology.state("more", key="name STRING", value="count BIGINT")
        harness.restart()
        harness.run()
        fired = {row["kind"]: row["events_fired"] for row in harness.history()}
        assert (fired["rules"], fired["tick"]) == (None, ["hour"])


def noting_nothing(microbatch: Microbatch) -> None:
    """Change nothing."""


def test_pause(tmp_path: Path) -> None:
    """A paused topology reads nothing, also after a restart, until it is resumed."""
    harness = Harness(counter("a"), tmp_path)
    harness.append([message()])
    harness.pause()
    harness.restart()
    harness.run()
    assert harness.state("counts") == []
    harness.resume()
    harness.run()
    assert count_states(harness) == {"a": 1}


def test_pause_outlasts_what_is_done_meanwhile(tmp_path: Path) -> None:
    """An option that is set, and a rollback, leave a paused topology paused."""
    harness = Harness(counter("a"), tmp_path)
    harness.append([message()])
    harness.run()
    harness.pause()
    harness.set_option("max_messages", "1")
    harness.rollback(0)
    assert harness.run().paused
    assert harness.state("counts") == []


class TestRollback:
    def test_reads_anew(self, tmp_path: Path) -> None:
        """After a rollback the states are what they were, and what came since is read again: the result is the same."""
        rows = transfers(versions=5)
        harness = Harness(bank(), tmp_path, max_messages=20)
        for version in rows:
            harness.append(version)
        harness.run()
        after = harness.state("funds")
        harness.rollback(2)
        then, _ = expected(str(row["payload"]) for version in rows[:2] for row in version)
        assert {row["account"]: row["amount"] for row in harness.state("funds")} == then
        harness.restart()
        harness.run()
        assert harness.state("funds") == after
        kinds = [row["kind"] for row in harness.history()]
        assert kinds == [*["data"] * 5, "rollback", *["data"] * 3]

    def test_to_the_beginning(self, tmp_path: Path) -> None:
        """A rollback to microbatch 0 empties the states, also those of a depot that was added later."""
        single = Harness(counter("a"), tmp_path)
        single.append([message()])
        single.run()
        both = Harness(counter("a", "b"), tmp_path)
        both.append([message()], "b")
        both.run()
        both.rollback(0)
        assert both.state("counts") == []
        both.run()
        assert count_states(both) == {"a": 1, "b": 1}

    @pytest.mark.ci
    @pytest.mark.parametrize("start_from", ["end", "records-ago:1", "timestamp:2000-01-01T00:00:00Z", "days-ago:20000"])
    def test_to_before_a_depot_was_added(self, tmp_path: Path, start_from: str) -> None:
        """A depot that was added later is read again from where it began, wherever `start_from` would begin by now."""
        single = Harness(counter("a"), tmp_path)
        single.append([message()])
        single.run()
        added = counter(a=Depot("a"), b=Depot("b", start_from=start_from))
        writer = Harness(counter("a", "b"), tmp_path)
        writer.append([message()] * 2, "b")
        writer.append([message()] * 3, "b")
        both = Harness(added, tmp_path)
        both.run()
        for _ in range(2):
            writer.append([message()], "b")
            both.run()
        before = count_states(both)
        for _ in range(2):
            both.rollback(0)
            assert both.state("counts") == []
            both.run()
            assert count_states(both) == before

    def test_of_a_start_that_was_moved(self, tmp_path: Path) -> None:
        """A rollback to microbatch 0 goes back to where reading began, not to where it was first said to begin."""
        harness = Harness(counter("a"), tmp_path)
        harness.append([message()] * 2)
        harness.runner()
        moved = Harness(counter(a=Depot("a", start_from="end")), tmp_path)
        moved.runner()
        moved.append([message()])
        moved.run()
        moved.rollback(0)
        moved.restart()
        moved.run()
        assert count_states(moved) == {"a": 1}

    def test_of_a_depot_that_is_gone(self, tmp_path: Path) -> None:
        """A depot that was taken away before a rollback, and comes back, is read again from there."""
        both = Harness(counter("a", "b"), tmp_path)
        for depot in ("a", "b"):
            both.append([message()], depot)
        both.run()
        single = Harness(counter("a"), tmp_path)
        single.run()
        single.rollback(0)
        single.run()
        assert count_states(single) == {"a": 1}
        again = Harness(counter("a", "b"), tmp_path)
        again.run()
        assert count_states(again) == {"a": 1, "b": 1}

    def test_unknown(self, tmp_path: Path) -> None:
        """A microbatch that there was not is refused."""
        harness = Harness(counter("a"), tmp_path)
        harness.append([message()])
        harness.run()
        with pytest.raises(NotFoundError, match="no commit of microbatch 7"):
            harness.rollback(7)


def test_function_that_fails(tmp_path: Path) -> None:
    """A function that raises, or does what its state cannot take, changes nothing."""
    topology = Topology("failing", depots=["a"], states="failing")
    topology.state("good", value="seen BIGINT")
    topology.state("bad", key="name STRING", value="count BIGINT")
    acts: list[Callable[[ArrowState], object]] = [lambda state: state]

    @topology.function
    def good(microbatch: Microbatch) -> None:
        microbatch.state("good").combine(microbatch.rows("a"), seen="count")

    @topology.function
    def bad(microbatch: Microbatch) -> None:
        acts[0](microbatch.state("bad"))

    harness = Harness(topology, tmp_path)
    harness.append([message()])
    amounts = pa.table({"name": ["x"], "amount": [1]})
    for act, error_message in (
        (
            lambda state: state.put(pa.table({"name": ["x", "x"], "count": [1, 2]})),
            "put of the state bad has a key twi",
        ),
        (lambda state: state.put(pa.table({"name": [None], "count": [1]})), "a row whose key 'name' is NULL"),
        (lambda state: state.put(pa.table({"name": ["x"], "counts": [1]})), "lacks the column 'count'"),
        (lambda state: state.put(pa.table({"name": ["x"], "count": ["many"]})), "has values of other types"),
        (lambda state: state.put([{"name": "x", "count": 1}]), "put of the state bad got list"),
        (lambda state: state.combine({"name": ["x"]}, count="count"), "combine of the state bad got dict"),
        (lambda state: state.get(), "get of the state bad needs keys"),
        (lambda state: state.delete(pa.table({"key": ["x"]})), "lacks the column 'name'"),
        (lambda state: state.combine(amounts, counts="count"), "has no value 'counts'"),
        (lambda state: state.combine(amounts, count=("amounts", "sum")), "a column 'amounts' that does not exist"),
        (lambda state: state.combine(amounts, count=("amount", "median")), "cannot read count="),
        (lambda state: state.combine(amounts), "combines nothing"),
    ):
        acts[0] = act
        with pytest.raises(TopologyError, match=error_message):
            harness.run()
    assert harness.state("good") == [{"seen": None}]
    acts[0] = lambda state: state.put(pa.table({"name": ["x"], "count": [1]}))
    harness.run()
    assert harness.state("bad") == [{"name": "x", "count": 1}]
    assert harness.state("good") == [{"seen": 1}]


def raising(error: Exception) -> Topology:
    """Return a topology whose function raises an error."""
    topology = Topology("raising", depots=["a"], states="raising")
    topology.state("seen", value="count BIGINT")

    @topology.function
    def fail(microbatch: Microbatch) -> None:
        raise error

    return topology


class TestHarness:
    def test_error_of_a_function(self, tmp_path: Path) -> None:
        """What a function raised is the cause of the error of a run."""
        error = OSError("it does not answer")
        harness = Harness(raising(error), tmp_path)
        harness.append([message()])
        with pytest.raises(RetriesExhaustedError) as caught:
            harness.run()
        assert caught.value.__cause__ is error

    def test_refusal(self, tmp_path: Path) -> None:
        """An error that is not retried comes out of a run as it is, each time."""
        refused = TopologyError("no", "Never.")
        harness = Harness(raising(refused), tmp_path)
        harness.append([message()])
        for _ in range(2):
            with pytest.raises(TopologyError) as caught:
                harness.run()
            assert caught.value is refused
            assert refused.__cause__ is None

    def test_crash_is_not_retried(self, tmp_path: Path) -> None:
        """A driver that has crashed does not retry, whatever the settings say."""
        harness = Harness(counter("a"), tmp_path, max_retries=2)
        harness.append([message()])
        harness.crash_at(Point.BEFORE_COMMIT)
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
        harness.run()
        assert count_states(harness) == {"a": 1}


class TestNames:
    @pytest.mark.parametrize("name", ["open", "progress", "event", "closed", "1st", "a b", ""])
    def test_of_states(self, name: str) -> None:
        """A state has no name that Windrow needs itself, or that is none."""
        with pytest.raises(TopologyError):
            Topology("names", depots=["a"], states="names").state(name, key="k STRING", value="v BIGINT")

    def test_of_topologies_and_depots(self) -> None:
        """Neither has a topology or a depot; two depots of one last part need names."""
        for depots in ([], "data/a", ["x/a", "y/a"], {"a b": "data/a"}):
            with pytest.raises(TopologyError):
                Topology("names", depots=depots, states="names")
        with pytest.raises(TopologyError):
            Topology("no name", depots=["a"], states="names")

    @pytest.mark.parametrize(("every", "on_missed"), [("0s", "once"), ("1h", "never")])
    def test_of_events(self, every: str, on_missed: str) -> None:
        """An event needs an interval, and a word for what was missed."""
        with pytest.raises(TopologyError, match="event hour"):
            Topology("names", depots=["a"], states="names").event("hour", every=every, on_missed=on_missed)  # type: ignore[arg-type]

    def test_of_two_events(self) -> None:
        """A second event of one name is refused, and does not replace the first."""
        topology = Topology("names", depots=["a"], states="names")
        topology.event("hour", every="1h")
        with pytest.raises(TopologyError, match="there are two events or states 'hour'"):
            topology.event("hour", every="2h")
        assert topology.events["hour"].every == 3_600_000_000


class TestDeclaredLater:
    def test_state(self, tmp_path: Path) -> None:
        """A state that is declared later begins with what comes from then on; the others stay as they are."""
        before = Harness(counter("a"), tmp_path)
        before.append([message()])
        before.run()
        topology = counter("a")

        topology.state("latest", value="payload STRING, seen_in BIGINT")

        @topology.function
        def see(microbatch: Microbatch) -> None:
            last = microbatch.rows("a")["payload"].to_pylist()[-1]
            microbatch.state("latest").put(pa.table({"payload": [last], "seen_in": [microbatch.id]}))

        after = Harness(topology, tmp_path)
        after.append([message(7)])
        after.run()
        assert count_states(after) == {"a": 2}
        assert [row["payload"] for row in after.state("latest")] == ["7"]
        assert [row["kind"] for row in after.history()] == ["data", "rules", "data"]

    def test_other_type(self, tmp_path: Path) -> None:
        """A column that the table has in another type, of another state, is refused; a version of the state helps."""
        before = Harness(counter("a"), tmp_path)
        before.append([message()])
        before.run()
        topology = Topology("counter", depots=["a"], states="counted")
        topology.state("others", key="name STRING", value="count STRING")
        topology.function(noting_nothing)
        with pytest.raises(IncompatibleTableError, match="'count' of the table of states is int64"):
            Harness(topology, tmp_path).run()
        topology = Topology("counter", depots=["a"], states="counted")
        topology.state("others", key="name STRING", value="count STRING", version=2)
        topology.function(noting_nothing)
        Harness(topology, tmp_path).run()


def test_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage of settings that a program makes itself is set before a topology opens its tables."""
    monkeypatch.setenv("AWS_REGION", "")  # so that the test leaves none behind
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setattr("windrow.settings.settings.OPTIONS_SET", {})  # other tests of this process have storage too
    harness = Harness(counter("a"), tmp_path)
    harness.append([message()])
    run_topology(harness.topology, Settings(engine="embedded", storage_options={"AWS_REGION": "eu-north-1"}))
    assert os.environ["AWS_REGION"] == "eu-north-1"


@pytest.mark.parametrize(
    ("key", "value", "error_message"),
    [
        ("name", "count BIGINT", "declares no columns"),
        ("name DOUBLE", "count BIGINT", "is of type double"),
        ("name STRING", "name BIGINT", "is both key and value"),
        ("name STRING", "a BIGINT, a STRING", "twice"),
        ("name STRING", "token BIGINT", "Windrow's own table"),
        ("name STRING", "", "declares no columns"),
        ("id STRING", "count BIGINT", "cannot be called 'id'"),
        ("name STRING", "State BIGINT", "cannot be called 'State'"),
        ("name STRING", "deleted BOOLEAN", "cannot be called 'deleted'"),
        ("Token STRING", "count BIGINT", "'Token' is string here"),
        ("name STRING", "count INTERVAL", "not a type of a state"),
        ("name STRING", "total DECIMAL(40, 2)", "total DECIMAL.*: DECIMAL.40, 2. is not a type of a state"),
        ("name STRING", "total DECIMAL(0)", "not a type of a state"),
        ("name STRING", "total DECIMAL(2, 3)", "not a type of a state"),
        ("name STRING", "total DECIMAL(some)", "not a type of a state"),
        ("name STRING", "totals ARRAY<DECIMAL(40)>", "DECIMAL\\(40\\) is not a type of a state"),
        ("name STRING", "totals MAP<STRING>", "not a type of a state"),
        ("name STRING", "totals STRUCT<INT>", "not a type of a state"),
    ],
)
def test_refused_columns(key: str, value: str, error_message: str) -> None:
    """Columns that no table of states can have are refused where they are declared."""
    with pytest.raises(TopologyError, match=error_message):
        Topology("refused", depots=["a"], states="refused").state("state", key=key, value=value)


def test_kept_for_the_slowest_depot(tmp_path: Path) -> None:
    """Of several depots each knows how far it is read, by which maintenance tells what it may clean up."""
    harness = Harness(counter("a", "b"), tmp_path)
    for _ in range(5):
        harness.append([message()], "b")
    harness.append([message()], "a")
    harness.run()
    harness.append([message()], "a")
    table = DeltaTable(harness.topology.location)
    upkeep = DeltaRsMaintenance(table.table_uri, "ledger")
    later = harness.clock.now() + 1
    ids = {name: str(DeltaTable(depot.location).metadata().id) for name, depot in harness.topology.depots.items()}
    assert {name: upkeep.depot_version_before(later, id_) for name, id_ in ids.items()} == {"a": 1, "b": 5}
    assert upkeep.depot_version_before(later, "another") == -1
    assert upkeep.depot_version_before(0, ids["a"]) == -1


def test_attempts_have_the_same_messages(tmp_path: Path) -> None:
    """What comes while a microbatch fails is read by the next one: each attempt has the same id and messages."""
    topology = Topology("attempts", depots=["a"], states="attempts")
    topology.state("last", value="number BIGINT")
    seen: list[tuple[int, int, int]] = []

    @topology.function
    def note(microbatch: Microbatch) -> None:
        seen.append((microbatch.id, microbatch.attempt, microbatch.rows("a").num_rows))
        if microbatch.attempt < 3 and microbatch.id == 1:
            harness.append([message()])
            raise OSError("the other system does not answer")
        microbatch.state("last").put(pa.table({"number": [microbatch.id]}))

    harness = Harness(topology, tmp_path, max_retries=5)
    harness.append([message()] * 2)
    harness.run()
    assert seen == [(1, 1, 2), (1, 2, 2), (1, 3, 2), (2, 1, 2)]


def test_same_rows_after_the_driver_was_killed(tmp_path: Path) -> None:
    """An attempt of another process has the id, the time and the rows of the first one in each depot, whatever came
    meanwhile, and although a pause was recorded in between.
    """
    topology = Topology("attempts", depots=["a", "b"], states="attempts")
    topology.state("last", value="number BIGINT")
    seen: list[tuple[object, ...]] = []

    @topology.function
    def note(microbatch: Microbatch) -> None:
        rows = [microbatch.rows(depot).num_rows for depot in ("a", "b")]
        seen.append((microbatch.id, microbatch.clock, *rows))
        microbatch.state("last").put(pa.table({"number": [microbatch.id]}))

    harness = Harness(topology, tmp_path)
    harness.append([message()] * 2, "a")
    harness.append([message()], "b")
    for _ in range(2):
        harness.crash_at(Point.BEFORE_COMMIT)
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
        harness.append([message()] * 5, "b")
        harness.advance_clock(100)
        harness.pause()
        harness.resume()
    harness.run()
    assert len(seen) == 4
    assert len(set(seen[:3])) == 1
    assert seen[0][2:] == (2, 1)
    assert seen[3][2:] == (0, 10)


def chain(output: str = "doubled") -> Topology:
    """Return a topology that appends each message twice to an output."""
    topology = Topology("doubling", depots=["a"], states="doubling", outputs={output: output})

    @topology.function
    def double(microbatch: Microbatch) -> None:
        rows = microbatch.rows("a").select(["payload"])
        microbatch.append("doubled", rows)
        microbatch.append("doubled", rows)

    return topology


class TestOutputs:
    @pytest.mark.ci
    @pytest.mark.parametrize("point", Point)
    def test_once(self, tmp_path: Path, point: Point) -> None:
        """What is appended to an output is there once, wherever the driver fails, and whatever was recorded
        meanwhile.
        """
        harness = Harness(chain(), tmp_path)
        for number in range(4):
            harness.append([message(number)])
            harness.crash_at(point)
            with pytest.raises(DriverCrash):
                harness.run()
            harness.restart()
            harness.append([message(number + 100)])
            harness.set_option("max_messages", str(number + 1))
        harness.run()
        rows = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert sorted(rows) == sorted([str(number + more) for number in range(4) for more in (0, 100)] * 2)

    @pytest.mark.parametrize("point", [Point.AFTER_PROCESS, Point.AFTER_COMMIT])
    def test_rollback_after_a_failed_attempt(self, tmp_path: Path, point: Point) -> None:
        """After a failed attempt and a rollback each message reaches the output, and the history agrees with it."""
        harness = Harness(chain(), tmp_path, max_messages=1)
        for number in range(2):
            harness.append([message(number)])
            harness.run()
        harness.append([message(2)])
        harness.append([message(3)])
        harness.crash_at(point)
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
        rollback(harness.runner(), 1)
        harness.restart()
        harness.append([message(4), message(5)])
        harness.run()
        rows = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert set(rows) == {str(number) for number in range(6)}
        report = verify_topology(harness.topology, EMBEDDED, replay=True)
        assert (report.differences, len(report.findings)) == ((), point is Point.AFTER_PROCESS)

    def test_rollback_of_a_rollback(self, tmp_path: Path) -> None:
        """After a rollback to a microbatch that an earlier rollback took back, it counts again for verify and
        replay.
        """
        harness = Harness(chain(), tmp_path)
        for number in range(3):
            harness.append([message(number)])
            harness.run()
        for to in (1, 3):
            rollback(harness.runner(), to)
        harness.append([message(3)])
        harness.run()
        report = verify_topology(harness.topology, EMBEDDED, replay=True)
        assert (report.differences, report.findings) == ((), ())

    def test_restored_states(self, tmp_path: Path) -> None:
        """After a RESTORE of the states, new rows reach the output although the numbers of microbatches come again, and
        verify tells of the rows that the states no longer know.
        """
        harness = Harness(chain(), tmp_path, max_messages=1)
        for number in range(3):
            harness.append([message(number)])
        harness.run()
        DeltaTable(harness.topology.location).restore(1)
        harness.restart()
        harness.append([message(3)])
        harness.set_option("max_messages", "9")
        harness.run()
        rows = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert set(rows) == {"0", "1", "2", "3"}
        report = verify_topology(harness.topology, EMBEDDED)
        assert report.differences == ()
        assert "a RESTORE of the states took it back" in report.findings[-1]

    def test_verify_compares(self, tmp_path: Path) -> None:
        """An append that is missing in an output, or has other rows, is a difference."""
        harness = Harness(chain(), tmp_path)
        for number in range(2):
            harness.append([message(number)])
            harness.run()
        entry = max((tmp_path / "doubled" / "_delta_log").glob("*.json"))
        content = entry.read_text()
        assert verify_topology(harness.topology, EMBEDDED).differences == ()
        entry.write_text(re.sub('"num_added_rows": *2', '"num_added_rows":1', content))
        assert len(verify_topology(harness.topology, EMBEDDED).differences) == 1
        entry.unlink()
        assert len(verify_topology(harness.topology, EMBEDDED).differences) == 1

    def test_attempts_are_counted_across_processes(self, tmp_path: Path) -> None:
        """The attempt after a killed one has the next number, and the microbatch after it begins with the first."""
        harness = Harness(chain(), tmp_path)
        for _ in range(3):
            harness.append([message()])
            harness.crash_at(Point.BEFORE_COMMIT)
            with pytest.raises(DriverCrash):
                harness.run()
            harness.restart()
            harness.crash_at(Point.BEFORE_COMMIT)
            with pytest.raises(DriverCrash):
                harness.run()
            harness.restart()
            harness.run()
        assert [row["attempt"] for row in harness.history() if row["kind"] == "data"] == [3, 3, 3]

    def test_a_late_plan_appends_nothing(self, tmp_path: Path) -> None:
        """A driver that plans after another one has committed and forgotten the plan does not call its functions."""
        harness, rival = Harness(chain(), tmp_path), Harness(chain(), tmp_path)
        harness.append([message(1)])
        number, functions = FunctionAlgorithm.number, 0

        def late(self: FunctionAlgorithm, least: int) -> int:
            nonlocal functions
            functions += 1
            if functions == 1:
                rival.run()
            return number(self, least)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FunctionAlgorithm, "number", late)
            harness.run()
        payloads = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert payloads == ["1", "1"]

    @pytest.mark.parametrize("token", ["a", "b"])
    def test_a_late_plan_that_a_restore_brings_back(self, tmp_path: Path, token: str) -> None:
        """After a RESTORE brings back a plan that was saved too late, the output gets all rows."""
        harness, rival = Harness(chain(), tmp_path), Harness(chain(), tmp_path)
        harness.append([message(1)])
        number, calls = FunctionAlgorithm.number, 0

        def late(self: FunctionAlgorithm, least: int) -> int:
            nonlocal calls
            calls += 1
            transaction = number(self, least)
            if calls == 1:
                harness.append([message(2)])
                with pytest.MonkeyPatch.context() as other:
                    other.setattr(driver, "uuid4", lambda: SimpleNamespace(hex={"a": "b", "b": "a"}[token]))
                    rival.run()
            return transaction

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FunctionAlgorithm, "number", late)
            patch.setattr(driver, "uuid4", lambda: SimpleNamespace(hex=token))
            harness.run()
        DeltaTable(harness.topology.location).restore(0)
        again = Harness(chain(), tmp_path)
        again.run()
        payloads = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert {payload: payloads.count(payload) >= 2 for payload in ("1", "2")} == {"1": True, "2": True}
        recorded = [row for row in again.history() if row["kind"] == "data"]
        assert sum(part["rows"] for row in recorded for part in row["appended"]) == 4
        report = verify_topology(again.topology, Settings(engine="embedded"))
        assert report.ok, report.differences

    @pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=pytest.mark.spark)])
    def test_a_later_plan_at_the_last_moment(self, tmp_path: Path, engine: str, request: Any) -> None:
        """A microbatch whose rows the output skips, because a later plan appended first, is planned anew."""
        session = request.getfixturevalue("spark") if engine == "spark" else None
        harness = Harness(chain(), tmp_path, engine=engine, session=session, max_retries=2)
        append, calls = FunctionCalls.append, 0
        harness.append([message(1)])

        def later(self: FunctionCalls) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                place, other = self.topology.outputs["doubled"], pa.table({"payload": ["of another plan"]})
                transaction = application(self.plan.ledger, "doubled", self.sources), self.plan.transaction + 1
                self.plan.ledger.engine.append(self.plan.ledger.engine.place(place), [other], transaction, "{}")
            append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FunctionCalls, "append", later)
            harness.run()
        payloads = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert sorted(payloads) == ["1", "1", "of another plan"]
        assert [row["attempt"] for row in harness.history() if row["kind"] == "data"] == [1]

    def test_a_faster_driver(self, tmp_path: Path) -> None:
        """A driver that appends after another one has committed this microbatch and the next one has not failed."""
        harness, rival = Harness(chain(), tmp_path), Harness(chain(), tmp_path)
        append, calls = FunctionCalls.append, 0
        harness.append([message(1)])

        def late(self: FunctionCalls) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                rival.run()
                harness.append([message(2)])
                rival.run()
            append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FunctionCalls, "append", late)
            harness.run()
        payloads = DeltaTable(tmp_path / "doubled").to_pyarrow_table()["payload"].to_pylist()
        assert sorted(payloads) == ["1", "1", "2", "2"]

    def test_unknown(self, tmp_path: Path) -> None:
        """An output that was not declared is refused."""
        harness = Harness(chain("other"), tmp_path)
        harness.append([message()])
        with pytest.raises(TopologyError, match="there is no output 'doubled'"):
            harness.run()

    def test_no_table(self, tmp_path: Path) -> None:
        """Rows that are no table are refused, and none makes no version."""
        topology = Topology("out", depots=["a"], states="out", outputs={"copies": "copies"})
        appended: list[Any] = [[{"payload": "1"}], pa.table({"payload": pa.array([], pa.string())})]

        @topology.function
        def copy(microbatch: Microbatch) -> None:
            microbatch.append("copies", appended[0])

        harness = Harness(topology, tmp_path)
        harness.append([message()])
        with pytest.raises(TopologyError, match="append to copies got list"):
            harness.run()
        appended.pop(0)
        harness.run()
        assert not DeltaTable.is_deltatable(str(tmp_path / "copies"))


def noting(**depots: Depot) -> Topology:
    """Return a topology that keeps each payload, by depot."""
    topology = Topology("noting", depots=depots, states="noting")
    topology.state("notes", key="name STRING, note STRING", value="times BIGINT")

    @topology.function
    def note(microbatch: Microbatch) -> None:
        for depot in microbatch.depots:
            rows = microbatch.rows(depot)
            named = pa.table({"name": [depot] * rows.num_rows, "note": rows["payload"]})
            microbatch.state("notes").combine(named, times="count")

    return topology


def test_raw_depot(tmp_path: Path) -> None:
    """A raw depot beside one of messages: records are messages, what is none is rejected, rests wait in the table."""
    columns = {"source": "'s'", "key": "device", "type": "'t'", "payload": "value", "event_time": "received_at"}
    topology = noting(raw=Depot("raw", columns=columns), plain=Depot("plain"))
    fields = {"device": "string", "value": "string"}
    harness = Harness(topology, tmp_path, format={"type": "csv", "has_header": False, "fields": fields})
    with RawProducer(harness.topology.depots["raw"].location, source="s") as producer:
        producer.send(b"a,1\nb,2\nbad\nc,").result()
    harness.append([{"payload": "7"}], "plain")
    harness.run()
    assert [(row["name"], row["note"]) for row in harness.state("notes")] == [
        ("plain", "7"),
        ("raw", "1"),
        ("raw", "2"),
    ]
    with RawProducer(harness.topology.depots["raw"].location, source="s") as producer:
        producer.send(b"3\n").result()
    harness.restart()
    harness.run()
    assert ("raw", "3") in [(row["name"], row["note"]) for row in harness.state("notes")]
    assert sum(row["rejected"] for row in harness.history()) == 1


def test_several_raw_depots(tmp_path: Path) -> None:
    """Two raw depots with the same source keep their records apart: what is rejected, and what waits for its rest."""
    columns = {"source": "'s'", "key": "device", "type": "'t'", "payload": "value", "event_time": "received_at"}
    topology = noting(one=Depot("one", columns=columns), two=Depot("two", columns=columns))
    fields = {"device": "string", "value": "string"}
    harness = Harness(topology, tmp_path, format={"type": "csv", "has_header": False, "fields": fields})

    def send(name: str, content: bytes) -> None:
        with RawProducer(harness.topology.depots[name].location, source="s") as producer:
            producer.send(content).result()

    send("one", b"a,1\nbad\nb,")
    send("two", b"c,3\nbad\nd,")
    harness.run()
    send("two", b"4\n")
    send("one", b"2\n")
    harness.restart()
    harness.run()
    noted = [(row["name"], row["note"]) for row in harness.state("notes")]
    assert noted == [("one", "1"), ("one", "2"), ("two", "3"), ("two", "4")]
    assert sum(row["rejected"] for row in harness.history()) == 2
    table = DeltaTable(harness.topology.location)
    kept = table.to_pyarrow_table(filters=[("state", "in", ["rejected", "partial"])], columns=["state", "depot"])
    rejected = kept.filter(pc.equal(kept["state"], "rejected"))
    assert sorted(rejected["depot"].to_pylist()) == ["one", "two"]


def test_messages_that_no_rule_would_take(tmp_path: Path) -> None:
    """A function gets every message of its depot, also those without source, key or times, and from the future."""
    harness = Harness(noting(a=Depot("a")), tmp_path)
    far = datetime(2100, 1, 1, tzinfo=UTC)
    harness.append(
        [
            {"payload": "odd", "source": None, "key": None, "event_time": None, "received_at": None},
            {"payload": "odd", "received_at": far, "event_time": far},
            {"payload": None},
        ]
    )
    with pytest.raises(TopologyError, match="is NULL"):
        harness.run()
    other = Harness(counter("a"), tmp_path / "other")
    other.append([{"payload": None, "source": None, "key": None, "event_time": None, "received_at": None}])
    other.run()
    assert count_states(other) == {"a": 1}


def test_maintained_while_it_runs(tmp_path: Path) -> None:
    """A run that goes on looks after the table of states and each of the depots, and tells of them by their own
    places.
    """
    places = {name: str(tmp_path / name) for name in ("a", "b", "states")}
    topology = counter("a", "b").with_locations({name: Depot(places[name]) for name in ("a", "b")}, places["states"])
    harness = Harness(counter("a", "b"), tmp_path)
    for name in ("a", "b", "a", "b"):
        harness.append([message()], depot=name)
    settings = Settings(engine="embedded", run={"maintenance_interval": "1s"})
    clock = ManualClock(harness.clock.now(), stops_after=3)
    with open_topology(topology, settings, clock) as runner:
        summary = runner.every(2_000_000)
    assert {(maintenance.table, maintenance.location) for maintenance in summary.maintained} == {
        ("ledger", places["states"]),
        ("depot", places["a"]),
        ("depot", places["b"]),
    }
    assert [maintenance.files_added for maintenance in summary.maintained if maintenance.table == "depot"] == [1, 1]


class TestAccepted:
    """A depot version that deleted rows: the run goes on behind it, if it is told to."""

    def accept(self, harness: Harness, depot: str) -> None:
        """Accept the last version of a depot, which deletes rows, and run on."""
        version = DeltaTable(harness.topology.depots[depot].location).version()
        for _ in range(2):
            run_topology(harness.topology, EMBEDDED, clock=harness.clock, skip_version=(depot, version))

    def test_in_one_of_several_depots(self, tmp_path: Path) -> None:
        """What comes before and after the version is read once, as verify finds, and a replay accepts it again."""
        harness = Harness(counter("a", "b"), tmp_path)
        harness.append([message()] * 3, "a")
        harness.append([message()] * 2, "b")
        harness.run()
        harness.append([message()] * 4, "a")
        DeltaTable(harness.topology.depots["a"].location).delete("payload = '0'")
        with pytest.raises(DepotChangedError, match="--skip-version DEPOT:"):
            harness.run()
        self.accept(harness, "a")
        harness.append([message()] * 5, "a")
        harness.run()
        assert count_states(harness) == {"a": 12, "b": 2}
        report = verify_topology(harness.topology, EMBEDDED, replay=True)
        assert (report.ok, report.findings, sum(books.depot_row_count or 0 for books in report.depots)) == (
            True,
            (),
            14,
        )

    def test_after_an_attempt(self, tmp_path: Path) -> None:
        """An attempt at a microbatch that failed is made again first: its plan reads rows before the version."""
        harness = Harness(counter("a", "b"), tmp_path)
        harness.append([message()] * 3, "a")
        harness.append([message()] * 2, "b")
        harness.crash_at(Point.BEFORE_COMMIT)
        with pytest.raises(DriverCrash):
            harness.run()
        DeltaTable(harness.topology.depots["a"].location).delete("payload = '0'")
        self.accept(harness, "a")
        assert count_states(harness) == {"a": 3, "b": 2}

    def test_without_a_name(self, tmp_path: Path) -> None:
        """Of several depots one must be named."""
        harness = Harness(counter("a", "b"), tmp_path)
        harness.append([message()], "a")
        harness.append([message()], "b")
        with (
            open_topology(harness.topology, EMBEDDED, harness.clock) as runner,
            pytest.raises(UsageError, match="one depot"),
        ):
            runner.skip_version(1)


def test_a_bug_is_not_retried(tmp_path: Path) -> None:
    """A programming error in a function ends the run at once, with the place; an error of the system is tried again."""
    topology, calls = Topology("buggy", depots=["a"], states="buggy"), []

    @topology.function
    def fail(microbatch: Microbatch) -> None:
        calls.append(microbatch.attempt)
        if len(calls) == 1:
            raise OSError("for a while")
        "1" + microbatch.id  # type: ignore[operator]

    harness = Harness(topology, tmp_path, max_retries=5)
    harness.append([message()])
    with pytest.raises(TopologyError, match=r"the function fail failed: TypeError: .* in line \d+ of .*test_running"):
        harness.run()
    assert calls == [1, 2]


def test_history_of_each_depot(tmp_path: Path) -> None:
    """The history says of each depot how its own columns were read."""
    mapped = {"source": "'b'", "key": "name", "type": "'t'", "event_time": "at", "received_at": "at", "payload": "name"}
    harness = Harness(counter("a", b=Depot("b", columns=mapped)), tmp_path)
    harness.create(pa.schema([("name", pa.string()), ("at", pa.timestamp("us", "UTC"))]), "b")
    harness.append([message()], "a")
    harness.append([{"name": "x", "at": datetime(2026, 1, 1, tzinfo=UTC)}], "b")
    harness.run()
    columns = {row["depot"]: row["column_mapping"] for row in harness.history()}
    assert columns == {"a": None, "b": json.dumps(mapped, sort_keys=True)}


def test_streamed_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A depot that only `foreachBatch` can read, as without a change feed on Spark Connect, is refused beside
    others.
    """
    monkeypatch.setattr(EmbeddedSource, "streams", lambda self, after: True)
    harness = Harness(counter("a", "b"), tmp_path)
    harness.append([message()], "a")
    with pytest.raises(EngineUnavailableError, match="several depots needs the change feed of the depot a"):
        harness.run()
