"""A ledger that others damaged, set back or replaced: refused with what is wrong, or found by verify, and mended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_whole, clean_up, damaged, data_files, forget_tables, log_file, run
from tests.messages import log
from windrow import reading
from windrow.errors import DepotMismatchError, IncompatibleTableError, RetriesExhaustedError, TableUnreadableError
from windrow.verify import verify

pytestmark = pytest.mark.ci

NEW = log(versions=1, seed=9)[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tables of which each test takes a copy."""
    directory = tmp_path_factory.mktemp("two")
    world = World(directory, ManualClock())
    world.publish(*log(versions=3))
    run(world, EMBEDDED)
    world.publish(NEW)
    run(world, EMBEDDED)
    world.publish(log(versions=1, seed=10)[0])
    return directory


@pytest.fixture
def half(world: World, two: Path) -> World:
    """A ledger with two microbatches, and a version of the depot that it has not read yet."""
    return world.filled_from(two)


class TestOtherDepot:
    def test_refused(self, half: World, embedded: EngineFactory, tmp_path: Path) -> None:
        """The ledger of another depot is refused, and left as it is."""
        (tmp_path / "other").mkdir()
        other = World(tmp_path / "other", ManualClock())
        other.publish(NEW)
        other.ledger = half.ledger
        version = half.version()
        with pytest.raises(DepotMismatchError, match="belongs to the depot"):
            run(other, embedded)
        assert half.version() == version
        run(half, embedded)
        assert_whole(half)


class TestWrongWayRound:
    def test_ledger_as_depot(self, half: World, embedded: EngineFactory, tmp_path: Path) -> None:
        """A ledger that is named as depot is refused before another ledger is made: its rows are no messages."""
        half.depot, half.ledger = half.ledger, str(tmp_path / "another")
        with pytest.raises(IncompatibleTableError, match="is a ledger, not a depot"):
            run(half, embedded)
        assert not Path(half.ledger).exists()


class TestRestored:
    @pytest.mark.slow_on_spark
    def test_goes_on(self, half: World, engine: EngineFactory) -> None:
        """A ledger that was RESTOREd does the microbatches after that version again, with the result of an undisturbed
        run.
        """
        DeltaTable(half.ledger).restore(1)
        run(half, engine)
        assert half.canonical() == half.expected()
        assert verify(half.depot, half.ledger).ok

    def test_while_running(self, half: World, embedded: EngineFactory) -> None:
        """A RESTORE between two rounds of a loop is noticed at the next."""
        runner = half.runner(embedded)
        runner.once()
        DeltaTable(half.ledger).restore(0)
        runner.once()
        half.publish(log(versions=1, seed=11)[0])
        runner.once()
        assert half.canonical() == half.expected()
        assert verify(half.depot, half.ledger).ok

    def test_log_cut_back(self, half: World, embedded: EngineFactory) -> None:
        """A ledger whose last commits are gone from its log is one that never had them: they are done again."""
        log_file(half.ledger, 2).unlink()
        run(half, embedded)
        assert_whole(half)

    @pytest.mark.slow_on_spark
    def test_compacted_and_cleaned_up(self, half: World, engine: EngineFactory) -> None:
        """OPTIMIZE and VACUUM of the ledger change nothing of what it holds, and the run goes on."""
        clean_up(half.ledger)
        run(half, engine)
        assert half.canonical() == half.expected()
        assert verify(half.depot, half.ledger).ok


class TestHalfDeleted:
    def test_log_gone(self, half: World, embedded: EngineFactory) -> None:
        """A ledger without its log is not begun anew over its own files: that would close its batches a second time for
        whoever reads them. With the log back it goes on.
        """
        moved = Path(half.ledger).parent / "log"
        shutil.move(Path(half.ledger) / "_delta_log", moved)
        with pytest.raises(IncompatibleTableError, match=r"not empty(.|\n)*restore its _delta_log"):
            run(half, embedded)
        shutil.move(moved, Path(half.ledger) / "_delta_log")
        run(half, embedded)
        assert_whole(half)

    def test_creation_that_was_interrupted(self, full: World, embedded: EngineFactory) -> None:
        """What an interrupted creation leaves, the first file without a log, is no ledger: the next run begins."""
        full.runner(embedded)
        shutil.rmtree(Path(full.ledger) / "_delta_log")
        assert run(full, embedded) == 90
        assert_whole(full)

    @pytest.mark.slow_unless({"damage": "gone"}, {"damage": "cut"})
    @pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
    def test_first_log_file(self, half: World, embedded: EngineFactory, damage: str) -> None:
        """A gap at the beginning of the ledger's log, or a first file that is empty or cut short, stops run, status and
        verify in a process that has not read it before; with the file back the run goes on.
        """
        forget_tables()
        with damaged(log_file(half.ledger, 0), damage):
            with pytest.raises(TableUnreadableError):
                run(half, embedded)
            with pytest.raises(TableUnreadableError):
                reading.status(half.depot, half.ledger, NOW)
            with pytest.raises(TableUnreadableError):
                verify(half.depot, half.ledger)
        run(half, embedded)
        assert_whole(half)

    @pytest.mark.slow_unless({"state": "open", "damage": "gone"}, {"state": "progress", "damage": "other"})
    @pytest.mark.parametrize("damage", ["gone", "other"])
    @pytest.mark.parametrize("state", ["open", "progress"])
    def test_live_files(self, half: World, embedded: EngineFactory, state: str, damage: str) -> None:
        """Without a file of live rows, or with another in its place, the run says which and writes nothing; with the
        file back it goes on.
        """
        version = half.version()
        with damaged(needed(half, state), damage):
            with pytest.raises(
                (TableUnreadableError, RetriesExhaustedError), match=f"WINDROW-TABLE-UNREADABLE.*state={state}"
            ):
                run(half, embedded)
            with pytest.raises(TableUnreadableError, match=f"state={state}"):
                verify(half.depot, half.ledger)
        assert half.version() == version
        run(half, embedded)
        assert_whole(half)

    @pytest.mark.slow
    def test_live_file_on_spark(self, half: World, spark_engine: EngineFactory) -> None:
        """So does Spark."""
        version = half.version()
        unreadable = "WINDROW-TABLE-UNREADABLE.*state=open"
        with damaged(needed(half, "open"), "gone"), pytest.raises(RetriesExhaustedError, match=unreadable):
            run(half, spark_engine)
        assert half.version() == version

    @pytest.mark.slow_unless({"state": "closed"})
    @pytest.mark.parametrize("state", ["closed", "rejected", "microbatch"])
    def test_final_files(self, half: World, embedded: EngineFactory, state: str) -> None:
        """Without a file of final rows the run goes on, because it never reads them; verify and status say which one is
        missing, and with it back all is there.
        """
        with damaged(needed(half, state), "gone"):
            run(half, embedded)
            with pytest.raises(TableUnreadableError, match=f"state={state}"):
                verify(half.depot, half.ledger)
            with pytest.raises(TableUnreadableError, match=f"state={state}"):
                reading.status(half.depot, half.ledger, NOW)
        assert_whole(half)


class TestRowsByHand:
    @pytest.mark.parametrize(
        ("where", "updates", "says"),
        [
            ("id = 'progress'", None, "0 progress rows"),
            ("id = 'progress'", {"token": "NULL"}, "no token"),
            ("id = 'progress'", {"depot_version": "NULL"}, "no depot_version"),
            ("id = 'progress'", {"microbatch": "NULL"}, "no microbatch"),
            ("id = 'progress'", {"rules": "'none'"}, "rules recorded in the ledger cannot be read"),
            ("id = 'progress'", {"schema_version": "9"}, "schema version 9"),
            ("state = 'progress' AND source = ''", {"floor": "NULL"}, "no floor"),
            ("state = 'progress' AND source = ''", {"source": "NULL"}, "no source"),
            ("state = 'open'", {"messages": "NULL"}, "no messages"),
            ("state = 'open'", {"window_start": "NULL"}, "no window_start"),
        ],
    )
    def test_refused(
        self, half: World, embedded: EngineFactory, where: str, updates: dict[str, str] | None, says: str
    ) -> None:
        """Live rows that Windrow cannot have written are refused with what is wrong and what to do; after the RESTORE
        the run goes on.
        """
        version = half.version()
        if updates is None:
            DeltaTable(half.ledger).delete(where)
        else:
            DeltaTable(half.ledger).update(updates=updates, predicate=where)
        with pytest.raises(IncompatibleTableError, match=says) as refused:
            half.runner(embedded, max_retries=0).once()
        assert "RESTORE" in refused.value.hint or "Windrow that wrote it" in refused.value.hint
        mended(half, embedded, version)

    @pytest.mark.parametrize("state", ["open", "progress"])
    def test_doubled(self, half: World, embedded: EngineFactory, state: str) -> None:
        """Live rows that stand twice are refused."""
        version = half.version()
        append(half, [row for row in half.rows(state) if row["id"] != "progress"])
        with pytest.raises(IncompatibleTableError, match="duplicate id"):
            run(half, embedded)
        mended(half, embedded, version)

    @pytest.mark.parametrize("state", ["open", "progress"])
    def test_foreign(self, half: World, embedded: EngineFactory, state: str) -> None:
        """A row of somebody else among the live ones is refused with its id."""
        version = half.version()
        append(half, [{"id": "mine", "state": state}])
        with pytest.raises(IncompatibleTableError, match="'mine'"):
            run(half, embedded)
        mended(half, embedded, version)

    def test_foreign_state(self, half: World, embedded: EngineFactory) -> None:
        """A run does not look at a row of a state that Windrow does not know; verify finds it, and nothing else."""
        append(half, [{"id": "mine", "state": "note"}])
        run(half, embedded)
        assert [difference.check for difference in verify(half.depot, half.ledger).differences] == ["states"]
        DeltaTable(half.ledger).delete("state = 'note'")
        assert_whole(half)

    @pytest.mark.parametrize(
        ("where", "updates"),
        [
            ("state = 'open'", None),
            pytest.param("state = 'closed'", None, marks=pytest.mark.slow),
            pytest.param("state = 'rejected'", None, marks=pytest.mark.slow),
            ("state = 'microbatch'", None),
            pytest.param("state = 'progress' AND id <> 'progress'", None, marks=pytest.mark.slow),
            ("id = 'progress'", {"depot_version": "1"}),
        ],
    )
    def test_found_by_verify(
        self, half: World, embedded: EngineFactory, where: str, updates: dict[str, str] | None
    ) -> None:
        """Rows that were deleted by hand, or a progress set back by hand, cannot be seen in the live rows alone: verify
        finds the difference at the version where it began, and after the RESTORE the run goes on.
        """
        version = half.version()
        if updates is None:
            DeltaTable(half.ledger).delete(where)
        else:
            DeltaTable(half.ledger).update(updates=updates, predicate=where)
        assert verify(half.depot, half.ledger, [version]).ok
        assert not verify(half.depot, half.ledger, [version + 1]).ok
        mended(half, embedded, version)


def needed(world: World, state: str) -> Path:
    """Return a file that the latest version of the ledger needs."""
    files = [Path(world.ledger) / path for path in DeltaTable(world.ledger).to_pyarrow_dataset().files]
    absolute = [path for path in data_files(world.ledger) if any(str(file).endswith(path.name) for file in files)]
    return next(path for path in sorted(absolute) if f"state={state}" in path.parts)


def append(world: World, rows: list[dict[str, object]]) -> None:
    """Write rows into the ledger, past Windrow."""
    schema = pa.schema(DeltaTable(world.ledger).schema().to_arrow())
    whole = [dict.fromkeys(schema.names) | row for row in rows]
    write_deltalake(world.ledger, pa.Table.from_pylist(whole, schema=schema), mode="append")


def mended(world: World, factory: EngineFactory, version: int) -> None:
    """Restore the ledger to a version, as the errors say, and see that the run goes on from there."""
    DeltaTable(world.ledger).restore(version)
    run(world, factory)
    assert world.canonical() == world.expected()
    assert verify(world.depot, world.ledger).ok
