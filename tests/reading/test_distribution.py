"""How batches and delays are spread, against the rows of the ledger."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message
from windrow.errors import NotFoundError, TableMissingError
from windrow.reading import Distribution, distribution

Counts = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables after ten microbatches, only to be looked at."""
    world = World(tmp_path_factory.mktemp("busy"), ManualClock())
    world.publish(*log(versions=10, seed=4))
    world.runner(EngineFactory("embedded"), max_messages=1).once()
    return world


def milliseconds(first: datetime, last: datetime) -> int:
    """Return the whole milliseconds from one time to another, floored."""
    return (last - first) // timedelta(milliseconds=1)


def count_by_outcome(distributions: Distribution, by: str = "name") -> Counts:
    """Return the delays as they were counted."""
    return Counter(
        {(row[by], row["outcome"], row["delay_ms"]): row["messages"] for row in distributions.delays.to_pylist()}
    )


def delays(world: World) -> Counts:
    """Count the messages of the ledger by source, outcome and delay."""
    counts: Counts = Counter()
    for batch in world.rows("open", "closed"):
        for row in batch["messages"]:
            counts[batch["source"], "accepted", milliseconds(row["event_time"], row["received_at"])] += 1
    for row in world.rows("rejected"):
        if row["event_time"] is not None and row["received_at"] is not None:
            counts[row["source"] or "", row["reason"], milliseconds(row["event_time"], row["received_at"])] += 1
    return counts


class TestCounts:
    def test_a_row_a_batch(self, busy):
        """Every batch, open or closed, has a row with its messages and bytes."""
        rows = distribution(busy.ledger).sizes.select(["message_count", "bytes", "close_reason"]).to_pylist()
        batches = busy.rows("open", "closed")
        sizes = sorted((row["message_count"], row["bytes"], str(row["close_reason"])) for row in batches)
        assert sorted((row["message_count"], row["bytes"], str(row["close_reason"])) for row in rows) == sizes

    def test_delays(self, busy):
        """Each message with both times is counted once, by source, outcome and the milliseconds to its arrival."""
        distributions = distribution(busy.ledger)
        assert distributions.by == "source"
        assert count_by_outcome(distributions) == delays(busy)
        assert distributions.messages()["too_old"] == sum(row["reason"] == "too_old" for row in busy.rows("rejected"))

    def test_waits(self, busy):
        """Each message of a closed batch is counted once, by the milliseconds from its arrival to the close."""
        expected: Counter[int] = Counter()
        for batch in busy.rows("closed"):
            expected.update(milliseconds(message["received_at"], batch["closed_at"]) for message in batch["messages"])
        rows = distribution(busy.ledger).waits.to_pylist()
        assert {row["wait_ms"]: row["messages"] for row in rows} == expected

    def test_types_of_one_source(self, busy):
        """Where there is one source, its types are told apart."""
        distributions = distribution(busy.ledger, source="s/1")
        batches = [row for row in busy.rows("open", "closed") if row["source"] == "s/1"]
        expected = Counter(message["type"] for row in batches for message in row["messages"])
        accepted = [row for row in distributions.delays.to_pylist() if row["outcome"] == "accepted"]
        assert distributions.by == "type"
        assert sum((Counter({row["name"]: row["messages"]}) for row in accepted), Counter()) == expected

    def test_rules(self, busy):
        """The rules in force come with it, in microseconds."""
        distributions = distribution(busy.ledger)
        assert (distributions.max_delay_us, distributions.max_lead_us) == (5 * SECOND, SECOND)


class TestRange:
    def test_windows_that_begin_there(self, busy):
        """A range holds the batches whose windows begin in it, and the messages rejected with such an event time."""
        start, end = NOW + 9 * SECOND, NOW + 12 * SECOND
        distributions = distribution(busy.ledger, start=start, end=end)
        starts = [row["window_start"].timestamp() * SECOND for row in busy.rows("open", "closed")]
        assert 0 < distributions.sizes.num_rows == sum(start <= window < end for window in starts) < len(starts)
        times = [row["event_time"].timestamp() * SECOND for row in busy.rows("rejected") if row["event_time"]]
        rejected = sum(count for outcome, count in distributions.messages().items() if outcome != "accepted")
        assert 0 < rejected == sum(start <= time < end for time in times) < len(times)

    def test_nothing_there(self, busy):
        """Where there is nothing, an error says so."""
        with pytest.raises(NotFoundError):
            distribution(busy.ledger, key="nobody")
        with pytest.raises(NotFoundError):
            distribution(busy.ledger, start=0, end=1)

    def test_no_ledger(self, tmp_path):
        """Where there is no ledger, an error says so."""
        with pytest.raises(TableMissingError):
            distribution(str(tmp_path / "nowhere"))


def test_only_rejected_messages(tmp_path, clock, embedded):
    """A ledger without a batch has delays all the same, and no waits."""
    world = World(tmp_path, clock)
    world.publish([message("a", NOW - 60 * SECOND), message(None)])
    world.runner(embedded).once()
    distributions = distribution(world.ledger)
    assert (distributions.sizes.num_rows, distributions.waits.num_rows) == (0, 0)
    assert count_by_outcome(distributions) == {("a", "too_old", 60_000): 1, ("", "invalid", 0): 1}
