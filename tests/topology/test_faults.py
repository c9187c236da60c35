"""The fault tests of the batcher, as they are, over the bank: drivers killed, overtaken, restored under their hands.

What differs is the world that they run on (conftest.py): it publishes transfers, and its books are the money. The
machine that makes up histories does here also what only a topology knows (histories.py).
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.processes import drivers
from tests.engine.test_crash import TestKill as Killed
from tests.engine.test_crash import TestSeveralDrivers as SeveralDrivers
from tests.engine.test_fence import TestRunner
from tests.engine.test_machine import TestHistories
from tests.engine.test_stream import test_checkpoints_are_used_once
from tests.faults.trials.processes import Child
from tests.messages import log
from tests.probes import act_once
from tests.topology.banks import bank
from tests.topology.killed import drive_bank
from tests.topology.world import BankWorld
from windrow.settings.settings import Settings
from windrow.testing.points import Point
from windrow.topology.verify import verify_topology

pytestmark = pytest.mark.ci

__all__ = ["TestHistories", "TestRunner", "test_checkpoints_are_used_once"]


class TestKill(Killed):
    """The process that is killed is the batcher's, so the points around the commit are enough where time is short."""

    @pytest.mark.slow_unless({"point": Point.BEFORE_COMMIT}, {"point": Point.AFTER_COMMIT})
    @pytest.mark.parametrize("point", Point)
    def test_embedded(self, world, embedded, reference, point):
        """As for the batcher."""
        super().test_embedded(world, embedded, reference, point)

    @pytest.mark.slow
    @pytest.mark.spark
    @pytest.mark.parametrize("point", [Point.AFTER_PRIME, Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
    def test_spark(self, world, embedded, reference, point):
        """As for the batcher."""
        super().test_spark(world, embedded, reference, point)


@pytest.mark.slow
class TestSeveralDrivers(SeveralDrivers):
    """The batcher's tests show the race itself, `test_goes_on_from_any_point` what it does to a topology."""


@pytest.mark.parametrize("point", Point)
def test_depot_added_beside_a_driver(world: BankWorld, point: Point) -> None:
    """A driver that adds a depot while another one commits looks again, and reads all of both."""
    world.publish(*log(versions=2))
    world.publish_in_branch(*log(versions=1))
    rival = world.runner(EMBEDDED)
    world.probed(EMBEDDED, act_once(point, rival.once), branch=True).once()
    assert world.canonical() == world.expected()
    world.assert_balanced()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20, 300])
def test_many_kills(tmp_path: Path, kills: int) -> None:
    """Money is neither lost nor made in as many kills as there are, each of a process at a random point; two drivers
    race for what the killed one left.
    """
    random = Random(kills)
    world = BankWorld(tmp_path, ManualClock())
    for number in range(kills):
        world.publish(*log(versions=random.randint(1, 2), seed=number, size=random.randint(1, 4)))
        place = (random.choice(list(Point)).value, 1)
        killed = Child(drive_bank, {"depot": world.depot, "ledger": world.ledger, "engine": "embedded"}, place)
        killed.go()
        assert killed.status() == -signal.SIGKILL
    rivals = [
        Child(drive_bank, {"depot": world.depot, "ledger": world.ledger, "engine": "embedded"}, None) for _ in range(2)
    ]
    for rival in rivals:
        rival.go()
    assert [rival.status() for rival in rivals] == [0, 0]
    world.runner(EMBEDDED).once()
    assert world.canonical() == world.expected()
    world.assert_balanced()


@pytest.mark.parametrize("kills", [5, pytest.param(1_000, marks=pytest.mark.slow)])
def test_kills_at_any_moment(tmp_path: Path, kills: int) -> None:
    """The same where a process is killed at any moment, not at a point: while it opens tables, writes a file or the
    log. Afterwards the books balance too, and a replay gives the same states.
    """
    random, killed, seconds = Random(kills), 0, 0.2
    world = BankWorld(tmp_path, ManualClock())
    order = {"depot": world.depot, "ledger": world.ledger, "engine": "embedded", "max_messages": 5}
    number = 0
    while killed < kills:
        number += 1
        world.publish(*log(versions=random.randint(1, 2), seed=number, size=random.randint(1, 4)))
        driver = Child(drive_bank, order, None)
        driver.go()
        time.sleep(random.uniform(0, seconds))
        hit = driver.kill()
        killed += hit
        seconds *= 1.02 if hit else 0.9  # so that most are killed, and late ones too
    world.runner(EMBEDDED).once()
    assert world.canonical() == world.expected()
    world.assert_balanced()
    report = verify_topology(bank(world.depot, world.ledger), Settings(engine="embedded"), replay=True)
    assert report.ok, report.differences


@pytest.mark.spark
@pytest.mark.slow
def test_ten_kills_on_spark(tmp_path: Path) -> None:
    """The same in ten kills of a driver with its JVM."""
    random = Random(10)
    world = BankWorld(tmp_path, ManualClock())
    for number in range(10):
        world.publish(*log(versions=1, seed=number, size=4))
        with drivers(world, "spark", kill=[random.choice(list(Point)).value, 1]) as (driver,):
            driver.start()
            assert driver.status() == -signal.SIGKILL
    world.runner(EMBEDDED).once()
    assert world.canonical() == world.expected()
    world.assert_balanced()
