"""A change of a state's columns: what is added at once, what needs a version, and what of before stays readable."""

from __future__ import annotations

import json
import signal
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.conftest import factory_of
from tests.engine.factory import EngineFactory
from tests.faults.trials.processes import Child
from windrow.errors import DepotChangedError, IncompatibleTableError, TopologyError
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, Point
from windrow.topology import Depot, Microbatch, SparkMicrobatch, Topology
from windrow.topology.replay import replay_topology
from windrow.topology.verify import verify_topology

EMBEDDED = Settings(engine="embedded")
ROWS = pa.schema([("name", pa.string()), ("cents", pa.int64())])


def sums(**declared: Any) -> Topology:
    """Return a topology that adds up cents by name, and counts rows in a state that stays as it is."""
    state = {"key": "name STRING", "value": "total BIGINT"} | declared
    topology = Topology("sums", depots=["paid"], states="sums")
    topology.state("sums", **state)
    topology.state("rows", value="rows BIGINT")
    columns = topology.states["sums"].columns

    @topology.function
    def add(microbatch: Microbatch) -> None:
        rows = microbatch.rows("paid")
        microbatch.state("rows").combine(rows, rows="count")
        if "initial" in columns.names:
            rows = rows.append_column("initial", pc.utf8_slice_codeunits(rows["name"], 0, 1))
        total = rows["cents"].cast(columns.field("total").type)
        if pa.types.is_floating(total.type):
            total = pc.divide(total, 100)
        extra = {"times": "count"} if "times" in columns.names else {}
        microbatch.state("sums").combine(rows.append_column("amount", total), total=("amount", "sum"), **extra)

    return topology


def in_euros(rows: pa.Table) -> pa.Table:
    """Return sums in euros from those in cents."""
    return rows.set_column(1, "total", pc.divide(rows["total"].cast(pa.float64()), 100))


def with_times(**declared: Any) -> Topology:
    """Return the topology with a column that counts from 100 on."""
    return sums(value="total BIGINT, times BIGINT", initial={"times": 100}, **declared)


def euros() -> Topology:
    """Return the topology with sums in euros."""
    return sums(value="total DOUBLE", version=2, migrate=in_euros)


def begun(directory: Path, topology: Topology | None = None, **values: Any) -> Harness:
    """Return a harness whose topology has read a version."""
    harness = Harness(topology or sums(), directory, **values)
    harness.create(ROWS, "paid")
    pay(harness, a=100, b=250)
    return harness


def pay(harness: Harness, **cents: int) -> None:
    """Append a row for each name in one version, and run."""
    harness.append([{"name": name, "cents": amount} for name, amount in cents.items()], "paid")
    harness.run()


def migrations(harness: Harness) -> list[list[str]]:
    """Return the states that each microbatch of the history migrated."""
    return [row["migrated"] for row in harness.history() if row["migrated"]]


class TestNewColumns:
    def test_start_as_initial_values(self, tmp_path: Path) -> None:
        """A new column has its initial value in the rows that exist and in new ones; the history says so once."""
        begun(tmp_path)
        later = Harness(with_times(), tmp_path)
        later.run()
        assert [row["times"] for row in later.state("sums")] == [100, 100]
        pay(later, a=1, c=2)
        assert later.state("sums") == [
            {"name": "a", "total": 101, "times": 101},
            {"name": "b", "total": 250, "times": 100},
            {"name": "c", "total": 2, "times": 101},
        ]
        assert migrations(later) == [["sums"]]
        assert verify_topology(later.topology, EMBEDDED, replay=True).ok

    def test_without_an_initial_value(self, tmp_path: Path) -> None:
        """A new column without an initial value is NULL, and no row is written for it."""
        harness = begun(tmp_path)
        before = len(harness.topology.read("sums"))
        later = Harness(sums(value="total BIGINT, note STRING"), tmp_path)
        later.run()
        assert [row["note"] for row in later.state("sums")] == [None] * before
        [row] = [row for row in later.history() if row["migrated"]]
        assert verify_topology(later.topology, EMBEDDED).ok
        assert row["kind"] == "rules"

    def test_program_of_before_stops(self, tmp_path: Path) -> None:
        """A program that lacks the column, started again or at work all the time, stops and changes nothing."""
        old = begun(tmp_path)
        new = Harness(with_times(), tmp_path)
        pay(new, a=1)
        before = new.state("sums")
        for _ in range(2):
            with pytest.raises(
                IncompatibleTableError, match="a column 'times', which the topology does not declare"
            ) as refused:
                pay(old, a=1)
            assert "version=2" in refused.value.hint
            old.restart()
        assert new.state("sums") == before
        new.run()
        assert new.state("sums")[0] == {"name": "a", "total": 103, "times": 103}


class TestVersions:
    @pytest.mark.parametrize(
        ("declared", "error_message"),
        [
            ({"value": "total DOUBLE"}, "a column 'total' of type int64, but the topology declares double"),
            ({"value": "amount BIGINT"}, "a column 'total', which the topology does not declare"),
            ({"key": "name STRING, day BIGINT"}, r"the key \(name\), but the topology declares \(name, day\)"),
            ({"key": "", "value": "name STRING, total BIGINT"}, r"the key \(name\), but the topology declares \(\)"),
        ],
    )
    def test_undeclared(self, tmp_path: Path, declared: dict[str, Any], error_message: str) -> None:
        """Another type, another key, or a column that is gone is refused before anything is written; the hint names
        the way.
        """
        harness = begun(tmp_path)
        before = harness.state("sums")
        with pytest.raises(IncompatibleTableError, match=error_message) as refused:
            Harness(sums(**declared), tmp_path).run()
        assert "version=2" in refused.value.hint
        if "amount" not in error_message and "which" not in error_message:
            assert "migrate=" in refused.value.hint
            with pytest.raises(IncompatibleTableError, match=error_message):
                Harness(sums(**declared, version=2), tmp_path).run()
        pay(harness, a=1)
        assert harness.state("sums") == [before[0] | {"total": 101}, before[1]]

    def test_dropped(self, tmp_path: Path) -> None:
        """A column that is dropped, and comes back later, starts as its initial value again."""
        harness = begun(tmp_path, with_times())
        dropped = Harness(sums(version=2), tmp_path)
        pay(dropped, a=1)
        assert dropped.state("sums") == [{"name": "a", "total": 101}, {"name": "b", "total": 250}]
        with pytest.raises(IncompatibleTableError, match="has version 2, but the topology declares version 1"):
            pay(harness, a=1)
        again = Harness(with_times(version=2), tmp_path)
        again.run()
        assert [row["times"] for row in again.state("sums")] == [101, 100]
        assert verify_topology(again.topology, EMBEDDED, replay=True).ok

    def test_type(self, tmp_path: Path) -> None:
        """`migrate` makes the rows of the new type from those of the old one, in one commit."""
        begun(tmp_path)
        harness = Harness(euros(), tmp_path)
        harness.append([{"name": "a", "cents": 50}], "paid")
        harness.crash_at(Point.AFTER_PLAN)
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
        assert harness.state("sums") == [{"name": "a", "total": 1.0}, {"name": "b", "total": 2.5}]
        harness.run()
        assert harness.state("sums") == [{"name": "a", "total": 1.5}, {"name": "b", "total": 2.5}]
        assert harness.state("rows") == [{"rows": 3}]
        assert migrations(harness) == [["sums"]]
        assert verify_topology(harness.topology, EMBEDDED, replay=True).ok

    def test_key(self, tmp_path: Path) -> None:
        """Rows go under another key, and those of before are gone; a key that comes twice is refused."""
        old = begun(tmp_path)

        def by_initial(rows: pa.Table) -> pa.Table:
            rows = rows.append_column("initial", pc.utf8_slice_codeunits(rows["name"], 0, 1))
            return rows.group_by("initial").aggregate([("total", "sum")]).rename_columns(["initial", "total"])

        def twice(rows: pa.Table) -> pa.Table:
            return pa.table({"initial": ["x"] * rows.num_rows, "total": rows["total"]})

        pay(old, anna=7)
        declared = {"key": "initial STRING", "value": "total BIGINT", "version": 2}
        for wrong, error_message in (
            (twice, "has a key twice"),
            (lambda rows: rows, "lacks the column 'initial'"),
            (lambda _: 1 / 0, "failed: ZeroDivisionError"),
            (lambda _: None, "returned NoneType"),
        ):
            with pytest.raises(TopologyError, match=f"migrate of the state sums {error_message}"):
                Harness(sums(**declared, migrate=wrong), tmp_path).run()
        assert [row["name"] for row in old.state("sums")] == ["a", "anna", "b"]
        new = Harness(sums(**declared, migrate=by_initial), tmp_path)
        pay(new, anton=3)
        assert new.state("sums") == [{"initial": "a", "total": 110}, {"initial": "b", "total": 250}]
        assert verify_topology(new.topology, EMBEDDED, replay=True).ok
        assert new.topology.read("sums", keys=[{"initial": "b"}])["total"].to_pylist() == [250]

    def test_state_that_was_away(self, tmp_path: Path) -> None:
        """A state that was taken away and comes back with other columns is migrated from those that it had."""
        begun(tmp_path)
        without = Topology("sums", depots=["paid"], states="sums")
        without.state("rows", value="rows BIGINT")
        without.function(lambda_rows)
        pay(Harness(without, tmp_path), a=5)
        with pytest.raises(IncompatibleTableError, match="of type int64, but the topology declares double"):
            Harness(sums(value="total DOUBLE", version=2), tmp_path).run()
        again = Harness(euros(), tmp_path)
        again.run()
        assert again.state("sums") == [{"name": "a", "total": 1.0}, {"name": "b", "total": 2.5}]


def lambda_rows(microbatch: Microbatch) -> None:
    """Count rows."""
    microbatch.state("rows").combine(microbatch.rows("paid"), rows="count")


class TestBefore:
    def test_read(self, tmp_path: Path) -> None:
        """A microbatch of before is read with its own columns; so is the present one until the change has run."""
        begun(tmp_path)
        harness = Harness(euros(), tmp_path)
        cents = [{"name": "a", "total": 100}, {"name": "b", "total": 250}]
        assert harness.topology.read("sums").to_pylist() == cents
        harness.run()
        assert harness.topology.read("sums", at=1).to_pylist() == cents
        assert harness.topology.read("sums", keys=[{"name": "b"}], at=1).to_pylist() == cents[1:]
        assert harness.topology.read("sums", at=2).to_pylist() == [
            {"name": "a", "total": 1.0},
            {"name": "b", "total": 2.5},
        ]
        assert harness.topology.read("sums", at=1).schema.field("total").type == pa.int64()

    @pytest.mark.parametrize("change", [euros, with_times])
    @pytest.mark.parametrize("to", [0, 1, 2])
    def test_rollback(self, tmp_path: Path, change: Any, to: int) -> None:
        """A rollback to before a migration gives the old columns back; the next run migrates again, and the states are
        the same; a replay too.
        """
        first = begun(tmp_path)
        pay(first, a=30)
        harness = Harness(change(), tmp_path)
        pay(harness, c=40)
        then = harness.topology.read("sums", at=to).to_pylist()
        harness.rollback(to)
        assert harness.topology.read("sums").to_pylist() == then
        assert json.loads(harness.history()[-1]["rules"])["states"]["sums"]["total"] == "int64"
        harness.restart()
        harness.run()
        read_again = {row["name"]: row["total"] for row in harness.state("sums")}
        assert read_again == ({"a": 130, "b": 250, "c": 40} if change is with_times else {"a": 1.3, "b": 2.5, "c": 0.4})
        assert migrations(harness) == [["sums"]] * 2
        report = verify_topology(harness.topology, EMBEDDED, replay=True)
        assert report.ok, report.differences

    def test_replay_waits_for_the_run(self, tmp_path: Path) -> None:
        """A replay of a topology whose change has not run yet is refused."""
        begun(tmp_path)
        with pytest.raises(TopologyError, match="columns of the state sums have changed"):
            replay_topology(Harness(euros(), tmp_path).topology, EMBEDDED)

    def test_replay_of_a_replay(self, tmp_path: Path) -> None:
        """The table of a replay has the migration too, with every kind of ticks, and replays equal itself."""
        first = begun(tmp_path)
        harness = Harness(euros(), tmp_path)
        pay(harness, a=1, d=3)
        for ticks in ("reuse", "fresh", "merged"):
            into = str(tmp_path / ticks)
            assert replay_topology(harness.topology, EMBEDDED, into, ticks).ok  # type: ignore[arg-type]
            placed = harness.topology.with_locations(harness.topology.depots, f"{into}/states")
            assert replay_topology(placed, EMBEDDED).ok
        assert len(first.history()) == 3


def drive(pipe: Connection, folder: str, changed: bool) -> None:
    """Be a driver of the topology, in cents or in euros, until all is read."""
    harness = Harness(euros() if changed else sums(), folder)
    pipe.send("ready")
    pipe.recv()
    harness.run()


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_kills(tmp_path: Path, kills: int) -> None:
    """Killed at any moment, a migration has happened whole or not at all, and once."""
    random, seconds = Random(kills), 0.2
    killed = 0
    for number in range(10 * kills):
        folder = tmp_path / str(number)
        begun(folder)
        child = Child(drive, str(folder), True)
        child.go()
        time.sleep(random.uniform(0, seconds))
        hit = child.kill()
        killed += hit
        seconds *= 1.05 if hit else 0.9
        assert child.status() in (0, -signal.SIGKILL)
        harness = Harness(euros(), folder)
        state = harness.state("sums")
        assert state in ([{"name": "a", "total": 100}, {"name": "b", "total": 250}], in_order(a=1.0, b=2.5))
        pay(harness, a=50)
        assert harness.state("sums") == in_order(a=1.5, b=2.5)
        assert migrations(harness) == [["sums"]]
        if killed == kills:
            break
    assert killed == kills


def in_order(**totals: float) -> list[dict[str, Any]]:
    """Return rows of the state."""
    return [{"name": name, "total": total} for name, total in totals.items()]


def test_two_drivers(tmp_path: Path) -> None:
    """Of two drivers that migrate at the same time one does, and both go on; one of before stops."""
    old = begun(tmp_path)
    first, second = Harness(euros(), tmp_path), Harness(euros(), tmp_path)
    first.runner(), second.runner()
    old.append([{"name": "a", "cents": 50}], "paid")
    first.run()
    second.run()
    assert migrations(first) == [["sums"]]
    assert first.state("sums") == in_order(a=1.5, b=2.5)
    with pytest.raises(IncompatibleTableError, match="has version 2"):
        old.run()


@pytest.fixture(params=["embedded", *(pytest.param(kind, marks=pytest.mark.spark) for kind in ("spark", "frames"))])
def engine(request: pytest.FixtureRequest) -> tuple[EngineFactory, bool]:
    """Each engine, and on Spark functions of both kinds."""
    return factory_of("embedded" if request.param == "embedded" else "spark", request), request.param == "frames"


@pytest.mark.slow_unless({"engine": "embedded"})
def test_chain(tmp_path: Path, engine: tuple[EngineFactory, bool]) -> None:
    """Who reads a state as a depot gets its rows whichever version wrote them, also while it is at work; if their type
    or their key is another one it stops.
    """
    factory, frames = engine
    options: dict[str, Any] = {"engine": factory.name, "session": factory.session, **factory.more}
    words = begun(tmp_path, **options)
    copy = Harness(mirror(frames), tmp_path, **options)
    copy.run()
    assert copy.state("copy") == words.state("sums")
    bigger = {"value": "total BIGINT, note STRING", "version": 2, "migrate": doubled, "initial": {"note": "new"}}
    later = Harness(sums(**bigger), tmp_path, **options)
    pay(later, a=1, c=3)
    copy.run()
    assert [row["total"] for row in copy.state("copy")] == [201, 500, 3]
    behind = Harness(mirror(frames, "behind"), tmp_path, **options)
    behind.run()
    assert behind.state("copy") == copy.state("copy")
    other_key = {"key": "total BIGINT", "value": "name STRING", "version": 3, "migrate": lambda rows: rows}
    moved = Topology("sums", depots=["paid"], states="sums")
    moved.state("sums", **other_key)
    moved.function(lambda_nothing)
    Harness(moved, tmp_path, **options).run()
    with pytest.raises(DepotChangedError if not frames else Exception, match="the key of the state sums is"):
        copy.run()


def lambda_nothing(microbatch: Microbatch) -> None:
    """Do nothing."""


def doubled(rows: pa.Table) -> pa.Table:
    """Return sums twice as large, with a note."""
    rows = rows.set_column(1, "total", pc.multiply(rows["total"], 2))
    return rows.append_column("note", pa.repeat("old", rows.num_rows))


def mirror(frames: bool, name: str = "mirror") -> Topology:
    """Return a topology that keeps a copy of the sums."""
    topology = Topology(name, depots={"sums": Depot("sums", state="sums")}, states=name)
    topology.state("copy", key="name STRING", value="total BIGINT")

    if frames:

        @topology.function
        def follow_frames(microbatch: SparkMicrobatch) -> None:
            rows = microbatch.rows("sums")
            newest = rows.groupBy("name").agg({"version": "max"}).withColumnRenamed("max(version)", "version")
            rows = rows.join(newest, ["name", "version"])
            microbatch.state("copy").put(rows.where("NOT deleted").select("name", "total"))

    else:

        @topology.function
        def follow(microbatch: Microbatch) -> None:
            rows = microbatch.rows("sums").sort_by("version")
            last = rows.group_by("name", use_threads=False).aggregate([("total", "last")])
            microbatch.state("copy").put(last.rename_columns(["name", "total"]))

    return topology


@pytest.mark.slow_unless({"engine": "embedded"})
def test_engines(tmp_path: Path, engine: tuple[EngineFactory, bool]) -> None:
    """On each engine a state of a later version is read, changed, deleted and read from outside."""
    factory, frames = engine
    options: dict[str, Any] = {"engine": factory.name, "session": factory.session, **factory.more}
    begun(tmp_path, **options)
    declared = {"key": "name STRING", "value": "total DOUBLE", "version": 2, "migrate": in_euros}
    topology = Topology("sums", depots=["paid"], states="sums")
    topology.state("sums", **declared)

    if frames:

        @topology.function
        def add_frames(microbatch: SparkMicrobatch) -> None:
            rows = microbatch.rows("paid").selectExpr("name", "cents / 100D AS total")
            state = microbatch.state("sums")
            state.combine(rows, total=("total", "sum"))
            kept = state.all().where("total < 2")
            state.put(kept.selectExpr("name", "total + 1 AS total"))
            state.delete(state.get(rows.select("name")).where("total > 100").select("name"))

    else:

        @topology.function
        def add(microbatch: Microbatch) -> None:
            rows = microbatch.rows("paid")
            state = microbatch.state("sums")
            rows = rows.append_column("total", pc.divide(rows["cents"].cast(pa.float64()), 100))
            state.combine(rows, total=("total", "sum"))
            kept = state.all().filter(pc.less(state.all()["total"], 2))
            state.put(kept.set_column(1, "total", pc.add(kept["total"], 1)))
            totals = state.get(rows.select(["name"]))
            state.delete(totals.filter(pc.greater(totals["total"], 100)).select(["name"]))

    harness = Harness(topology, tmp_path, **options)
    pay(harness, a=50, c=99_000)
    assert harness.state("sums") == in_order(a=2.5, b=2.5)
    assert verify_topology(harness.topology, Settings(engine="embedded")).ok


def reminding(version: int = 1) -> Topology:
    """Return a topology that sets a timer of an hour for each name, in the second version with a note."""
    topology = Topology("reminding", depots=["paid"], states="sums")
    topology.timer("later", "name STRING", "note STRING" if version > 1 else "", version=version, migrate=noted)
    topology.state("fired", key="name STRING", value="note STRING")

    @topology.function
    def remind(microbatch: Microbatch) -> None:
        rows = microbatch.rows("paid")
        if rows.num_rows:
            due = pa.array([microbatch.clock + timedelta(hours=1)] * rows.num_rows, pa.timestamp("us", "UTC"))
            microbatch.schedule("later", noted(pa.table({"name": rows["name"], "due": due}), "new"))
        microbatch.state("fired").put(noted(microbatch.due("later"), "none"))

    return topology


def noted(rows: pa.Table, note: str = "old") -> pa.Table:
    """Return rows with a note, unless they have one."""
    return (
        rows
        if "note" in rows.column_names
        else rows.append_column("note", pa.array([note] * rows.num_rows, pa.string()))
    )


class TestTimes:
    def test_timer(self, tmp_path: Path) -> None:
        """A timer that is set and gets another payload fires at its time, once; a replay gives the same."""
        begun(tmp_path, reminding())
        harness = Harness(reminding(2), tmp_path)
        harness.advance_clock(60)
        pay(harness, c=1)
        harness.advance_clock(3_590)
        harness.run()
        assert harness.state("fired") == [{"name": "a", "note": "old"}, {"name": "b", "note": "old"}]
        harness.advance_clock(3_600)
        harness.run()
        assert harness.state("fired")[2] == {"name": "c", "note": "new"}
        assert harness.state("later") == []
        report = verify_topology(harness.topology, EMBEDDED, replay=True)
        assert report.ok, report.differences

    def test_time_to_live(self, tmp_path: Path) -> None:
        """A time to live that is declared later counts for a key from its next write; a migration keeps its time."""
        begun(tmp_path)
        harness = Harness(sums(ttl="1h"), tmp_path)
        pay(harness, a=1)
        later = Harness(sums(value="total DOUBLE", ttl="1h", version=2, migrate=in_euros), tmp_path)
        later.run()
        assert [(row["name"], row["total"]) for row in later.state("sums")] == [("a", 1.01), ("b", 2.5)]
        later.advance_clock(3_700)
        later.run()
        assert [row["name"] for row in later.state("sums")] == ["b"]
        assert verify_topology(later.topology, EMBEDDED, replay=True).ok
