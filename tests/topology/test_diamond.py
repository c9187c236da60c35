"""The diamond of docs/topologies/diamond.md: two topologies append what a third one reads, wherever drivers fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.docs.pages import ROOT, Page
from windrow.errors import TopologyError
from windrow.runtime.feeder import Feeder, FeederPosition
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, Point
from windrow.topology import Depot, Microbatch, Topology, run_topology
from windrow.topology.replay import replay_topology
from windrow.topology.status import WaitStatus, status_of

PAGE = "docs/topologies/diamond.md"
NAMES = ("prices", "discounts", "checks")
FED = {"prices": "priced", "discounts": "discounted"}
DAY = 86_400
EMBEDDED = Settings(engine="embedded")


class Diamond:
    """The three topologies of the page over the depots of one directory."""

    def __init__(self, directory: Path, **declared: Any) -> None:
        """Prepare them; nothing runs yet. What is `declared` is so of both depots of the checks."""
        text = (ROOT / PAGE).read_text(encoding="utf-8")
        [code] = [block.text for block in Page(PAGE, text).blocks if block.remarks.get("file") == "diamond.py"]
        module: dict[str, Any] = {}
        exec(compile(code, PAGE, "exec"), module)  # noqa: S102 - our own page
        if declared:
            checks = module["checks"]
            depots = {name: replace(depot, **declared) for name, depot in checks.depots.items()}
            module["checks"] = checks.with_locations(depots, checks.location)
        self.harnesses = {name: Harness(module[name], directory) for name in NAMES}
        self.checks = self.harnesses["checks"]
        self.orders = 0

    def order(self, *pieces: int) -> None:
        """Append orders in one version."""
        keys = range(self.orders, self.orders + len(pieces))
        self.orders += len(pieces)
        rows = [{"key": f"{key:03}", "payload": str(count)} for key, count in zip(keys, pieces, strict=True)]
        self.harnesses["prices"].append(rows, "orders")
        self.advance(1)

    def advance(self, seconds: float) -> None:
        """Move the clocks of all topologies."""
        for harness in self.harnesses.values():
            harness.advance_clock(seconds)

    def run_all(self) -> None:
        """Run all topologies to their ends."""
        for name in NAMES:
            self.run(name)

    def seen_depots(self) -> list[str]:
        """Return what the checks have seen, in the order in which they did."""
        rows = sorted(self.checks.state("seen"), key=lambda row: row["turn"])
        return [f"{row['order']} {row['depot']}" for row in rows]

    def waits(self) -> list[WaitStatus]:
        """Return for whom the checks wait."""
        return status_of(self.checks.topology, self.checks.clock.now(), EMBEDDED).waits

    def run(self, name: str, point: Point | None = None) -> int:
        """Run a topology to its end, and return how often it crashed: at a point, in one microbatch after another."""
        harness, crashes = self.harnesses[name], 0
        if point is not None:
            harness.crash_at(point)
        while True:
            runner = harness.runner()
            if point is not None:
                runner.driver.report = lambda _: harness.crash_at(point)
            try:
                harness.run()
            except DriverCrash:
                crashes += 1
                harness.restart()
            else:
                return crashes

    def assert_sound(self) -> None:
        """Each order came once from each side, from the prices first; orders keep their sequence."""
        rows = self.checks.state("seen")
        assert [(row["order"], row["depot"], row["times"]) for row in rows] == [
            (f"{order:03}", depot, 1) for order in range(self.orders) for depot in ("discounted", "priced")
        ]
        turns = [(rows[at + 1]["turn"], rows[at]["turn"]) for at in range(0, len(rows), 2)]
        assert all(priced < discounted for priced, discounted in turns)
        assert turns == sorted(turns)
        for name, output in (("prices", "priced"), ("discounts", "discounted")):
            assert DeltaTable(self.harnesses[name].topology.outputs[output]).to_pyarrow_table().num_rows == self.orders


@pytest.mark.slow_unless(*({"point": point, "name": name} for point, name in zip(Point, cycle(NAMES), strict=False)))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("point", Point)
def test_crash(tmp_path: Path, name: str, point: Point) -> None:
    """A topology that fails at a point in one microbatch after another loses no order, repeats none, and changes no
    order of things.
    """
    diamond = Diamond(tmp_path)
    crashes = 0
    for pieces in ((2, 12), (5,), (30, 1, 10)):
        diamond.order(*pieces)
        for topology_name in NAMES:
            crashes += diamond.run(topology_name, point if topology_name == name else None)
    assert crashes >= 3
    diamond.assert_sound()


def test_catching_up(tmp_path: Path) -> None:
    """Orders that waited come in the same order as those that are read at once."""
    diamond = Diamond(tmp_path)
    for number in range(4):
        diamond.order(number, 10 + number)
    for name in ("discounts", "prices", "checks"):
        diamond.run(name)
    diamond.assert_sound()


@pytest.mark.slow
def test_many_crashes(tmp_path: Path) -> None:
    """Topologies that fail at random points, again and again, leave the diamond sound."""
    random = Random(5)
    diamond = Diamond(tmp_path)
    for number in range(5):
        diamond.order(number)
        for name in NAMES:
            diamond.run(name, random.choice(list(Point)))
    diamond.assert_sound()


@pytest.mark.parametrize("name", FED)
def test_stalled_branch(tmp_path: Path, name: str) -> None:
    """A branch that stands still is not overtaken, however long it does so, and the status says since when. When it
    goes on the rest follows in order, and a replay gives the same.
    """
    diamond = Diamond(tmp_path)
    diamond.order(2)
    diamond.run_all()
    before = diamond.seen_depots()
    diamond.order(5)
    diamond.order(7)
    [other] = FED.keys() - {name}
    diamond.run(other)
    for _ in range(3):
        diamond.advance(DAY)
        diamond.run("checks")
        assert diamond.seen_depots() == before
    [wait] = diamond.waits()
    assert (wait.topology, wait.depot) == (name, FED[name])
    assert wait.reached is not None
    assert wait.since is not None
    diamond.run(name)
    diamond.run("checks")
    diamond.assert_sound()
    assert diamond.waits() == []
    assert replay_topology(diamond.checks.topology, EMBEDDED).ok


def test_branch_that_never_ran(tmp_path: Path) -> None:
    """A branch that has not run at all is waited for too."""
    diamond = Diamond(tmp_path)
    diamond.order(2)
    diamond.run("discounts")
    diamond.advance(DAY)
    diamond.run("checks")
    assert diamond.seen_depots() == []
    assert [(wait.topology, wait.reached) for wait in diamond.waits()] == [("prices", None)]
    diamond.run_all()
    diamond.assert_sound()


def test_overtaken_after_a_while(tmp_path: Path) -> None:
    """With `wait` a branch that stands still is overtaken after that time, as the history says, and its rows are read
    when they come; a replay repeats all of it.
    """
    diamond = Diamond(tmp_path, wait="10m")
    diamond.order(2)
    diamond.run_all()
    diamond.order(5)
    diamond.run("discounts")
    for seconds, seen in ((300, 2), (240, 2), (120, 3)):
        diamond.advance(seconds)
        diamond.run("checks")
        assert len(diamond.seen_depots()) == seen
    diamond.run_all()
    assert diamond.seen_depots() == ["000 priced", "000 discounted", "001 discounted", "001 priced"]
    assert {row["times"] for row in diamond.checks.state("seen")} == {1}
    overtook = [row["overtook"] for row in diamond.checks.history()]
    assert overtook == [None, None, ["priced"], None]
    assert replay_topology(diamond.checks.topology, EMBEDDED, str(tmp_path / "again")).ok
    again = DeltaTable(tmp_path / "again" / "states").to_pyarrow_table()
    assert [row for row in again["overtook"].to_pylist() if row] == [["priced"]]


@dataclass(frozen=True, slots=True)
class Late(Feeder):
    """A feeder that runs just before it is asked how far it is."""

    inner: Feeder
    run: Callable[[], object]

    def position(self, now: int) -> FeederPosition:
        """Run, then answer."""
        self.run()
        return self.inner.position(now)

    def time_of(self, version: int) -> int | None:
        """Answer."""
        return self.inner.time_of(version)


def test_branch_that_moves_meanwhile(tmp_path: Path) -> None:
    """Rows that a branch appends after its depot was looked at, and before its position is read, are not overtaken."""
    diamond = Diamond(tmp_path)
    diamond.order(2)
    diamond.run_all()
    diamond.order(5)
    diamond.run("discounts")
    for cursor in diamond.checks.runner().driver.cursors:
        if cursor.name == "priced" and cursor.reader.feeder is not None:
            late = Late(cursor.reader.feeder, diamond.harnesses["prices"].run)
            cursor.reader = replace(cursor.reader, feeder=late)
    diamond.run("checks")
    diamond.assert_sound()


def test_undeclared(tmp_path: Path) -> None:
    """An output that is not declared as one, or as that of another topology, is refused by who reads in step."""
    diamond = Diamond(tmp_path)
    diamond.order(2)
    diamond.run_all()
    checks = diamond.checks.topology
    priced, prices = checks.depots["priced"], diamond.harnesses["prices"].topology
    for fed_by, error_message in (
        (None, "the depot priced is an output of another topology, which may fall behind"),
        (
            prices.with_locations(prices.depots, str(tmp_path / "elsewhere")),
            "is an output of a topology other than prices",
        ),
    ):
        depots = {**checks.depots, "priced": replace(priced, fed_by=fed_by)}
        with pytest.raises(TopologyError, match=error_message) as refused:
            run_topology(checks.with_locations(depots, checks.location), EMBEDDED)
        assert "fed_by=topology" in refused.value.hint
    for declared, error_message in (
        ({"location": "elsewhere", "fed_by": prices}, "prices has no output at elsewhere"),
        ({"location": "elsewhere", "fed_by": prices, "state": "x"}, "prices has its states at"),
        ({"location": "elsewhere", "wait": "10m"}, "wait needs the topology to wait for"),
    ):
        with pytest.raises(TopologyError, match=error_message):
            Topology("wrong", {"priced": Depot(**declared)}, "wrong", in_step=True)


def copying(name: str, depots: dict[str, Depot], outputs: dict[str, str]) -> Topology:
    """Return a topology that copies messages to its outputs, and notes in which order rows come."""
    topology = Topology(name, depots, name, in_step=True, outputs=outputs)
    topology.state("turns", key="turn BIGINT, depot STRING", value="rows BIGINT")

    @topology.function
    def copy(microbatch: Microbatch) -> None:
        for number, depot in enumerate(microbatch.depots):
            rows = microbatch.rows(depot)
            for output in outputs:
                microbatch.append(output, rows.drop_columns(["version"]))
            noted = {"turn": [10 * microbatch.id + number], "depot": [depot], "rows": [rows.num_rows]}
            microbatch.state("turns").put(pa.table(noted))

    return topology


def test_feeder_of_a_feeder(tmp_path: Path) -> None:
    """If a feeder has read all that there is, its own feeder may still hold it up, and with it who reads it."""
    first = copying("first", {"orders": Depot("orders")}, {"one": "one"})
    second = copying("second", {"one": Depot("one", fed_by=first)}, {"two": "two"})
    last = copying("last", {"two": Depot("two", fed_by=second), "orders": Depot("orders", priority=1)}, {})
    harnesses = [Harness(topology, tmp_path) for topology in (first, second, last)]
    for number in range(3):
        harnesses[0].append([{"payload": str(number)}], "orders")
        for harness in harnesses:
            harness.advance_clock(1)
        for harness in harnesses[number == 1 :]:  # the first one stands still once
            harness.advance_clock(DAY)
            harness.run()
        if number == 1:
            [wait] = status_of(harnesses[2].topology, harnesses[2].clock.now(), EMBEDDED).waits
            assert (wait.depot, wait.topology) == ("two", "first")
    read = [(row["depot"], row["rows"]) for row in harnesses[2].state("turns")]
    assert read == [("two", 1), ("orders", 1)] * 3


def test_state_in_step(tmp_path: Path) -> None:
    """The changes of a state come at the time of the messages that made them, among those of other depots, and a
    topology that stands still is waited for.
    """
    counting = Topology("counting", {"orders": Depot("orders")}, "counting", in_step=True)
    counting.state("counts", key="type STRING", value="orders BIGINT")

    @counting.function
    def count(microbatch: Microbatch) -> None:
        microbatch.state("counts").combine(microbatch.rows("orders"), orders="count")

    both = {"counts": Depot("counting", state="counts", fed_by=counting), "orders": Depot("orders", priority=1)}
    reading = copying("reading", both, {})
    harnesses = [Harness(topology, tmp_path) for topology in (counting, reading)]
    for number in range(4):
        harnesses[0].append([{"payload": str(number)}], "orders")
        for harness in harnesses:
            harness.advance_clock(1)
        if number % 2:
            harnesses[0].run()
        for harness in harnesses:
            harness.advance_clock(DAY if number == 2 else 0)
        harnesses[1].run() if number else None
        assert len(harnesses[1].state("turns") if number else []) == (0, 4, 4, 8)[number]
    assert [row["depot"] for row in harnesses[1].state("turns")] == ["counts", "orders"] * 4


def test_timers_wait_for_feeders(tmp_path: Path) -> None:
    """A timer that is due, by the wall clock, waits for a topology that stands still before its time."""
    first = copying("first", {"orders": Depot("orders")}, {"one": "one"})
    last = Topology("last", {"one": Depot("one", fed_by=first)}, "last", in_step=True)
    last.timer("later", key="type STRING")
    last.state("order", key="at TIMESTAMP, what STRING", value="times BIGINT")

    @last.function
    def note(microbatch: Microbatch) -> None:
        rows = microbatch.rows("one")
        due = pc.add(rows["received_at"], pa.scalar(60_000_000, pa.duration("us")))
        if rows.num_rows:
            microbatch.schedule("later", pa.table({"type": rows["payload"], "due": due}))
        fired = [*rows["payload"].to_pylist(), *(f"timer {row}" for row in microbatch.due("later")["type"].to_pylist())]
        at = pa.array([microbatch.id] * len(fired), pa.int64()).cast(pa.timestamp("us", "UTC"))
        microbatch.state("order").combine(pa.table({"at": at, "what": pa.array(fired, pa.string())}), times="count")

    harnesses = [Harness(topology, tmp_path) for topology in (first, last)]

    def come(payload: str, seconds: int, runs: int) -> list[str]:
        """Append an order, let time pass, and run the last topologies; return what the last one has noted."""
        if payload:
            harnesses[0].append([{"payload": payload}], "orders")
        for harness in harnesses:
            harness.advance_clock(seconds)
        for harness in harnesses[2 - runs :]:
            harness.run()
        return [row["what"] for row in harnesses[1].state("order")]

    assert come("a", 1, runs=2) == ["a"]
    assert come("b", 3_600, runs=1) == ["a"]
    assert come("", 3_600, runs=1) == ["a"]
    assert come("", 1, runs=2) == ["a", "b"]
    assert come("", 3_600, runs=2) == ["a", "b", "timer a", "timer b"]
