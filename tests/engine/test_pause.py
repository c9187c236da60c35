"""A paused ledger, and a run that writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message
from tests.probes import Tables, Wrapped, act_once
from windrow.columnar.arrow import to_plain_types
from windrow.errors import EngineUnavailableError, PausedError
from windrow.ledger.dry_run import DryRunLedger
from windrow.ledger.files_ledger import FilesLedger
from windrow.model import tables
from windrow.source.arrivals import Arrivals
from windrow.source.embedded import EmbeddedSource
from windrow.testing.points import Point
from windrow.verify import verify


class RemoteStore(EmbeddedSource):
    """A source with a copy of the runner for what arrives; before that it does once what it is told."""

    def __init__(self, source: EmbeddedSource, before: list[Callable[[], object]]) -> None:
        super().__init__(source.engine, source.settings)
        self._before, self.reads = before, 0

    def __reduce__(self) -> tuple[Any, ...]:
        return EmbeddedSource, (self.engine, self.settings)

    def streams(self, after: int) -> bool:
        """Return True: a stream drives the runner."""
        return True

    def stream(self, after: int, last_version: int, handle: Callable[[Arrivals], None]) -> bool:
        """Read with a copy."""
        self.reads += 1
        if self.reads > 10:
            pytest.fail("it reads forever")
        while self._before:
            self._before.pop()()
        with self.arrivals(after, last_version) as arrivals:
            if arrivals is not None:
                deepcopy(handle)(arrivals)
        return True


class Told(FilesLedger):
    """A ledger that says what was committed elsewhere."""

    def history_since(self, depot_version: int) -> pa.Table:
        """Return what was committed."""
        history = DeltaTable(self.place).to_pyarrow_table(filters=[("state", "=", "microbatch"), ("kind", "=", "data")])
        new = history.filter(pc.greater(history["depot_version"], depot_version))
        return to_plain_types(new.select([name for name, _ in tables.HISTORY])).sort_by("microbatch")


def elsewhere(before: list[Callable[[], object]]) -> Wrapped:
    """Return what has microbatches run by a copy of the runner, which only the ledger tells of."""

    def wrapped(opened: Tables) -> Tables:
        return Tables({None: RemoteStore(opened.source, before)}, Told(opened.engine, opened.ledger.settings))

    return wrapped


def rehearsing(opened: Tables) -> Tables:
    """Return tables of a dry run."""
    return Tables(opened.sources, DryRunLedger(opened.ledger))


class TestPause:
    @pytest.mark.slow_on_spark
    def test_nothing_happens(self, world: World, engine: EngineFactory) -> None:
        """While a ledger is paused nothing is read, closed or recorded; after `resume` all that waited is read. Both
        stand in the history.
        """
        world.publish(*log(versions=1))
        world.runner(engine).pause()
        before = world.version()
        summary = world.runner(engine, idle_timeout="1s", rules={"max_delay": "8s"}).once()
        assert summary.paused
        assert summary.microbatches == []
        assert world.version() == before
        world.runner(engine).resume()
        assert world.runner(engine).once().total("message_count") == 30
        assert world.kinds() == ["pause", "resume", "data"]
        assert world.canonical() == world.expected()
        world.assert_balanced()

    def test_ticks_are_refused(self, world: World, embedded: EngineFactory) -> None:
        """A tick or flush by hand says that the ledger is paused instead of doing nothing."""
        world.runner(embedded).pause()
        with pytest.raises(PausedError):
            world.runner(embedded).tick()
        with pytest.raises(PausedError):
            world.runner(embedded).flush()

    def test_twice(self, world: World, embedded: EngineFactory) -> None:
        """Pausing what is paused, and resuming what runs, commits nothing."""
        world.runner(embedded).pause()
        world.runner(embedded).pause()
        world.runner(embedded).resume()
        world.runner(embedded).resume()
        assert world.kinds() == ["pause", "resume"]

    def test_stops_a_running_driver(self, world: World, embedded: EngineFactory) -> None:
        """A driver that was at work when the ledger was paused is fenced, and then leaves it alone; a loop goes on with
        all of it when it is resumed, although the depot did not grow meanwhile.
        """
        world.publish(*log(versions=2))
        pause = act_once(Point.BEFORE_COMMIT, lambda: world.runner(embedded).pause())
        runner = world.probed(embedded, pause, max_messages=30)
        assert runner.once().paused
        assert world.kinds() == ["pause"]
        world.runner(embedded).resume()
        runner.once()
        assert world.kinds() == ["pause", "resume", "data", "data"]
        assert world.canonical() == world.expected()

    def test_where_another_process_reads(self, world: World, embedded: EngineFactory) -> None:
        """Where what arrives is handled in another process, as on Spark Connect, a loop sees that the ledger was paused
        before that, and reads all of it when it is resumed, although the depot did not grow meanwhile.
        """
        world.publish(*log(versions=2))
        before = [lambda: world.runner(embedded).pause()]
        runner = world.runner(embedded, elsewhere(before))
        assert runner.once().paused
        world.runner(embedded).resume()
        assert runner.once().total("message_count") == 60
        assert world.kinds() == ["pause", "resume", "data"]

    def test_restored_where_another_process_reads(self, world: World, embedded: EngineFactory) -> None:
        """There a ledger that was RESTOREd before that is noticed as well: the next read begins where it stands."""
        world.publish(*log(versions=2))
        before: list[Callable[[], object]] = []
        runner = world.runner(embedded, elsewhere(before))
        runner.once()
        world.publish(log(versions=1, seed=7, start=NOW + 8 * SECOND)[0])
        before.append(lambda: DeltaTable(world.ledger).restore(0))
        runner.once()
        assert world.canonical() == world.expected()

    @pytest.mark.ci
    @pytest.mark.parametrize(("pausing", "resuming"), [("5s", "8s"), ("8s", "5s"), ("8s", "8s"), ("0s", "8s")])
    def test_under_other_rules(self, world: World, embedded: EngineFactory, pausing: str, resuming: str) -> None:
        """Pausing and resuming under changed settings leaves rules and batches as they are: the next run changes the
        rules, with the floors that go with them, so that no closed window opens again.
        """
        world.publish([message("a", NOW, NOW)], [message("b", NOW + 10 * SECOND, NOW + 10 * SECOND)])
        world.runner(embedded).once()
        before = world.canonical()
        world.runner(embedded, rules={"max_delay": pausing}).pause()
        world.runner(embedded, rules={"max_delay": resuming}).resume()
        assert world.canonical() == before
        assert len({row["rules"] for row in world.history()}) == 1
        world.publish([message("c", NOW + 4 * SECOND, NOW + 11 * SECOND)])
        world.runner(embedded, rules={"max_delay": "8s"}).once()
        assert world.kinds() == ["data", "pause", "resume", "rules", "data"]
        assert [row["reason"] for row in world.rows("rejected")] == ["too_old"]
        assert verify(world.depot, world.ledger).ok


class TestDryRun:
    @pytest.mark.slow_on_spark
    @pytest.mark.parametrize("max_driver_messages", [500_000, 0])
    def test_foretells(self, world: World, engine: EngineFactory, max_driver_messages: int) -> None:
        """A dry run reports, microbatch by microbatch, what the run after it does, and leaves no trace; without a
        ledger it makes none.
        """
        if (engine.name == "embedded" or engine.more) and not max_driver_messages:
            pytest.skip("only Spark has executors, and one way to them is enough")
        world.publish(*log(versions=3))
        values = {"max_messages": 60, "max_driver_messages": max_driver_messages, "idle_timeout": "1s"}
        rehearsed = world.runner(engine, rehearsing, **values).once()
        assert world.tables(engine).ledger.table() is None
        summary = world.runner(engine, **values).once()
        assert len(summary.microbatches) > 1
        names = ("kind", "depot_version", "message_count", "accepted", "rejected", "opened", "closed", "processed_on")
        assert [[getattr(microbatch, name) for name in names] for microbatch in rehearsed.microbatches] == [
            [getattr(microbatch, name) for name in names] for microbatch in summary.microbatches
        ]
        version = world.version()
        world.publish(*log(versions=1, seed=9))
        world.runner(engine, rehearsing, **values).once()
        assert world.version() == version

    def test_in_another_process(self, world: World, embedded: EngineFactory) -> None:
        """Where reading happens in another process, whose memory is not ours, a dry run is refused at once."""
        opened = world.tables(embedded)
        opened.engine.remote = True
        with pytest.raises(EngineUnavailableError, match="Spark Connect"):
            rehearsing(opened)
