"""A run that goes on looks after its tables, and nothing of it shows in what it does with messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_whole, full_disk
from tests.messages import HOUR, SECOND, Row, log
from windrow.delta.maintenance import DeltaRsMaintenance
from windrow.model import tables
from windrow.model.results import CommittedMicrobatch, MaintenanceResult
from windrow.operate import Observer, Observers
from windrow.runtime.driver import RunSummary
from windrow.runtime.maintenance import BackgroundMaintenance
from windrow.runtime.wall_clock import WallClock

pytestmark = pytest.mark.ci

DAY = 24 * HOUR
EACH = 4  # depot versions, each a microbatch and a small file of its own


class RecordingObserver(Observer):
    """Notes what was done to which table, what failed, and the microbatches in between."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.done: list[MaintenanceResult] = []
        self.errors: list[Exception] = []

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Note the kind."""
        self.told.append(committed.kind)

    def maintained(self, maintained: MaintenanceResult, took_ms: float) -> None:
        """Note the table."""
        self.told.append(maintained.table)
        self.done.append(maintained)

    def maintenance_failed(self, table: str, error: Exception) -> None:
        """Note the table and the error."""
        self.told.append(f"{table} failed")
        self.errors.append(error)


class Publishing(ManualClock):
    """A clock with which messages arrive during each wait."""

    def __init__(self, arrive: Callable[[], object], stops_after: int) -> None:
        super().__init__(stops_after=stops_after)
        self._arrive = arrive

    def wait(self, microseconds: int) -> bool:
        """Publish, then move on."""
        if microseconds:
            self._arrive()
        return super().wait(microseconds)


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture
def batched(world: World, embedded: EngineFactory) -> World:
    """A ledger of small files."""
    grow(world, embedded)
    return world


@pytest.fixture
def noting() -> RecordingObserver:
    """Who hears of it."""
    return RecordingObserver()


def arriving(world: World, versions: int = EACH) -> list[list[Row]]:
    """Return messages that come after those that are there."""
    there = DeltaTable(world.depot).version()
    return log(versions=versions, seed=there, start=NOW + there * 4 * SECOND)


def grow(world: World, factory: EngineFactory) -> None:
    """Let messages arrive, and each of their versions make its small files."""
    world.publish(*arriving(world))
    world.runner(factory, max_messages=1).once()


def background(world: World, factory: EngineFactory, noting: RecordingObserver, **run: str) -> BackgroundMaintenance:
    """Return a background of the tables."""
    opened = world.tables(factory, run={"maintenance_interval": "1h"} | run)
    return BackgroundMaintenance([opened.source], opened.ledger, world.clock, Observers([noting]))


def went_on(world: World, factory: EngineFactory, noting: RecordingObserver, **settings: Any) -> RunSummary:
    """Run until the clock asks for a stop."""
    values = {"idle_timeout": "never"} | settings
    return windrow.run(
        world.settings(factory, **values), once=False, spark=factory.session, clock=world.clock, observers=[noting]
    )


def files(table: str, *states: str) -> set[Path]:
    """Return the files of partitions at the latest version of a table."""
    paths = (Path(uri.removeprefix("file://")) for uri in DeltaTable(table).file_uris())
    return {path for path in paths if path.parent.parent.name in {f"state={state}" for state in states}}


def compactions(table: str) -> int:
    """Return how many compactions stand in the log of a table."""
    return [commit.get("operation") for commit in DeltaTable(table).history()].count("OPTIMIZE")


class TestRhythm:
    def test_once_in_an_interval(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """The background begins with all of both tables, tidies the ledger when an interval is over and not before, and
        comes back to all after a day.
        """
        care = background(batched, embedded, noting)
        maintenances = []
        for hours in (0, 0.5, 0.5, 0.99, 0.01, 22, 0.5):
            batched.clock.advance(int(hours * HOUR))
            maintenances.append([(result.table, result.retention) for result in care()])
        everything, tidied = [("ledger", "90d"), ("depot", "90d")], [("ledger", None)]
        assert maintenances == [everything, [], tidied, [], tidied, everything, []]

    def test_never(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """With "never" nothing is done, however long it goes on."""
        care = background(batched, embedded, noting, maintenance_interval="never")
        batched.clock.advance(400 * DAY)
        assert (care(), compactions(batched.ledger)) == ([], 0)

    def test_earlier_process(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """What another process put together within the interval is put together: the rest of the interval passes
        first.
        """
        background(batched, embedded, noting)()
        done_at = DeltaRsMaintenance(batched.ledger, "ledger").compaction_time(0)
        batched.clock.set(done_at + HOUR // 2)
        second = background(batched, embedded, noting)
        assert second() == []
        batched.clock.set(done_at + HOUR - 1)
        assert second() == []
        batched.clock.set(done_at + HOUR)
        assert [result.table for result in second()] == ["ledger", "depot"]

    def test_other_clock(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """A compaction of the future, by a clock that was wrong, does not put the next one off for more than an
        interval.
        """
        background(batched, embedded, noting)()
        second = background(batched, embedded, noting)
        assert second() == []
        batched.clock.advance(HOUR)
        assert len(second()) == 2


class TestTidy:
    def test_new_files_of_the_ledger_alone(
        self, batched: World, embedded: EngineFactory, noting: RecordingObserver
    ) -> None:
        """Between two whole maintenances small files of final rows become one in each partition, no row changes, and
        nothing else of ledger or depot is touched.
        """
        care = background(batched, embedded, noting)
        care()
        grow(batched, embedded)
        batched.clock.advance(HOUR)
        before, depot = batched.canonical(), DeltaTable(batched.depot).version()
        small = len(files(batched.ledger, *tables.FINAL))
        [result] = care()
        assert small > 2 * EACH
        assert (result.files_removed, result.files_added, result.files_deleted) == (small, 3, 0)
        assert DeltaTable(batched.depot).version() == depot
        assert batched.canonical() == before
        assert_whole(batched)

    def test_large_files_stay(
        self, batched: World, embedded: EngineFactory, noting: RecordingObserver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that has its size is not written again: otherwise every interval would leave a copy of it for
        `retention`.
        """
        monkeypatch.setattr("windrow.runtime.maintenance.SMALL", 1)
        care = background(batched, embedded, noting)
        care()
        grow(batched, embedded)
        batched.clock.advance(HOUR)
        before = files(batched.ledger, *tables.FINAL)
        [result] = care()
        assert (result.files_removed, files(batched.ledger, *tables.FINAL)) == (0, before)

    def test_left_alone(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """A ledger that delta-rs would harm is left alone, and it is said why."""
        care = background(batched, embedded, noting)
        care()
        batched.clock.advance(HOUR)
        vectors = TableFeatures.DeletionVectors
        DeltaTable(batched.ledger).alter.add_feature(vectors, allow_protocol_versions_increase=True)
        [result] = care()
        assert "deletionVectors" in str(result.skip_reason)


class TestPromises:
    def test_keep_is_nobodys_accident(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """A run that comes with another `retention` than the tables have leaves them and their past alone, and says
        so.
        """
        before = DeltaTable(batched.ledger).metadata().configuration
        opened = batched.tables(embedded, retention="1h")
        care = BackgroundMaintenance([opened.source], opened.ledger, batched.clock, Observers([noting]))
        batched.clock.advance(DAY)
        for result in care():
            assert "`windrow maintain` sets it" in str(result.skip_reason)
        assert DeltaTable(batched.ledger).metadata().configuration == before
        assert tables.retention_properties("90d").items() <= before.items()
        assert_whole(batched)

    def test_paused(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """While a ledger is paused its files are left as they are."""
        batched.runner(embedded).pause()
        batched.clock = ManualClock(stops_after=3)
        assert went_on(batched, embedded, noting, run={"maintenance_interval": "0s"}).maintained == []
        assert compactions(batched.ledger) == 0

    def test_once_never_does(self, batched: World, embedded: EngineFactory) -> None:
        """A run that ends leaves maintenance to whoever schedules it."""
        settings = batched.settings(embedded, run={"maintenance_interval": "0s"})
        assert windrow.run(settings, clock=batched.clock).maintained == []
        assert compactions(batched.ledger) == 0


class TestFailures:
    def test_run_goes_on(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """A maintenance that fails for either table is told with its error, raises nothing, and is tried again, all of
        it, when the next interval is over and not before.
        """
        care = background(batched, embedded, noting)
        before = batched.version()
        with full_disk():
            assert care() == []
            assert care() == []
        assert noting.told == ["ledger failed", "depot failed"]
        assert {type(error).__name__ for error in noting.errors} == {"TableUnwritableError"}
        assert batched.version() == before
        assert_whole(batched)
        batched.clock.advance(HOUR)
        assert [result.table for result in care()] == ["ledger", "depot"]

    def test_log_that_cannot_be_read(self, batched: World, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """When the log does not even tell of former compactions, the failure is told as any other."""
        log_of_ledger = Path(batched.ledger, "_delta_log")
        log_of_ledger.rename(Path(batched.ledger, "elsewhere"))
        assert [result.table for result in background(batched, embedded, noting)()] == ["depot"]
        assert noting.told == ["ledger failed", "depot"]


class TestStop:
    @pytest.mark.slow_unless({"steps": 1}, {"steps": 4})
    @pytest.mark.parametrize("steps", [1, 3, 4, 6])
    def test_between_two_steps(
        self, batched: World, embedded: EngineFactory, noting: RecordingObserver, steps: int
    ) -> None:
        """A stop that is asked for during a maintenance lets the step at work end and begins no other; whatever step it
        was, nothing is lost, and the next maintenance does the rest.
        """
        opened, counting = batched.tables(embedded), Counting(batched.clock, steps)
        opened.engine.maintenance = counting.counted(opened.engine.maintenance)
        care = BackgroundMaintenance([opened.source], opened.ledger, batched.clock, Observers([noting]))
        care()
        assert counting.steps == steps
        assert not noting.errors
        assert_whole(batched)
        batched.clock = ManualClock(WallClock().now() + HOUR)
        assert [result.table for result in background(batched, embedded, noting)()] == ["ledger", "depot"]
        assert len(files(batched.ledger, *batched.final)) == len(batched.final)


class Counting:
    """Asks for a stop while the n-th step of a maintenance is at work."""

    def __init__(self, clock: ManualClock, stops_at: int) -> None:
        self._clock, self._stops_at, self.steps = clock, stops_at, 0

    def counted(self, maintenance: Any) -> Any:
        """Return what gives the maintenance of a table, counted."""
        return lambda place, role: CallCounter(maintenance(place, role), self)

    def step(self) -> None:
        """Count a step."""
        self.steps += 1
        if self.steps == self._stops_at:
            self._clock.stop()


class CallCounter:
    """What looks after a table, step by step."""

    def __init__(self, upkeep: Any, counting: Counting) -> None:
        self._upkeep, self._counting = upkeep, counting

    def __getattr__(self, name: str) -> Any:
        if name in ("compact", "vacuum", "trim_log"):
            self._counting.step()
        return getattr(self._upkeep, name)


class TestRun:
    def test_between_microbatches(self, tmp_path: Path, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """A run that goes on maintains after the microbatches of a round, at most once in an interval, and says in its
        summary what it did; the messages are in the batches in which they would be without.
        """
        clock = Publishing(lambda: world.publish(*arriving(world, 2)), stops_after=5)
        world = World(tmp_path, clock)
        world.publish(*arriving(world, 2))
        every = {"trigger_interval": "30s", "maintenance_interval": "1m"}
        summary = went_on(world, embedded, noting, max_messages=1, run=every)
        rounds = "data data ledger depot data data data data ledger data data data data ledger"
        assert noting.told == rounds.split()
        assert summary.maintained == noting.done
        world.clock = ManualClock()
        world.runner(embedded).once()
        assert_whole(world)

    def test_end_that_never_comes(self, tmp_path: Path, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """Where the depot grows faster than it is read to its end, the tables are looked after all the same."""
        world = World(tmp_path, ManualClock(stops_after=1))
        versions: Iterator[list[Row]] = iter(arriving(world, 6))
        world.publish(next(versions))

        class Growing(Observer):
            def committed(self, committed: CommittedMicrobatch) -> None:
                if (rows := next(versions, None)) is not None:
                    world.publish(rows)

        settings = world.settings(embedded, idle_timeout="never", run={"maintenance_interval": "0s"})
        windrow.run(settings, once=False, clock=world.clock, observers=[Growing(), noting])
        assert noting.told[:3] == ["data", "ledger", "depot"]
        assert noting.told.count("data") == 6
        assert noting.told.index("ledger") < len(noting.told) - 1 - noting.told[::-1].index("data")
        assert_whole(world)

    def test_downstream(self, tmp_path: Path, embedded: EngineFactory, noting: RecordingObserver) -> None:
        """Whoever reads closed batches beside it gets each of them once."""
        taken: list[str] = []

        def take_and_publish() -> None:
            closed = windrow.read_closed(world.ledger, since=position[-1])
            position.append(closed.position)
            taken.extend(closed.batches["id"].to_pylist())
            world.publish(*arriving(world, 2))

        position = [0]
        world = World(tmp_path, Publishing(take_and_publish, stops_after=5))
        world.publish(*arriving(world, 2))
        went_on(world, embedded, noting, run={"maintenance_interval": "0s"})
        rest = windrow.read_closed(world.ledger, since=position[-1])
        taken.extend(rest.batches["id"].to_pylist())
        assert len(noting.done) > 5
        assert sorted(taken) == sorted(row["id"] for row in world.rows("closed"))

    @pytest.mark.slow
    def test_on_spark(self, tmp_path: Path, spark: Any, noting: RecordingObserver) -> None:
        """A run on Spark maintains its tables between microbatches as well, and goes on reading and committing."""
        world = World(tmp_path, Publishing(lambda: world.publish(*arriving(world, 1)), stops_after=3))
        world.publish(*arriving(world, 2))
        factory = EngineFactory("spark", spark)
        went_on(world, factory, noting, run={"trigger_interval": "10s", "maintenance_interval": "10s"})
        assert noting.told == ["data", "ledger", "depot", "data", "ledger", "data", "ledger"]
        assert noting.done[-1].files_removed
        world.clock = ManualClock()
        world.runner(factory).once()
        assert_whole(world)
