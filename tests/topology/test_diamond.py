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
from windrow.testing import Crashed, Harness, Point
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
            module["checks"] = checks.placed(depots, checks.location)
        self.harnesses = {name: Harness(module[name], directory) for name in NAMES}
        self.checks = self.harnesses["checks"]
        self.orders = 0

    def order(self, *pieces: int) -> None:
        """Append orders in one version."""
        keys = range(self.orders, self.orders + len(pieces))
        self.orders += len(pieces)
        rows = [{"key": f"{key:03}", "payload": str(one)} for key, one in zip(keys, pieces, strict=True)]
        self.harnesses["prices"].append(rows, "orders")
        self.advance(1)

    def advance(self, seconds: float) -> None:
        """Move the clocks of all topologies."""
        for harness in self.harnesses.values():
            harness.advance_clock(1)

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
            except Crashed:
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
        for one in NAMES:
            crashes += diamond.run(one, point if one == name else None)
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
