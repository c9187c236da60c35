"""Which batches and rejected messages of the ledger a stretch holds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message, microseconds
from windrow.errors import NotFoundError
from windrow.model import tables
from windrow.reading import time_range
from windrow.reading.tables import open_ledger
from windrow.reading.time_range import recent_stretch


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables after ten microbatches, only to be looked at."""
    world = World(tmp_path_factory.mktemp("busy"), ManualClock())
    world.publish(*log(versions=10, seed=4))
    world.runner(EngineFactory("embedded"), max_messages=1).once()
    return world


def streams(world: World) -> dict[tuple[str, str], int]:
    """Count the messages of each stream as the ledger has them."""
    counted: dict[tuple[str, str], int] = {}
    for row in world.rows("open", "closed", "rejected"):
        if row["source"] is not None and row["key"] is not None:
            stream = (row["source"], row["key"])
            counted[stream] = counted.get(stream, 0) + (row["message_count"] or 1)
    return counted


class TestChoice:
    def test_busiest(self, busy):
        """Without a key the streams with the most messages are read, whole, and it is said how many there are."""
        counted = streams(busy)
        excerpt = time_range(busy.ledger, most=3)
        assert excerpt.stream_count == len(counted)
        assert list(excerpt.chosen) == sorted(counted, key=lambda stream: (-counted[stream], stream))[:3]
        there = sum(excerpt.batches["message_count"].to_pylist()) + excerpt.rejected.num_rows
        assert there == sum(counted[stream] for stream in excerpt.chosen)

    def test_key_and_source(self, busy):
        """A key is read in every source that has it; a source narrows that down."""
        assert {key for _, key in time_range(busy.ledger, key="k").chosen} == {"k"}
        assert len(time_range(busy.ledger, key="k").chosen) == 3
        assert time_range(busy.ledger, key="k", source="s/1").chosen == (("s/1", "k"),)

    def test_columns(self, busy):
        """Both tables come in the ledger's columns and plain types, whatever the reader hands out."""
        excerpt = time_range(busy.ledger)
        assert excerpt.batches.schema == pa.schema(tables.batch_fields(pa.string()))
        assert excerpt.rejected.schema == pa.schema(tables.rejected_fields(pa.string()))

    def test_bytes(self, tmp_path, clock, embedded):
        """Payloads that are bytes stay bytes."""
        world = World(tmp_path, clock, pa.binary())
        world.publish([message(payload=b"\xff\x00")])
        world.runner(embedded).once()
        assert time_range(world.ledger).batches["messages"].to_pylist()[0][0]["payload"] == b"\xff\x00"


class TestRange:
    def test_what_touches_it(self, busy):
        """Exactly those batches and rejected messages are read whose way from event to processing touches the range."""
        start, end = NOW + 9 * SECOND, NOW + 12 * SECOND
        excerpt = time_range(busy.ledger, start=start, end=end, most=100)
        batches, rejected = busy.rows("open", "closed"), busy.rows("rejected")
        whole = {row["id"] for row in batches if micro(row["timeout_at"]) >= start and micro(row["window_start"]) < end}
        assert set(excerpt.batches["id"].to_pylist()) == whole
        assert 0 < len(whole) < len(batches)
        ways = [(row, [row["event_time"], row["processing_time"] or row["received_at"]]) for row in rejected]
        expected = {
            row["id"]
            for row, way in ways
            if row["source"] is not None
            and row["key"] is not None
            and min(micro(at) for at in way if at) < end
            and max(micro(at) for at in way if at) >= start
        }
        assert set(excerpt.rejected["id"].to_pylist()) == expected
        assert 0 < len(expected) < len(rejected)

    def test_nothing_there(self, busy):
        """A key that is not there, or a range without messages, is an error that says what to try."""
        with pytest.raises(NotFoundError, match="no message of key 'nobody'\n`windrow show`"):
            time_range(busy.ledger, key="nobody")
        with pytest.raises(NotFoundError, match="no message in this time range\nChoose an earlier --from"):
            time_range(busy.ledger, start=0, end=SECOND)


def micro(moment: object) -> int:
    """Return a moment in microseconds."""
    return pa.scalar(moment, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()


class TestRecentStretch:
    def test_last(self, busy):
        """Of all sources it ends after the last message, and holds about as many messages as asked for."""
        start, end = recent_stretch(open_ledger(busy.ledger), None, 40)
        excerpt = time_range(busy.ledger, start=start, end=end, most=40)
        counted = sum(excerpt.batches["message_count"].to_pylist()) + excerpt.rejected.num_rows
        assert 40 <= counted < sum(streams(busy).values()) / 2
        ends = [row["window_end"] for row in busy.rows("open", "closed")]
        assert microseconds(max(ends)) <= end

    def test_of_a_source(self, tmp_path, clock, embedded):
        """Of a source it ends at its last rejection, whatever came later."""
        world = World(tmp_path, clock)
        world.publish(
            [message("a", NOW, NOW), message("late", NOW - 60 * SECOND, NOW + SECOND)],
            [message("a", NOW + at * SECOND, NOW + at * SECOND) for at in range(100, 1_000, 20)],
        )
        world.runner(embedded).once()
        start, end = recent_stretch(open_ledger(world.ledger), "", 100)
        assert start <= NOW < NOW + SECOND < end < NOW + 100 * SECOND

    def test_nothing(self, tmp_path, clock, embedded):
        """A source without a rejection, or a ledger without a message, has none."""
        world = World(tmp_path, clock)
        world.publish([message("a", NOW, NOW)])
        world.runner(embedded).once()
        with pytest.raises(NotFoundError):
            recent_stretch(open_ledger(world.ledger), "", 100)
