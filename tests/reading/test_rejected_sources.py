"""Which sources had messages rejected: how many of how many, since when, by how much, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, SECOND, Row, log, message
from windrow.model.timestamps import time_text
from windrow.reading.rejected_sources import RejectedSource, rejected_sources
from windrow.reading.tables import open_ledger

MINUTE = 60 * SECOND


def late(at: int, count: int, source: str = "slow") -> list[Row]:
    """Return a message in time, and others an hour late that arrive with it."""
    first = message("first", at, at, source=source)
    return [first, *(message("late", at - HOUR - number, at + SECOND, source=source) for number in range(count))]


def run(world: World, embedded: EngineFactory, versions: Sequence[Sequence[Row]], **settings: object) -> None:
    """Publish versions and read each two seconds later in a microbatch of its own, a minute apart."""
    for number, rows in enumerate(versions):
        world.clock.set(NOW + number * MINUTE + 2 * SECOND)
        world.publish(rows)
        world.runner(embedded, **settings).once()


def worst(world: World) -> RejectedSource:
    """Return the one source and reason that there is."""
    [row] = rejected_sources(open_ledger(world.ledger)).worst
    return row


class TestOneSource:
    @pytest.fixture
    def world(self, tmp_path: Path, clock: ManualClock) -> World:
        """An empty depot."""
        return World(tmp_path, clock)

    def test_counts_and_reason(self, world: World, embedded: EngineFactory) -> None:
        """It says how many of how many, the median offset, and what would have kept the worst."""
        run(world, embedded, [late(NOW, 9), [message("a", NOW, NOW, source="fine")]])
        row = worst(world)
        assert (row.source, row.reason, row.message_count, row.read, row.key_count) == ("slow", "too_old", 9, 10, 1)
        assert row.offset_us == -HOUR - SECOND - 4
        assert row.missed_by_us == HOUR + SECOND + 8 - 5 * SECOND
        assert 'max_delay = "1h2s" would have kept it' in row.explanation.hint
        assert row.bins == ()

    def test_rules_of_then(self, world: World, embedded: EngineFactory) -> None:
        """The explanation is by the rules of the microbatch that rejected the worst, not by those of now."""
        run(world, embedded, [late(NOW, 1)])
        run(
            world,
            embedded,
            [[message("b", NOW + MINUTE, NOW + MINUTE, source="slow")]],
            rules={"window": "60s", "max_delay": "20s"},
        )
        assert worst(world).explanation.reason.startswith("max_delay was 5 s; it came 1 h 1 s after its time")

    def test_since(self, world: World, embedded: EngineFactory) -> None:
        """A stray message of long ago does not count as the time since when a source is off; the last one does."""
        versions = [late(NOW + number * MINUTE, 1 if number == 0 else 10 * (number > 40)) for number in range(50)]
        run(world, embedded, versions)
        row = worst(world)
        assert row.message_count == 91
        assert (row.since, row.until) == (time_text(NOW + 41 * MINUTE + SECOND), time_text(NOW + 49 * MINUTE + SECOND))
        assert len(row.bins) == 24
        assert sum(row.bins) == 91
        assert row.bins[0] == 1
        assert not any(row.bins[1:19])
        assert all(row.bins[20:])

    def test_stamps_ahead(self, world: World, embedded: EngineFactory) -> None:
        """Where stamps of arrival are in the future, `since` is when the messages were read."""
        ahead = [message("a", NOW + HOUR, NOW + HOUR, source="early")]
        run(world, embedded, [ahead])
        row = worst(world)
        assert (row.reason, row.since, row.until) == (
            "clock_ahead",
            time_text(NOW + 2 * SECOND),
            time_text(NOW + 2 * SECOND),
        )


def test_all(tmp_path: Path, embedded: EngineFactory, clock: ManualClock) -> None:
    """All rejected messages are counted once, a limit leaves the fewest out, and accepted ones are those in batches."""
    world = World(tmp_path, clock)
    world.publish(*log(versions=8, seed=3))
    world.runner(embedded, max_messages=1).once()
    book = open_ledger(world.ledger)
    whole, cut = rejected_sources(book), rejected_sources(book, limit=2)
    assert sum(row.message_count for row in whole.worst) == len(world.rows("rejected"))
    assert sum(whole.accepted.values()) == sum(row["message_count"] for row in world.rows("open", "closed"))
    assert whole.pairs == len(whole.worst) == cut.pairs
    assert cut.worst == whole.worst[:2]
