"""The history of a ledger as a table: what was recorded, how far behind it was, and when Delta noted the commits."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from deltalake import DeltaTable

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import MILLISECOND, SECOND, message
from windrow.errors import NotFoundError
from windrow.reading import history


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables after two microbatches of data and a flush, of sources that are not equally far; only to be looked at."""
    clock = ManualClock()
    world = World(tmp_path_factory.mktemp("past"), clock)
    world.publish(
        [message("a", NOW, NOW, source="ahead"), message("a", NOW - SECOND, NOW - SECOND, source="behind")],
        [message("a", NOW + SECOND, NOW + SECOND, source="ahead")],
    )
    clock.set(NOW + 30 * SECOND)
    runner = world.runner(EngineFactory("embedded"), max_messages=1)
    runner.once()
    runner.flush()
    return world


def test_what_was_recorded(past):
    """Each microbatch has a row with what the ledger recorded of it, in order."""
    rows = history(past.ledger).to_pylist()
    recorded = past.history()
    assert [row["kind"] for row in rows] == past.kinds() == ["data", "data", "flush"]
    for row, known in zip(rows, recorded, strict=True):
        same = ("microbatch", "attempt", "accepted", "rejected", "opened", "closed", "started_at", "plan_ms", "engine")
        assert [row[name] for name in same] == [known[name] for name in same]
        assert row["message_count"] == known["messages_read"]
        assert row["depot_versions"] == len(known["versions"])


def test_how_far_behind(past):
    """The lag is counted to the newest message of the sources furthest ahead and behind; a flush reads none."""
    first, second, flush = history(past.ledger).to_pylist()
    assert (first["newest_ms"], first["oldest_ms"]) == (30_000, 31_000)
    assert (second["newest_ms"], second["oldest_ms"]) == (29_000, 29_000)
    assert (flush["newest_ms"], flush["oldest_ms"]) == (None, None)


def test_commits(past):
    """The commit lasts from the end of the other phases to the time that Delta's log notes for this microbatch."""
    noted = {
        json.loads(commit["userMetadata"])["microbatch"]: commit["timestamp"]
        for commit in DeltaTable(past.ledger).history()
        if "userMetadata" in commit
    }
    for row in history(past.ledger).to_pylist():
        ready = row["started_at"].timestamp() * 1_000 + row["prime_ms"] + row["plan_ms"] + row["process_ms"]
        assert row["commit_ms"] == pytest.approx(noted[row["microbatch"]] - ready, abs=0.01)


def test_commits_that_the_log_forgot(past, monkeypatch):
    """Where the log no longer has a commit, nobody knows how long it took."""
    monkeypatch.setattr(import_module("windrow.reading.history"), "MAX_COMMITS", 2)
    assert [value is None for value in history(past.ledger)["commit_ms"].to_pylist()] == [True, False, False]


def test_range(past, tmp_path, embedded):
    """A range holds the microbatches that started in it; without one there is an error."""
    started = NOW + 30 * SECOND
    assert history(past.ledger, start=started, end=started + 1).num_rows == 3
    with pytest.raises(NotFoundError):
        history(past.ledger, start=started + MILLISECOND)
    empty = World(tmp_path, past.clock)
    empty.runner(embedded).once()
    with pytest.raises(NotFoundError):
        history(empty.ledger)
