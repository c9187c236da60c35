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
def said(caplog):
    """The logged events with their records."""
    caplog.set_level(logging.INFO, "windrow")
    return lambda event: [record for record in caplog.records if record.msg == event]


class TestLines:
    def test_one_line_a_microbatch(self, world, embedded, said):
        """Each microbatch has one line with its history row, the reasons, the open batches and the phases."""
        world.publish(*log(versions=4))
        watch(world, embedded, [LogObserver()], max_messages=60)
        lines, rows = said("microbatch"), world.history()
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
            assert line.messages == row["messages_read"]
            refused = [one["reason"] for one in world.rows("rejected") if one["microbatch"] == line.number]
            assert line.reasons == {reason: refused.count(reason) for reason in sorted(set(refused))}
            assert min(line.prime_ms, line.plan_ms, line.process_ms, line.commit_ms) > 0
        assert lines[-1].open_batches == len(world.rows("open"))
        totals = {name: sum(getattr(line, name) for line in lines) for name in ("messages", "accepted", "closed")}
        [ended] = said("run ended")
        assert {name: getattr(ended, name) for name in totals} == totals
        assert (ended.microbatches, ended.seconds > 0) == (2, True)
        [started] = said("run started")
        assert (started.engine, started.depot, started.ledger) == ("embedded", world.depot, world.ledger)

    def test_retry(self, world, embedded, said):
        """A failed attempt is a warning with its number and reason, in one line."""
        world.publish(*log(versions=1))
        watch(world, embedded, [LogObserver()], fail_times(Point.BEFORE_COMMIT, times=2))
        told = [(line.levelname, line.attempt, line.code, line.error) for line in said("retry")]
        assert told == [("WARNING", number, "OSError", "the disk failed before_commit") for number in (1, 2)]
        assert [line.attempt for line in said("microbatch")] == [3]

    def test_failure(self, world, embedded, said):
        """A run that ends with an error logs the error's code and the totals so far."""
        world.publish(*log(versions=1))
        with pytest.raises(RetriesExhaustedError):
            watch(world, embedded, [LogObserver()], fail_times(Point.BEFORE_COMMIT, times=1), max_retries=0)
        [line] = said("run failed")
        assert (line.levelname, line.code, line.microbatches) == ("ERROR", "WINDROW-RETRIES-EXHAUSTED", 0)
        assert said("run ended") == []

    def test_rules_changed(self, world, embedded, said):
        """A change of the rules has a separate line, besides the microbatch that records it."""
        world.publish(*log(versions=1))
        watch(world, embedded, [LogObserver()])
        assert said("rules changed") == []
        watch(world, embedded, [LogObserver()], rules={"window": "1m30s"})
        [line] = said("rules changed")
        assert (line.number, line.window, line.max_delay) == (2, "1m30s", "5s")
        assert [line.kind for line in said("microbatch")] == ["data", "rules"]

    def test_lag(self, world, embedded, said):
        """The lag is the age of the newest message that moves a clock when it is committed; a tick has none."""
        world.publish(*log(versions=1))
        newest = max(row["received_at"] for row in world.arrived().to_pylist() if row["key"] not in (None, "ahead"))
        world.clock.set(int(newest.timestamp() * 1_000_000) + 60_000_000)
        watch(world, embedded, [LogObserver()], idle_timeout="0s")
        lags = [line.lag_ms for line in said("microbatch")]
        assert 60_000 < lags[0] < 60_100
        assert [line.kind for line in said("microbatch")] == ["data"]
        world.clock.advance(60_000_000)
        watch(world, embedded, [LogObserver()], idle_timeout="0s")
        assert [(line.kind, line.lag_ms) for line in said("microbatch")][1:] == [("tick", None)]

    def test_maintenance(self, world, embedded, said):
        """Maintenance of a table is one line with results and duration; a failure is a warning with its code."""
        with notify_observers(RunInfo("embedded", world.settings(embedded), world.clock), [LogObserver()]) as told:
            told.maintained(MaintenanceResult("ledger", world.ledger, files_removed=9, files_added=3), 12.5)
            told.maintenance_failed("depot", TableUnwritableError("the disk is full\nso it is", "Make room."))
        [line] = said("maintenance")
        assert (line.table, line.location, line.skip_reason) == ("ledger", world.ledger, None)
        assert (line.files_removed, line.files_added, line.files_deleted, line.took_ms) == (9, 3, 0, 12.5)
        [line] = said("maintenance failed")
        assert (line.levelname, line.table, line.code) == ("WARNING", "depot", "WINDROW-TABLE-UNWRITABLE")
        assert line.error == "WINDROW-TABLE-UNWRITABLE: the disk is full"
