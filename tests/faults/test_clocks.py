"""Clocks that are ahead, jump back or stand still: stamps, source clocks and the wall clock."""

from __future__ import annotations

import pytest

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import SKEW, World
from tests.faults.mishaps import assert_sound, assert_whole, run
from tests.messages import HOUR, SECOND, message

YEAR = 365 * 24 * HOUR


class TestStamps:
    @pytest.mark.slow_on_spark
    def test_ahead(self, world: World, engine: EngineFactory) -> None:
        """A stamp more than `max_clock_skew` ahead of the wall clock is rejected by how much it is ahead, and moves no
        clock: the next message of the source is batched.
        """
        world.publish([message("a", NOW, NOW + YEAR, key="ahead")], [message("b", NOW, NOW)])
        run(world, engine)
        (refused,) = world.rows("rejected")
        assert (refused["reason"], refused["missed_by_us"]) == ("clock_ahead", YEAR - SKEW)
        assert [row["message_count"] for row in world.rows("open")] == [1]
        assert_whole(world)

    def test_just_inside(self, world: World, embedded: EngineFactory) -> None:
        """A stamp exactly `max_clock_skew` ahead is taken, one a microsecond later is not."""
        world.publish([message("a", NOW + SKEW, NOW + SKEW), message("a", NOW, NOW + SKEW + 1, key="ahead")])
        run(world, embedded)
        assert [row["reason"] for row in world.rows("rejected")] == ["clock_ahead"]
        assert [row["message_count"] for row in world.rows("open")] == [1]
        assert_whole(world)

    def test_going_back(self, world: World, embedded: EngineFactory) -> None:
        """Stamps that go back an hour are taken for the moment the source had reached: what is too old for it is
        rejected with how much the stamp was raised, what is not is batched. No window opens again.
        """
        world.publish(
            [message("a", NOW, NOW)],
            [message("b", NOW - HOUR, NOW - HOUR), message("c", NOW - SECOND, NOW - HOUR)],
            [message("d", NOW + SECOND, NOW + SECOND)],
        )
        run(world, embedded)
        (refused,) = world.rows("rejected")
        assert (refused["type"], refused["reason"], refused["floor_raise_us"]) == ("b", "too_old", HOUR)
        assert [row["message_count"] for row in world.rows("open")] == [3]
        assert_whole(world)

    def test_of_another_source(self, world: World, embedded: EngineFactory) -> None:
        """A source whose clock is a day behind, and one whose clock is minutes ahead, lose nothing and harm no
        other.
        """
        clocks = {"behind": NOW - 24 * HOUR, "right": NOW, "ahead": NOW + SKEW}
        world.publish(*([message("a", now, now, source=name)] for name, now in clocks.items()))
        world.publish(*([message("b", now, now, source=name)] for name, now in reversed(clocks.items())))
        run(world, embedded)
        assert world.rows("rejected") == []
        assert [row["message_count"] for row in world.rows("open")] == [2, 2, 2]
        assert_whole(world)


class TestWallClock:
    @pytest.mark.parametrize("jump", [-YEAR, -1, YEAR])
    def test_jumps_between_runs(self, world: World, embedded: EngineFactory, jump: int) -> None:
        """The wall clock may jump either way between two runs: what was read before is decided, what comes is decided
        by its stamps.
        """
        world.publish([message("a"), message("b", NOW + SECOND, NOW + SECOND)])
        run(world, embedded)
        world.clock.set(NOW + jump)
        stamp = NOW + min(jump, 0) + 2 * SECOND
        world.publish([message("c", stamp, stamp, source="second")])
        run(world, embedded)
        assert sorted(row["message_count"] for row in world.rows("open")) == [1, 2]
        assert world.rows("rejected") == []
        assert_sound(world)

    def test_back_a_year_rejects_what_is_ahead_of_it(self, world: World, embedded: EngineFactory) -> None:
        """With a wall clock a year slow every message is ahead of it: each is rejected on record, none is lost, and the
        source's clock stays where it was.
        """
        world.publish([message("a")])
        run(world, embedded)
        clocks = world.clocks()
        world.clock.set(NOW - YEAR)
        world.publish([message("b", key="ahead"), message("c", key="ahead")])
        run(world, embedded)
        assert [row["reason"] for row in world.rows("rejected")] == ["clock_ahead"] * 2
        assert world.clocks() == clocks
        world.assert_balanced()
        assert_sound(world)

    def test_back_closes_nothing(self, world: World, embedded: EngineFactory) -> None:
        """An idle clock never goes back: after a jump of the wall clock no tick closes anything, or reopens what was
        closed; it goes on where the wall clock passes the last commit again.
        """
        world.publish([message("a")])
        run(world, embedded)
        floors = world.clocks()
        world.clock.set(NOW - HOUR)
        assert world.runner(embedded, idle_timeout="10s").once().microbatches == []
        assert world.clocks() == floors
        world.clock.set(NOW + HOUR)
        world.runner(embedded, idle_timeout="10s").once()
        assert [row["message_count"] for row in world.rows("closed")] == [1]
        assert_sound(world)
