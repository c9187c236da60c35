"""Money is neither lost nor made, wherever the driver fails."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.topology.banks import ACCOUNTS, BEGIN, bank, expected, transfers
from windrow.testing import DriverCrash, Harness, Point


def assert_sound(harness: Harness, rows: list[list[dict[str, object]]]) -> None:
    """The funds are those of the transfers one by one, and what moved explains them."""
    funds = {row["account"]: row["amount"] for row in harness.state("funds")}
    assert funds == expected(str(row["payload"]) for version in rows for row in version)[0]
    moved = {row["holder"]: row["received"] - row["sent"] for row in harness.state("moved")}
    assert {account: BEGIN + moved.get(account, 0) for account in ACCOUNTS} == funds
    assert sum(row["messages_read"] for row in harness.history()) == sum(map(len, rows))


@pytest.mark.parametrize("point", Point)
def test_crash(tmp_path: Path, point: Point) -> None:
    """A driver that fails at any point leaves states from which the next one reaches what no failure gives."""
    rows = transfers()
    harness = Harness(bank(), tmp_path, max_messages=20)
    for version in rows[:2]:
        harness.append(version)
    harness.crash_at(point)
    with pytest.raises(DriverCrash):
        harness.run()
    committed = [row["microbatch"] for row in harness.history()]
    assert committed == ([1] if point is Point.AFTER_COMMIT else [])
    harness.restart()
    for version in rows[2:]:
        harness.append(version)
    harness.run()
    assert_sound(harness, rows)


def test_many_crashes(tmp_path: Path) -> None:
    """A driver that fails at random points, again and again, loses and makes nothing."""
    random = Random(7)
    rows = transfers(versions=30, size=5)
    harness = Harness(bank(), tmp_path)
    crashes = 0
    for version in rows:
        harness.append(version)
        harness.crash_at(random.choice(list(Point)))
        try:
            harness.run()
        except DriverCrash:
            crashes += 1
            harness.restart()
    harness.run()
    assert crashes == len(rows)
    assert_sound(harness, rows)
