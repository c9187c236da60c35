"""What happens when something fails: attempts, lost replies, and the requirements on both sides of a commit."""

from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.forms import have_spark
from tests.engine.probe import Lossy, Mute
from tests.engine.world import World
from tests.messages import log
from tests.probes import Tables, fail_times, no_op, with_probe
from windrow.batching.rules import Rules
from windrow.batching.step import Step
from windrow.cli.running import describe_run
from windrow.errors import InternalError, RetriesExhaustedError, RowCountMismatchError, SettingsError
from windrow.ledger.result import MicrobatchCounts
from windrow.model import tables
from windrow.runtime.batcher import Batcher
from windrow.testing.points import Point, ProbedLedger, ProbedSource

HALF_A_SECOND = 500_000
combine = MicrobatchCounts.combine


@pytest.fixture
def full(world):
    """A depot with three versions."""
    world.publish(*log(versions=3))
    return world


class Inverted(Step):
    """Batching that takes new rows for known ones and known ones for new."""

    def decide_streams(self, arrived, live):
        """Batch, and say it wrongly."""
        rows, cuts = super().decide_streams(arrived, live)
        return rows.set_column(rows.column_names.index("known"), "known", pc.invert(rows["known"])), cuts


class Inventing(Step):
    """Batching that returns rejected messages that nobody sent, more than there are."""

    def decide_streams(self, arrived, live):
        """Batch, and say it wrongly."""
        rows, cuts = super().decide_streams(arrived, live)
        count = arrived.num_rows + 1
        invented = {"id": pa.array(map(str, range(count))), "state": "rejected", "known": False}
        return pa.concat_tables([rows, tables.rows(rows.schema, invented, count)]), cuts


class Doubled(Step):
    """Batching that returns each row twice."""

    def decide_streams(self, arrived, live):
        """Batch, and say it wrongly."""
        rows, cuts = super().decide_streams(arrived, live)
        return pa.concat_tables([rows, rows]), cuts


@dataclass(frozen=True)
class Wrong(Batcher):
    """A batcher with another step."""

    kind: type[Step] = field(kw_only=True)

    def step(self, plan):
        """Return the step."""
        step = super().step(plan)
        return self.kind(**{field.name: getattr(step, field.name) for field in fields(Step)})


class Breaking(ProbedSource):
    """A depot whose first read fails when all that it read was processed."""

    broken = False

    @contextmanager
    def _reading(self):
        with super()._reading():
            yield
        if not self.broken:
            self.broken = True
            raise OSError("the stream failed after its last microbatch")


def reading(kind):
    """Return what has the depot read by a source of this kind."""

    def wrapped(tables):
        ledger = ProbedLedger(tables.ledger, no_op)
        return Tables({name: kind(source, ledger) for name, source in tables.sources.items()}, ledger)

    return wrapped


class TestAttempts:
    @pytest.mark.slow_on_spark
    def test_counted_and_backed_off(self, full, engine):
        """A commit that fails twice succeeds at the third attempt, which the history records; the pauses double and go
        through the clock.
        """
        full.probed(engine, fail_times(Point.BEFORE_COMMIT, times=2)).once()
        assert [(row["microbatch"], row["attempt"]) for row in full.history()] == [(1, 3)]
        assert full.clock.waits == [HALF_A_SECOND, 2 * HALF_A_SECOND]
        assert full.canonical() == full.expected()

    @pytest.mark.parametrize("point", Point)
    def test_at_every_point(self, full, embedded, point):
        """A failure at any point of any microbatch changes nothing of the result."""
        full.probed(embedded, fail_times(point, times=3), max_messages=30).once()
        assert full.canonical() == full.expected()
        full.assert_balanced()

    def test_each_microbatch_anew(self, full, embedded):
        """Attempts are counted for each microbatch anew, also when the reply to the one before was lost."""
        full.probed(embedded, fail_times(Point.AFTER_COMMIT, times=1), max_messages=30).once()
        assert [row["attempt"] for row in full.history()] == [1, 1, 1]

    def test_limit(self, full, embedded):
        """More failures than `max_retries` end the run with RetriesExhaustedError and its cause; the next run goes on
        from there.
        """
        with pytest.raises(RetriesExhaustedError, match="failed 3 times") as failure:
            full.probed(embedded, fail_times(Point.BEFORE_COMMIT, times=3), max_retries=2).once()
        assert isinstance(failure.value.__cause__, OSError)
        assert full.version() == 0
        full.runner(embedded).once()
        assert full.canonical() == full.expected()

    def test_usage_errors_at_once(self, full, embedded):
        """An error that a retry cannot mend is raised at once."""
        with pytest.raises(SettingsError):
            full.probed(embedded, fail_times(Point.AFTER_PLAN, times=1, error=SettingsError)).once()
        assert full.clock.waits == []

    def test_stop_while_backing_off(self, tmp_path, embedded):
        """A stop that is asked for during a pause ends the run with the failure."""
        world = World(tmp_path, ManualClock(stops_after=1))
        world.publish(*log(versions=1))
        with pytest.raises(OSError, match="the disk failed"):
            world.probed(embedded, fail_times(Point.BEFORE_COMMIT, times=1)).once()

    def test_pauses_have_a_limit(self, full, embedded):
        """The pause doubles up to 30 s."""
        full.probed(embedded, fail_times(Point.BEFORE_COMMIT, times=8), max_retries=8).once()
        assert full.clock.waits[-3:] == [16_000_000, 30_000_000, 30_000_000]


class TestLostReply:
    @pytest.mark.slow_on_spark
    def test_raised_after_commit(self, full, engine):
        """When the commit took place and its reply was lost, the next attempt finds it committed: nothing is
        doubled.
        """
        summary = full.probed(engine, fail_times(Point.AFTER_COMMIT, times=1)).once()
        assert [row["microbatch"] for row in full.history()] == [1]
        assert describe_run(summary).startswith("1 microbatch committed meanwhile")
        assert full.canonical() == full.expected()
        full.assert_balanced()

    @pytest.mark.slow_on_spark
    def test_empty_result(self, full, engine):
        """A commit that does not say how many rows it replaced, as an overwrite of Spark, counts as committed once."""
        summary = full.runner(engine, with_probe(no_op, Mute)).once()
        assert [committed.message_count for committed in summary.microbatches] == [90]
        assert full.canonical() == full.expected()

    @pytest.mark.slow_on_spark
    def test_of_the_last_microbatch(self, full, engine):
        """A failure after everything was read and committed is retried although nothing is left to read."""
        full.runner(engine, reading(Breaking)).once()
        assert full.clock.waits == [HALF_A_SECOND]
        assert full.canonical() == full.expected()


class TestRequirements:
    @pytest.mark.slow_on_spark
    def test_short_read(self, full, engine):
        """A read that gives fewer rows than the depot's commits added stops the run; nothing is written. Holds the
        comparison with the depot's own log.
        """
        with pytest.raises(RetriesExhaustedError, match="WINDROW-ROW-COUNT-MISMATCH") as failure:
            full.runner(engine, reading(Lossy), max_retries=0).once()
        assert isinstance(failure.value.__cause__, RowCountMismatchError)
        assert full.version() == 0

    @pytest.mark.slow_on_spark
    def test_known_rows(self, full, engine, monkeypatch):
        """A step that takes new rows for known ones is noticed before anything is written, on the driver and on
        executors.
        """
        have_spark("reading some", monkeypatch)
        runner = full.runner(engine)
        runner.driver.algorithm = Wrong(Rules(), kind=Inverted)
        with pytest.raises((InternalError, RetriesExhaustedError), match="not known as it should be"):
            runner.once()
        assert full.version() == 0

    def test_counts_of_the_commit(self, full, engine, monkeypatch):
        """A commit that says that it wrote other rows than it had to is noticed."""
        monkeypatch.setattr(
            MicrobatchCounts, "combine", classmethod(lambda cls, *arguments: replace(combine(*arguments), rows=1))
        )
        with pytest.raises(InternalError, match="the commit wrote"):
            full.runner(engine).once()

    def test_unique_ids(self, full, embedded):
        """Rows with the same id are refused before anything is written."""
        runner = full.runner(embedded)
        runner.driver.algorithm = Wrong(Rules(), kind=Doubled)
        with pytest.raises(InternalError, match="duplicate id"):
            runner.once()
        assert full.version() == 0
        assert full.clock.now() == NOW

    def test_no_more_rejected_than_read(self, full, embedded):
        """More rejections than messages are refused before anything is written."""
        runner = full.runner(embedded)
        runner.driver.algorithm = Wrong(Rules(), kind=Inventing)
        with pytest.raises(InternalError, match="of 90 messages were rejected"):
            runner.once()
        assert full.version() == 0
