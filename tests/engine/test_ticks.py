"""Ticks, flushes and changes of the rules: microbatches without messages."""

import json
from datetime import UTC, datetime, timedelta

import pytest

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.world import World
from tests.messages import HOUR, SECOND, log, message
from windrow.batching.rules import Rules

TIMEOUT = NOW + 10 * SECOND  # of the batch that a message at NOW opens: window NOW - 5 s to NOW + 5 s
GRACE = 10 * SECOND


def at(moment):
    """Return microseconds as the ledger's rows show them."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)


@pytest.fixture
def opened(world, embedded):
    """A ledger with one open batch, of a message at NOW."""
    world.publish([message()])
    world.runner(embedded).once()
    return world


def closings(world):
    """Return when each closed batch was closed, why, and with how many messages."""
    return [(row["closed_at"], row["close_reason"], row["message_count"]) for row in world.rows("closed")]


def rejections(world):
    """Return reason, missed_by_us and floor_raise_us of each rejection."""
    return [(row["reason"], row["missed_by_us"], row["floor_raise_us"]) for row in world.rows("rejected")]


class TestIdleTick:
    @pytest.mark.slow_on_executors
    def test_closes_what_is_overdue(self, opened, engine):
        """An idle log closes a batch when its source's idle clock reaches timeout + grace: closed at its timeout, to
        which the floor rises; the clock of the data stays. It is recorded as a tick.
        """
        opened.clock.set(TIMEOUT + GRACE)
        opened.runner(engine, idle_timeout="10s").once()
        assert closings(opened) == [(at(TIMEOUT), "timeout", 1)]
        assert opened.clocks() == {"": (at(NOW), at(TIMEOUT))}
        tick = opened.history()[-1]
        assert (tick["kind"], tick["messages_read"], tick["closed"], tick["depot_version"]) == ("tick", 0, 1, 1)
        assert [(clock["floor"], clock["flushed_at"]) for clock in tick["clocks"]] == [(at(TIMEOUT), None)]
        opened.assert_balanced()

    def test_waits_for_the_grace(self, opened, embedded):
        """A microsecond earlier nothing is closed and nothing committed."""
        opened.clock.set(TIMEOUT + GRACE - 1)
        assert opened.runner(embedded, idle_timeout="10s").once().microbatches == []

    def test_never(self, opened, embedded):
        """With idle_timeout "never" a silent log closes nothing."""
        opened.clock.set(NOW + 1_000 * HOUR)
        assert opened.runner(embedded, idle_timeout="never").once().microbatches == []

    def test_backlog_first(self, opened, embedded):
        """After a night's downtime the backlog is read before anything is ticked: a message that was in time finds its
        batch.
        """
        opened.publish([message("b", NOW + SECOND, NOW + SECOND)])
        opened.clock.set(NOW + HOUR)
        opened.runner(embedded, idle_timeout="10s", max_messages=1).once()
        assert opened.kinds() == ["data", "data"]
        opened.clock.advance(HOUR)
        opened.runner(embedded, idle_timeout="10s").once()
        assert closings(opened) == [(at(TIMEOUT), "timeout", 2)]

    def test_a_backfill_goes_at_its_own_pace(self, world, embedded):
        """Messages of a year ago are not overdue when they are read: their clock stands where they end, and goes on at
        the pace of the wall clock.
        """
        year_ago = NOW - 8_760 * HOUR
        world.publish([message("a", year_ago, year_ago)])
        world.runner(embedded, idle_timeout="10s").once()
        world.clock.advance(10 * SECOND + GRACE - 1)
        world.runner(embedded, idle_timeout="10s").once()
        assert world.kinds() == ["data"]
        world.clock.advance(1)
        world.runner(embedded, idle_timeout="10s").once()
        assert closings(world) == [(at(year_ago + 10 * SECOND), "timeout", 1)]

    def test_other_sources_stay(self, world, embedded):
        """A tick raises only the floors of the sources in which it closes something."""
        world.publish([message(source="quiet")])
        world.runner(embedded).once()
        world.clock.set(TIMEOUT)
        world.publish([message("a", NOW + 9 * SECOND, NOW + 9 * SECOND, source="busy")])
        world.runner(embedded).once()
        world.runner(embedded).tick()
        assert world.clocks() == {"busy": (at(NOW + 9 * SECOND),) * 2, "quiet": (at(NOW), at(TIMEOUT))}
        assert [row["source"] for row in world.rows("open")] == ["busy"]

    @pytest.mark.parametrize(("event_time", "accepted"), [(NOW + 5 * SECOND - 1, False), (NOW + 5 * SECOND, True)])
    def test_late_message_after_it(self, opened, embedded, event_time, accepted):
        """A message that comes after a tick is too old only for windows that were really closed; the rejection says by
        how much the floor raised its processing time.
        """
        opened.clock.set(TIMEOUT + GRACE)
        opened.runner(embedded, idle_timeout="10s").once()
        opened.publish([message("late", event_time, NOW + 6 * SECOND)])
        opened.runner(embedded).once()
        assert rejections(opened) == ([] if accepted else [("too_old", 1, 4 * SECOND)])
        assert len(opened.rows("open")) == int(accepted)

    def test_every(self, tmp_path, embedded):
        """The loop runs, pauses through the clock, and ends when a stop is asked for, closing what became overdue."""
        world = World(tmp_path, ManualClock(stops_after=4))
        world.publish([message()])
        world.runner(embedded, idle_timeout="10s").every(10 * SECOND)
        assert world.clock.waits == [10 * SECOND] * 4
        assert world.kinds() == ["data", "tick"]


class TestTickTo:
    def test_raises_every_floor(self, world, embedded):
        """`tick --to` raises the floor of every known source and closes what times out until then; again it does
        nothing.
        """
        world.publish([message(source="a"), message("a", NOW + SECOND, NOW + SECOND, source="b")])
        world.runner(embedded).once()
        world.runner(embedded).tick(to=TIMEOUT)
        assert world.clocks() == {"a": (at(NOW), at(TIMEOUT)), "b": (at(NOW + SECOND), at(TIMEOUT))}
        assert closings(world) == [(at(TIMEOUT), "timeout", 1)]
        assert world.runner(embedded).tick(to=TIMEOUT).microbatches == []
        assert world.runner(embedded).tick(to=NOW - HOUR).microbatches == []

    def test_equals_one_call(self, world, embedded):
        """A log with a tick at its end gives what one call of `windrow.batch` with `now` gives."""
        world.publish(*log(versions=3))
        world.runner(embedded).once()
        world.runner(embedded).tick(to=NOW + 14 * SECOND)
        assert world.canonical() == world.expected(now=NOW + 14 * SECOND)


class TestFlush:
    @pytest.mark.slow_on_spark
    def test_closes_all(self, world, engine):
        """A flush closes everything at the idle clock of its source, cuts the windows behind the last event, and is
        recorded with that clock; the floor ends `max_delay` behind the cut.
        """
        last = NOW + SECOND // 2
        world.publish([message("a"), message("b", last, NOW, key="l")])
        world.runner(engine).once()
        world.clock.advance(3 * SECOND)
        world.runner(engine).flush()
        now = NOW + 3 * SECOND
        assert closings(world) == [(at(now), "flush", 1)] * 2
        assert {row["window_end"] for row in world.rows("closed")} == {at(last + 1)}
        assert world.rows("open") == []
        assert world.clocks() == {"": (at(NOW), at(last + 1 + 5 * SECOND))}
        flush = world.history()[-1]
        assert (flush["kind"], flush["clocks"][0]["flushed_at"]) == ("flush", at(now))
        world.assert_balanced()

    def test_equals_one_call(self, world, embedded):
        """A log of one source with a flush at its end gives what one call of `windrow.batch` with `flush` gives."""
        world.publish(*[[row | {"source": ""} for row in rows] for rows in log(versions=3)])
        world.runner(embedded).once()
        clock, _ = world.clocks()[""]
        world.clock.advance(2 * SECOND)
        world.runner(embedded).flush()
        now = (clock - at(0)) // timedelta(microseconds=1) + 2 * SECOND
        assert world.canonical() == world.expected(now=now, flush=True)

    @pytest.mark.parametrize(("event_time", "accepted"), [(NOW, False), (NOW + 1, True)])
    def test_late_message_after_it(self, opened, embedded, event_time, accepted):
        """After a flush only what lies before the cut is too old."""
        opened.runner(embedded).flush()
        opened.publish([message("late", event_time, NOW + 1)])
        opened.runner(embedded).once()
        assert rejections(opened) == ([] if accepted else [("too_old", 1, 5 * SECOND)])
        assert len(opened.rows("open")) == int(accepted)

    def test_nothing_open(self, opened, embedded):
        """A flush with nothing open commits nothing."""
        opened.runner(embedded).flush()
        before = opened.version()
        assert opened.runner(embedded).flush().microbatches == []
        assert opened.version() == before


class TestRules:
    def test_larger_delay(self, opened, embedded):
        """A larger `max_delay` is recorded as a microbatch of its own and raises the floors by what it grew, so that
        what was too old stays so.
        """
        opened.runner(embedded, rules={"max_delay": "8s"}).once()
        assert opened.kinds() == ["data", "rules"]
        assert json.loads(opened.history()[-1]["rules"]) == json.loads(Rules(max_delay="8s").to_json())
        assert opened.clocks() == {"": (at(NOW), at(NOW + 3 * SECOND))}
        opened.publish([message("late", NOW - 5 * SECOND - 1, NOW)])
        opened.runner(embedded, rules={"max_delay": "8s"}).once()
        assert rejections(opened) == [("too_old", 1, 3 * SECOND)]

    def test_smaller_delay(self, opened, embedded):
        """A smaller `max_delay` raises no floor; the timeout of open batches follows it."""
        opened.runner(embedded, rules={"max_delay": "2s"}).once()
        assert opened.clocks() == {"": (at(NOW), at(NOW))}
        opened.runner(embedded, rules={"max_delay": "2s"}).tick(to=TIMEOUT - 3 * SECOND)
        assert closings(opened) == [(at(TIMEOUT - 3 * SECOND), "timeout", 1)]

    def test_unchanged(self, opened, embedded):
        """Unchanged rules are no microbatch."""
        assert opened.runner(embedded).once().microbatches == []

    def test_of_a_run(self, opened, embedded):
        """New rules hold for the messages of the run that brought them."""
        opened.publish([message("b", NOW + SECOND, NOW + SECOND, key="l")])
        opened.runner(embedded, rules={"window": "20s"}).once()
        windows = [row["window_end"] - row["window_start"] for row in opened.rows("open")]
        assert windows == [timedelta(seconds=10), timedelta(seconds=20)]
        assert windrow.Rules.from_json(opened.history()[-1]["rules"]) == windrow.Rules(window="20s")
