import logging

import pytest

from tests.messages import log
from tests.operate.conftest import watch
from tests.probes import fail_times
from windrow.errors import RetriesExhaustedError, TableUnwritableError
from windrow.model.results import MaintenanceResult
from windrow.operate import LogObserver, RunInfo, notify_observers
from windrow.testing.points import Point


@pytest.fixture
def logged(caplog):
    """The logged events with their records."""
    caplog.set_level(logging.INFO, "windrow")
    return lambda event: [record for record in caplog.records if record.msg == event]


class TestLines:
    def test_one_line_a_microbatch(self, world, embedded, logged):
        """Each microbatch has one line with its history row, the reasons, the open batches and the phases."""
        world.publish(*log(versions=4))
        watch(world, embedded, [LogObserver()], max_messages=60)
        lines, rows = logged("microbatch"), world.history()
        assert [line.number for line in lines] == [1, 2]
        for line, row in zip(lines, rows, strict=True):
            names = (
                "kind",
                "attempt",
                "depot_version",
                "accepted",
                "rejected",
                "opened",
                "closed",
                "processed_on",
                "engine",
            )
            assert {name: getattr(line, name) for name in names} == {name: row[name] for name in names}
            assert line.message_count == row["messages_read"]
            refused = [
                rejection["reason"] for rejection in world.rows("rejected") if rejection["microbatch"] == line.number
            ]
            assert line.reasons == {reason: refused.count(reason) for reason in sorted(set(refused))}
            assert min(line.prime_ms, line.plan_ms, line.process_ms, line.commit_ms) > 0
        assert lines[-1].open_batch_count == len(world.rows("open"))
        totals = {name: sum(getattr(line, name) for line in lines) for name in ("message_count", "accepted", "closed")}
        [ended] = logged("run ended")
        assert {name: getattr(ended, name) for name in totals} == totals
        assert (ended.microbatch_count, ended.seconds > 0) == (2, True)
        [started] = logged("run started")
        assert (started.engine, started.depot, started.ledger) == ("embedded", world.depot, world.ledger)

    def test_retry(self, world, embedded, logged):
        """A failed attempt is a warning with its number and reason, in one line."""
        world.publish(*log(versions=1))
        watch(world, embedded, [LogObserver()], fail_times(Point.BEFORE_COMMIT, times=2))
        retries = [(line.levelname, line.attempt, line.code, line.error) for line in logged("retry")]
        assert retries == [("WARNING", number, "OSError", "the disk failed before_commit") for number in (1, 2)]
        assert [line.attempt for line in logged("microbatch")] == [3]

    def test_failure(self, world, embedded, logged):
        """A run that ends with an error logs the error's code and the totals so far."""
        world.publish(*log(versions=1))
        with pytest.raises(RetriesExhaustedError):
            watch(world, embedded, [LogObserver()], fail_times(Point.BEFORE_COMMIT, times=1), max_retries=0)
        [line] = logged("run failed")
        assert (line.levelname, line.code, line.microbatch_count) == ("ERROR", "WINDROW-RETRIES-EXHAUSTED", 0)
        assert logged("run ended") == []

    def test_rules_changed(self, world, embedded, logged):
        """A change of the rules has a separate line, besides the microbatch that records it."""
        world.publish(*log(versions=1))
        watch(world, embedded, [LogObserver()])
        assert logged("rules changed") == []
        watch(world, embedded, [LogObserver()], rules={"window": "1m30s"})
        [line] = logged("rules changed")
        assert (line.number, line.window, line.max_delay) == (2, "1m30s", "5s")
        assert [line.kind for line in logged("microbatch")] == ["data", "rules"]

    def test_lag(self, world, embedded, logged):
        """The lag is the age of the newest message that moves a clock when it is committed; a tick has none."""
        world.publish(*log(versions=1))
        newest = max(row["received_at"] for row in world.arrived().to_pylist() if row["key"] not in (None, "ahead"))
        world.clock.set(int(newest.timestamp() * 1_000_000) + 60_000_000)
        watch(world, embedded, [LogObserver()], idle_timeout="0s")
        lags = [line.lag_ms for line in logged("microbatch")]
        assert 60_000 < lags[0] < 60_100
        assert [line.kind for line in logged("microbatch")] == ["data"]
        world.clock.advance(60_000_000)
        watch(world, embedded, [LogObserver()], idle_timeout="0s")
        assert [(line.kind, line.lag_ms) for line in logged("microbatch")][1:] == [("tick", None)]

    def test_maintenance(self, world, embedded, logged):
        """Maintenance of a table is one line with results and duration; a failure is a warning with its code."""
        with notify_observers(RunInfo("embedded", world.settings(embedded), world.clock), [LogObserver()]) as observers:
            observers.maintained(MaintenanceResult("ledger", world.ledger, files_removed=9, files_added=3), 12.5)
            observers.maintenance_failed("depot", TableUnwritableError("the disk is full\nso it is", "Make room."))
        [line] = logged("maintenance")
        assert (line.table, line.location, line.skip_reason) == ("ledger", world.ledger, None)
        assert (line.files_removed, line.files_added, line.files_deleted, line.took_ms) == (9, 3, 0, 12.5)
        [line] = logged("maintenance failed")
        assert (line.levelname, line.table, line.code) == ("WARNING", "depot", "WINDROW-TABLE-UNWRITABLE")
        assert line.error == "WINDROW-TABLE-UNWRITABLE: the disk is full"
