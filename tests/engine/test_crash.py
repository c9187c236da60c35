"""Real processes: killed at every point, two at a time, and stopped by a signal."""

import signal

import pytest

from tests.engine.processes import drivers
from tests.messages import log
from windrow.testing.points import Point


def killed_at(world, engine, point, times):
    """Run a driver that kills itself at a point."""
    with drivers(world, engine, kill=[point.value, times], max_messages=60) as (driver,):
        driver.start()
        assert driver.status() == -signal.SIGKILL


class TestKill:
    @pytest.mark.parametrize("point", Point)
    def test_embedded(self, world, embedded, reference, point):
        """A driver that is killed at any point leaves a ledger from which the next run reaches, byte for byte, the
        result of an undisturbed run.
        """
        world.publish(*log(versions=4))
        killed_at(world, "embedded", point, 2)
        committed = 2 if point is Point.AFTER_COMMIT else 1
        assert len(world.history()) == committed
        world.runner(embedded, max_messages=60).once()
        assert world.canonical() == reference(world).canonical()
        world.assert_balanced()

    @pytest.mark.ci
    @pytest.mark.spark
    @pytest.mark.parametrize(
        "point",
        [
            pytest.param(Point.AFTER_PRIME, marks=pytest.mark.slow),
            pytest.param(Point.BEFORE_COMMIT, marks=pytest.mark.slow),
            Point.AFTER_COMMIT,
        ],
    )
    def test_spark(self, world, embedded, reference, point):
        """A Spark driver that is killed leaves a ledger from which the next run, on the other engine, reaches the
        result of an undisturbed run.
        """
        world.publish(*log(versions=2))
        killed_at(world, "spark", point, 1)
        assert len(world.history()) == int(point is Point.AFTER_COMMIT)
        world.runner(embedded).once()
        assert world.canonical() == reference(world).canonical()
        world.assert_balanced()


@pytest.mark.ci
class TestSeveralDrivers:
    @pytest.mark.parametrize(
        ("engines", "versions"),
        [
            pytest.param(("embedded", "embedded"), 12, marks=pytest.mark.slow),
            (("embedded", "embedded", "embedded"), 6),
            pytest.param(("spark", "spark"), 8, marks=[pytest.mark.spark, pytest.mark.slow]),
            pytest.param(("embedded", "spark"), 12, marks=[pytest.mark.spark, pytest.mark.slow]),
        ],
        ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
    )
    def test_same_backlog(self, world, embedded, reference, engines, versions):
        """Two or three drivers that start at the same time on a ledger that does not exist yet give the result of one,
        and balanced books; the microbatches are numbered without a gap.
        """
        world.publish(*log(versions=versions, size=10))
        with drivers(world, *engines, max_messages=10) as started:
            for driver in started:
                driver.hear("ready")
            for driver in started:
                driver.go_on()
            assert [driver.status() for driver in started] == [0] * len(engines)
        assert [part["version"] for row in world.history() for part in row["versions"]] == list(range(1, versions + 1))
        assert world.canonical() == reference(world).canonical()
        world.assert_balanced()


class TestSignals:
    def test_sigterm(self, world, embedded, reference):
        """SIGTERM to a running loop lets the microbatch at work finish, and no other begin; the process ends well."""
        world.publish(*[[row for row in rows if row["key"] != "ahead"] for rows in log(versions=3)])
        with drivers(world, "embedded", every=60_000_000, max_messages=30) as (driver,):
            driver.start()
            driver.hear("running")
            driver.send(signal.SIGTERM)
            driver.go_on()
            driver.hear("stopped")
            assert driver.status() == 0
        assert [row["messages_read"] for row in world.history()] == [29]
        world.runner(embedded).once()
        assert world.canonical() == reference(world).canonical()
