"""Disks that are full or read-only, at every phase: nothing half-written counts, and the run after it is whole."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import (
    assert_sound,
    assert_whole,
    blocked,
    error_lines,
    full_disk,
    log_file,
    places,
    rights,
    run,
    with_full_disk,
    without_root,
)
from tests.messages import log, table
from tests.probes import act_once, no_op, with_probe
from windrow.errors import DepotUnreadableError, RetriesExhaustedError, TableUnreadableError, TableUnwritableError
from windrow.ingest.ingest import ingest
from windrow.ledger.live import Live
from windrow.ledger.versions import Fold
from windrow.runtime import maintenance
from windrow.testing.points import Point, ProbedLedger

pytestmark = pytest.mark.ci

READ_ONLY, CLOSED = 0o555, 0o000
NEW = log(versions=1, seed=9)[0]


@pytest.fixture
def half(full: World, embedded: EngineFactory) -> World:
    """A ledger with a microbatch, and a version of the depot that it has not read yet."""
    run(full, embedded)
    full.publish(NEW)
    return full


@pytest.fixture
def shared(common: Path, embedded: EngineFactory) -> World:
    """The same where every user may write."""
    world = World(common, ManualClock())
    world.publish(*log(versions=3))
    run(world, embedded)
    world.publish(NEW)
    return world


class TestFull:
    @pytest.mark.slow_unless({"limit": 0}, {"point": Point.BEFORE_COMMIT})
    @pytest.mark.parametrize("limit", [0, 6_000])
    @pytest.mark.parametrize("point", [point for point in Point if point is not Point.AFTER_COMMIT])
    def test_at_every_phase(self, half: World, embedded: EngineFactory, point: Point, limit: int) -> None:
        """A disk that is full from any phase on, whether no file or only small ones still fit, ends the run with the
        table and the cause; the ledger is as it was, and the next run equals an undisturbed one.
        """
        version = half.version()
        with pytest.raises(RetriesExhaustedError, match=r"WINDROW-TABLE-UNWRITABLE: the ledger .* cannot be written"):
            half.runner(embedded, with_full_disk(point, limit), max_retries=0).once()
        assert half.version() == version
        assert_sound(half)
        run(half, embedded)
        assert_whole(half)

    def test_for_a_while(self, half: World, embedded: EngineFactory) -> None:
        """A disk that is full for a moment is a failed attempt: the next one succeeds by itself."""
        half.runner(embedded, with_probe(no_op, Once)).once()
        assert [row["attempt"] for row in half.history()] == [1, 2]
        assert_whole(half)

    @pytest.mark.parametrize("limit", [0, 1_000])
    def test_while_a_ledger_is_made(self, full: World, embedded: EngineFactory, limit: int) -> None:
        """A disk that is full when the ledger is made leaves no ledger, and what it left is no obstacle afterwards."""
        with full_disk(limit), pytest.raises(TableUnwritableError, match=r"the ledger .* cannot be written"):
            full.runner(embedded)
        assert not DeltaTable.is_deltatable(full.ledger)
        run(full, embedded)
        assert_whole(full)

    @pytest.mark.parametrize("limit", [0, 1_000])
    def test_while_ingesting(self, full: World, embedded: EngineFactory, tmp_path: Path, limit: int) -> None:
        """A disk that is full when a file is ingested leaves the depot as it was; ingested again the file comes in
        once.
        """
        file = tmp_path / "messages.parquet"
        pq.write_table(table(NEW), file)
        writer = full.tables(embedded).writer
        with full_disk(limit), pytest.raises(TableUnwritableError, match=r"the depot .* cannot be written"):
            list(ingest(writer, [str(file)], {}))
        assert DeltaTable(full.depot).version() == 3
        assert [outcome.message_count for outcome in ingest(writer, [str(file)], {})] == [len(NEW)]
        assert [outcome.already_ingested for outcome in ingest(writer, [str(file)], {})] == [True]
        run(full, embedded)
        assert_whole(full)

    def test_while_a_depot_is_made(self, tmp_path: Path, embedded: EngineFactory) -> None:
        """A disk that is full when the depot is made leaves none."""
        places = str(tmp_path / "depot"), str(tmp_path / "ledger")
        writer = embedded.open(*places).writer
        with full_disk(), pytest.raises(TableUnwritableError, match=r"the depot .* cannot be written"):
            writer.create(pa.string(), "90d")
        assert not DeltaTable.is_deltatable(str(tmp_path / "depot"))
        writer.create(pa.string(), "90d")
        assert writer.depot().version == 0

    @pytest.mark.parametrize("limit", [0, 1_000])
    def test_while_folding(
        self, half: World, embedded: EngineFactory, caplog: pytest.LogCaptureFixture, limit: int
    ) -> None:
        """A disk that is full during a fold is no failed attempt: the run says so and goes on, and the next fold
        succeeds.
        """
        version = half.version()
        half.runner(embedded, with_probe(no_op, partial(FullFold, limit)), max_retries=0, fold_commits=2).once()
        [record] = caplog.records
        assert record.msg == "fold failed"
        assert record.error.startswith("WINDROW-TABLE-UNWRITABLE: the ledger")
        assert (half.version(), half.history()[-1]["attempt"]) == (version + 1, 1)
        assert_whole(half)
        maintenance.fold(half.tables(embedded).ledger)
        assert half.version() == version + 2
        assert_whole(half)

    def test_only_reading(self, half: World, embedded: EngineFactory) -> None:
        """Verify, status and show need no space."""
        with full_disk():
            assert_sound(half)

    @pytest.mark.slow
    def test_on_spark(self, half: World, spark_engine: EngineFactory, embedded: EngineFactory) -> None:
        """When the commit's place in the ledger's log cannot be written, Spark's commit fails as a whole: the ledger is
        as it was, and the next run equals an undisturbed one.
        """
        version = half.version()
        obstacle = log_file(half.ledger, version + 1)
        with pytest.raises(RetriesExhaustedError) as failed:
            half.probed(
                spark_engine, lambda here: here is Point.BEFORE_COMMIT and blocked(obstacle), max_retries=0
            ).once()
        assert len(str(failed.value).splitlines()) == 2
        obstacle.rmdir()
        assert half.version() == version
        run(half, spark_engine)
        assert_whole(half)


class TestReadOnly:
    @pytest.mark.parametrize("part", ["_delta_log", "state=rejected/folded=false"])
    def test_ledger(self, shared: World, embedded: EngineFactory, part: str) -> None:
        """A ledger that may not be written, or only parts of it, ends the run with the place and the cause; it is as it
        was, and with the rights back the run goes on.
        """
        version = shared.version()
        with (
            rights(READ_ONLY, Path(shared.ledger) / part),
            without_root(),
            pytest.raises(RetriesExhaustedError, match=r"WINDROW-TABLE-UNWRITABLE: .*Permission denied") as failed,
        ):
            run(shared, embedded)
        assert len(str(failed.value).splitlines()) == 2
        assert shared.version() == version
        run(shared, embedded)
        assert_whole(shared)

    @pytest.mark.parametrize("point", [point for point in Point if point is not Point.AFTER_COMMIT])
    def test_at_every_phase(self, shared: World, embedded: EngineFactory, point: Point) -> None:
        """A ledger that becomes read-only at any phase is as it was; with the rights back the run goes on."""
        version = shared.version()
        with ExitStack() as stack:

            def close() -> None:
                stack.enter_context(rights(READ_ONLY, *places(shared.ledger)))
                stack.enter_context(without_root())

            with pytest.raises(RetriesExhaustedError, match=r"WINDROW-TABLE-UNWRITABLE: .*Permission denied"):
                shared.probed(embedded, act_once(point, close), max_retries=0).once()
        assert shared.version() == version
        run(shared, embedded)
        assert_whole(shared)

    def test_beside_the_ledger(self, shared: World, common: Path, embedded: EngineFactory) -> None:
        """Where the lock file beside a table cannot be made, nothing is committed without it."""
        for lock in common.glob(".*.lock"):
            lock.unlink()
        version = shared.version()
        with rights(READ_ONLY, common), without_root(), pytest.raises(RetriesExhaustedError, match=r"\.ledger\.lock"):
            run(shared, embedded)
        assert shared.version() == version
        run(shared, embedded)
        assert_whole(shared)

    def test_no_ledger_yet(self, common: Path, embedded: EngineFactory) -> None:
        """Where no ledger can be made, the run says so and makes none."""
        world = World(common, ManualClock())
        world.publish(NEW)
        with rights(READ_ONLY, common), without_root(), pytest.raises(TableUnwritableError, match="Permission denied"):
            world.runner(embedded)
        assert not DeltaTable.is_deltatable(world.ledger)
        run(world, embedded)
        assert_whole(world)

    def test_depot_while_ingesting(self, shared: World, common: Path, embedded: EngineFactory) -> None:
        """A depot that may not be written takes no file; with the rights back the file comes in once."""
        file = common / "messages.parquet"
        pq.write_table(table(NEW), file)
        version = DeltaTable(shared.depot).version()
        writer = shared.tables(embedded).writer
        with (
            rights(READ_ONLY, *places(shared.depot)),
            without_root(),
            pytest.raises(TableUnwritableError, match="depot"),
        ):
            list(ingest(writer, [str(file)], {}))
        assert DeltaTable(shared.depot).version() == version
        assert [outcome.message_count for outcome in ingest(writer, [str(file)], {})] == [len(NEW)]
        run(shared, embedded)
        assert_whole(shared)

    def test_depot_is_only_read(self, shared: World, embedded: EngineFactory) -> None:
        """A run writes nothing to the depot: it may be read-only."""
        with rights(READ_ONLY, *places(shared.depot)), without_root():
            run(shared, embedded)
        assert_whole(shared)


class TestClosed:
    @pytest.mark.slow_unless({"role": "depot", "part": ""}, {"role": "ledger", "part": "_delta_log"})
    @pytest.mark.parametrize("role", ["depot", "ledger"])
    @pytest.mark.parametrize("part", ["", "_delta_log"])
    def test_directory(self, shared: World, embedded: EngineFactory, role: str, part: str) -> None:
        """A table, or its log, that may not be read is not taken for one that is not there: no other is made."""
        version = shared.version()
        with (
            rights(CLOSED, Path(getattr(shared, role)) / part),
            without_root(),
            pytest.raises(TableUnreadableError, match="Permission denied"),
        ):
            run(shared, embedded)
        assert shared.version() == version
        run(shared, embedded)
        assert_whole(shared)

    def test_files(self, shared: World, embedded: EngineFactory) -> None:
        """Files of the depot or ledger that may not be read stop the run; nothing is taken for empty."""
        for files, error in (
            (Path(shared.depot).glob("*.parquet"), DepotUnreadableError),
            (Path(shared.ledger).glob("state=open/*/*.parquet"), RetriesExhaustedError),
        ):
            with (
                rights(CLOSED, *files),
                without_root(),
                pytest.raises(error, match=r"(?s)UNREADABLE.*Permission denied"),
            ):
                run(shared, embedded)
        run(shared, embedded)
        assert_whole(shared)


class TestSaid:
    @pytest.mark.parametrize("command", [("run",), ("tick", "--all")])
    def test_in_two_lines(self, windrow: Command, half: World, command: tuple[str, ...]) -> None:
        """On the command line a run that cannot write ends with 3 and says the code, the place, the cause and what to
        do.
        """
        Path("windrow.toml").write_text("max_retries = 0\n")
        blocked(log_file(half.ledger, half.version() + 1))
        result = windrow(*command, "--depot", "depot", "--ledger", "ledger", "--json")
        lines = error_lines(result.err)
        assert (result.status, result.out, len(lines)) == (3, "", 2)
        assert (
            "WINDROW-RETRIES-EXHAUSTED: the microbatch failed 1 times, the last time with: WINDROW-TABLE-UNWRITABLE"
            in lines[0]
        )


class FullFold(ProbedLedger):
    """A ledger whose folds find a disk with so many bytes left."""

    def __init__(self, limit: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._limit = limit

    def fold(self, live: Live, size: Fold) -> None:
        """Fold."""
        with full_disk(self._limit):
            self.inner.fold(live, size)


class Once(ProbedLedger):
    """A ledger whose first commit finds a full disk."""

    _first = True

    def commit(self, *arguments: Any) -> int | None:
        """Commit."""
        with full_disk() if self._first else nullcontext():
            self._first = False
            return super().commit(*arguments)
