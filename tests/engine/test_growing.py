"""A ledger that only grows: what others do while a commit or a fold is under way, and what folds leave to be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import NOW, ManualClock
from tests.conftest import one_in
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.held import HeldCommit
from tests.engine.world import World
from tests.messages import HOUR, SECOND, log, message
from tests.probes import Tables
from windrow.engine import embedded as embedded_engine
from windrow.errors import ConcurrentCommitError, IncompatibleTableError
from windrow.ledger import file_writer, files
from windrow.ledger.files import File, LedgerFiles
from windrow.ledger.merge import _fold_versions
from windrow.ledger.open_batches import collect_rows
from windrow.ledger.pruning import Extent
from windrow.ledger.versions import RECORDED, Fold
from windrow.model import tables
from windrow.model.commits import note_of
from windrow.reading.batcher_status import status
from windrow.reading.closed import read_closed
from windrow.rows.session_settings import session_with
from windrow.runtime.microbatch import MicrobatchAttempt
from windrow.verify import verify

REFUSED = r"DELTA_CONCURRENT|Concurrent[A-Z]|DELTA_METADATA_CHANGED|WINDROW-CONCURRENT-COMMIT"
MORE = log(versions=1, seed=7, start=NOW + 10 * SECOND)[0]


@pytest.fixture
def started(world: World, embedded: EngineFactory) -> World:
    """A ledger that has read two of three depot versions, one in a microbatch of its own."""
    world.publish(*log(versions=2))
    world.runner(embedded, max_messages=30).once()
    world.publish(MORE)
    return world


@dataclass(frozen=True)
class Others:
    """What somebody does to a ledger with delta-rs, once, in whatever process and without the lock."""

    ledger: str
    depot: str
    what: str

    def __call__(self) -> None:
        """Do it, unless it was done."""
        try:
            Path(f"{self.ledger}.moved").touch(exist_ok=False)
        except FileExistsError:
            return
        with patch.object(embedded_engine, "commit_lock", lambda *_: nullcontext()):
            getattr(self, self.what)(DeltaTable(self.ledger))

    def commit(self, table: DeltaTable) -> None:
        """Commit the same revision."""
        world = World.__new__(World)
        world.clock, world.depot, world.ledger = ManualClock(), self.depot, self.ledger
        world.microbatch(EMBEDDED).run_without_messages("resume")

    def fold(self, table: DeltaTable) -> None:
        """Fold."""
        fold(EMBEDDED.open(self.depot, self.ledger), "large")

    def restore(self, table: DeltaTable) -> None:
        """Set the ledger back by one version."""
        table.restore(table.version() - 1)

    def compact(self, table: DeltaTable) -> None:
        """Compact all partitions."""
        table.optimize.compact()

    def change_property(self, table: DeltaTable) -> None:
        """Set a property."""
        table.alter.set_table_properties({"user.note": "1"}, raise_if_not_exists=False)


WHATS = ["commit", "fold", "restore", "compact", "change_property"]


def fold(tables: Tables, size: Any) -> None:
    """Fold the latest version of a ledger."""
    tables.ledger.fold(tables.ledger.live(), size)


def block_fold(monkeypatch: pytest.MonkeyPatch, here: Callable[[], object]) -> None:
    """Have tasks of Spark's commits and folds call something when they have read what is to be written."""
    monkeypatch.setattr("windrow.ledger.spark.SparkCommit", lambda *commit: HeldCommit(*commit, here))


def end(world: World, factory: EngineFactory = EMBEDDED) -> None:
    """Read what is left; all is as if nothing had happened beside a tick, at every version."""
    run_to_the_end(world, factory)
    if not any(commit["operation"] == "RESTORE" for commit in DeltaTable(world.ledger).history()):
        world.check_books()
    assert verify(world.depot, world.ledger).differences == ()


def run_to_the_end(world: World, factory: EngineFactory = EMBEDDED) -> None:
    """Read what is left; the batches are as if nothing had happened beside a tick."""
    world.runner(factory).once()
    world.runner(factory).tick(to=NOW + HOUR)
    assert world.canonical() == world.expected(now=NOW + HOUR)


@pytest.mark.parametrize("what", WHATS)
def test_beside_a_commit_of_files(started: World, embedded: EngineFactory, what: str) -> None:
    """Whatever changes the ledger after prime, a commit of files on top of it is refused and leaves nothing."""
    microbatch = started.microbatch(embedded)
    Others(started.ledger, started.depot, what)()
    version = started.version()
    with pytest.raises(ConcurrentCommitError):
        commit_late(microbatch)
    assert started.version() == version
    end(started)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.slow_unless({"what": "commit"}, {"what": "restore"})
@pytest.mark.parametrize("what", WHATS)
def test_beside_a_merge(started: World, spark: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Whatever changes the ledger while Spark's MERGE runs, the MERGE is refused and leaves nothing."""
    factory = EngineFactory("spark", spark)
    microbatch = started.microbatch(factory)
    block_fold(monkeypatch, Others(started.ledger, started.depot, what))
    version = started.version()
    with pytest.raises(Exception, match=REFUSED):
        commit_late(microbatch)
    assert started.version() == version + 1
    monkeypatch.undo()
    end(started, factory)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.slow_unless({"what": "fold"})
@pytest.mark.parametrize("what", ["commit", "fold", "restore", "compact"])
def test_before_a_merge(started: World, spark: Any, what: str) -> None:
    """A MERGE that was primed before the ledger changed inserts nothing where the token is another, and where it is the
    same, and so the state, it inserts all.
    """
    factory = EngineFactory("spark", spark)
    microbatch = started.microbatch(factory)
    Others(started.ledger, started.depot, what)()
    version = started.version()
    if what in ("commit", "restore"):
        with pytest.raises(ConcurrentCommitError):
            commit_late(microbatch)
        assert started.version() == version
    else:
        commit_late(microbatch)
        assert started.version() == version + 1
    end(started, factory)


@pytest.mark.ci
@pytest.mark.spark
def test_repeated(started: World, spark: Any) -> None:
    """A MERGE that is repeated after its reply was lost inserts nothing."""
    factory = EngineFactory("spark", spark)
    microbatch = started.microbatch(factory)
    commit_late(microbatch)
    version = started.version()
    with pytest.raises(ConcurrentCommitError):
        commit_late(microbatch)
    assert started.version() == version
    end(started, factory)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.slow_unless({"what": "restore", "size": "small"}, {"what": "fold", "size": "large"})
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("what", ["restore", "compact", "fold"])
def test_beside_a_fold(started: World, spark: Any, monkeypatch: pytest.MonkeyPatch, what: str, size: str) -> None:
    """A fold of Spark is refused when somebody removed files that it has read."""
    ledger = started.tables(EngineFactory("spark", spark)).ledger
    live = ledger.live()
    block_fold(monkeypatch, Others(started.ledger, started.depot, what))
    version = started.version()
    with pytest.raises(Exception, match=REFUSED):
        ledger.fold(live, size)
    assert started.version() == version + 1
    monkeypatch.undo()
    end(started)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.slow_unless({"size": "large"})
@pytest.mark.parametrize("size", ["small", "large"])
def test_commit_beside_a_fold(started: World, spark: Any, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """A fold of Spark replaces the files that it has read, so what is committed meanwhile counts, and both succeed."""
    ledger = started.tables(EngineFactory("spark", spark)).ledger
    live = ledger.live()
    block_fold(monkeypatch, Others(started.ledger, started.depot, "commit"))
    version = started.version()
    ledger.fold(live, size)
    assert started.version() == version + 2
    assert started.history()[-1]["kind"] == "resume"
    assert [row["microbatch"] for row in started.rows("progress") if row["id"] == "progress"] == [live_number(started)]
    monkeypatch.undo()
    end(started)


def live_number(world: World) -> int:
    """Return the number of the last microbatch in the history."""
    return int(world.history()[-1]["microbatch"])


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("what", WHATS)
def test_before_a_fold(started: World, embedded: EngineFactory, what: str, size: str) -> None:
    """A fold on the embedded engine is refused when the ledger is not as it was primed."""
    ledger = started.tables(embedded).ledger
    live = ledger.live()
    Others(started.ledger, started.depot, what)()
    with pytest.raises(ConcurrentCommitError):
        ledger.fold(live, size)
    end(started)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.slow_unless({"what": "restore"})
@pytest.mark.parametrize("what", ["commit", "restore"])
def test_fold_of_what_was_primed_before(started: World, spark: Any, what: str) -> None:
    """A fold of Spark takes what counts when it runs, whatever was primed before."""
    ledger = started.tables(EngineFactory("spark", spark)).ledger
    live = ledger.live()
    Others(started.ledger, started.depot, what)()
    rows = started.rows("open", "progress")
    ledger.fold(live, "large")
    assert without_sums(started.rows("open", "progress")) == without_sums(rows)
    end(started)


def commit_late(microbatch: MicrobatchAttempt) -> None:
    """Commit on top of what was primed."""
    microbatch.run_without_messages("resume")


def without_sums(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what a fold records in them."""
    own = ("versions_written", "versions_obsolete", "messages_written", "folded")
    return [{name: value for name, value in row.items() if name not in own} for row in rows]


STEPS = st.lists(st.sampled_from(["read", "small", "large", "tick", "flush", "pause"]), min_size=3, max_size=10)


class TestReaders:
    @pytest.mark.ci
    @settings(one_in(20))
    @given(steps=STEPS, seed=st.integers(0, 3))
    def test_folds_change_nothing(self, tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int) -> None:
        """With folds anywhere in a history, every reader finds after each step what it finds without them."""
        folded, plain = (World(tmp_path_factory.mktemp(name), ManualClock()) for name in ("folded", "plain"))
        for number, step in enumerate(steps):
            for world in (folded, plain):
                take(world, step, NOW + number * SECOND, seed + number)
            assert contents(folded) == contents(plain)
        versions = range(0, folded.version() + 1, 3)
        assert verify(folded.depot, folded.ledger, versions).differences == ()

    def test_folds_in_parts(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fold that is larger than memory takes the rows of some ids at a time, and leaves the same."""
        steps = ["read", "large", "read", "small", "tick", "large", "read"]
        folded, plain = (World(tmp_path_factory.mktemp(name), ManualClock()) for name in ("folded", "plain"))
        monkeypatch.setattr(files, "FOLD_BYTES", 1)
        monkeypatch.setattr(file_writer, "OPEN_BYTES", 4_000)
        for number, step in enumerate(steps):
            for world in (folded, plain):
                take(world, step, NOW + number * SECOND, number)
        assert contents(folded) == contents(plain)
        assert verify(folded.depot, folded.ledger).differences == ()

    @pytest.mark.slow
    @pytest.mark.spark
    def test_of_every_kind_on_spark(self, started: World, spark: Any, tmp_path: Path) -> None:
        """Views, streams and both engines find the same before, between and after folds, whoever made them."""
        factories = EMBEDDED, EngineFactory("spark", spark)
        views = open_and_closed(started, spark)
        for factory in factories:
            for size in ("small", "large"):
                fold(started.tables(factory), size)
                assert open_and_closed(started, spark) == views
        end(started)

    @pytest.mark.ci
    @pytest.mark.spark
    @pytest.mark.parametrize(("columns", "reads"), [("id, message_count", False), ("size(messages)", True)])
    def test_messages_are_not_read(self, started: World, spark: Any, columns: str, reads: bool) -> None:
        """A query over the view of open batches opens their messages only if it names them."""
        with session_with(spark, {"spark.sql.maxMetadataStringLength": "100000"}):  # the plan names all columns
            view = spark.sql(f"SELECT {columns} FROM ({tables.open_batches(f'delta.`{started.ledger}`')})")
            plan = view._jdf.queryExecution().executedPlan().toString()
        assert "message_count" in plan.split("ReadSchema")[-1]
        assert ("messages:array" in plan.split("ReadSchema")[-1]) == reads

    @pytest.mark.slow
    @pytest.mark.spark
    def test_downstream(self, started: World, spark: Any, tmp_path: Path) -> None:
        """A plain stream of the ledger that passes over folds has each closed batch once."""

        def read() -> list[str]:
            stream = spark.readStream.format("delta").option("skipChangeCommits", True).load(started.ledger)
            writer = stream.where("state = 'closed'").select("id").writeStream.format("delta")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            writer.start(str(tmp_path / "target")).awaitTermination()
            return sorted(row["id"] for row in spark.read.format("delta").load(str(tmp_path / "target")).collect())

        for size in ("small", "large", "small"):
            started.runner(EMBEDDED, max_messages=30).once()
            fold(started.tables(EngineFactory("spark", spark) if size == "large" else EMBEDDED), size)
            assert read() == [row["id"] for row in started.rows("closed")]
            started.publish(log(versions=1, seed=9, start=NOW + HOUR)[0])
        started.runner(EMBEDDED).flush()
        assert read() == [row["id"] for row in started.rows("closed")]


def take(world: World, step: str, at: int, seed: int) -> None:
    """Take a step of a history; only the world that folds folds."""
    if step == "read" or not Path(world.ledger).exists():
        world.publish(*log(versions=1, seed=seed, start=at))
        world.runner(EMBEDDED, max_messages=30).once()
    elif step in ("small", "large"):
        if "folded" in world.ledger:
            fold(world.tables(EMBEDDED), step)
    elif step == "pause":
        world.runner(EMBEDDED).pause()
        world.runner(EMBEDDED).resume()
    elif step == "tick":
        world.runner(EMBEDDED).tick(to=at + 5 * SECOND)
    else:
        world.runner(EMBEDDED).flush()


def contents(world: World) -> tuple[Any, ...]:
    """Return what readers find, without what says when and where."""
    summary = status(world.depot, world.ledger, NOW + HOUR)
    rows = [{**row, "token": None, "whole": None} for row in without_sums(world.rows("open", "closed", "progress"))]
    for row in rows:
        for name in ("revision", "depot_id", "commit_fingerprint", "chain", "seen_at"):
            row.pop(name)
    closed = read_closed(world.ledger).batches.to_pylist()
    return rows, closed, summary.rules, summary.clocks, summary.open, summary.closed, summary.rejections, summary.totals


def open_and_closed(world: World, spark: Any) -> list[list[Any]]:
    """Return what the views over open and closed batches show, to Spark and to the readers without it."""
    queries = tables.views(f"delta.`{world.ledger}`")
    view_rows = [sorted(map(str, spark.sql(queries[name]).collect())) for name in ("open_batches", "closed_batches")]
    return [*view_rows, world.rows("closed"), [row["id"] for row in world.rows("open")]]


@pytest.mark.parametrize("fold_commits", [1, 2, 5])
def test_in_the_loop(world: World, embedded: EngineFactory, fold_commits: int) -> None:
    """A run folds by itself after so many commits, so few files are live however many microbatches there were."""
    for number in range(12):
        world.publish(log(versions=1, seed=number, start=NOW + number * SECOND)[0])
        world.runner(embedded, fold_commits=fold_commits).once()
    files = DeltaTable(world.ledger).get_add_actions(flatten=True)
    states = files["partition.state"].to_pylist()
    assert states.count("progress") <= fold_commits + 2
    assert world.canonical() == world.expected()
    world.assert_balanced()


def cleaned_up(started: World) -> Callable[[], None]:
    """Return a function that folds and vacuums a ledger, once."""

    def clean_up() -> None:
        fold(started.tables(EMBEDDED), "large")
        DeltaTable(started.ledger).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    return once_of(clean_up)


def test_opened_beside_a_clean_up(started: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody deletes the files of the version that a run is about to read, it reads the next version."""
    clean_up, content = cleaned_up(started), LedgerFiles._content

    def read(files: LedgerFiles, path: str, columns: Sequence[str]) -> Any:
        clean_up()
        return content(files, path, columns)

    monkeypatch.setattr(LedgerFiles, "_content", read)
    run_to_the_end(started)


@pytest.mark.ci
@pytest.mark.spark
def test_opened_beside_a_clean_up_on_spark(started: World, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on Spark."""
    clean_up = cleaned_up(started)

    def read(frame: Any, ledger: str) -> Any:
        clean_up()
        return collect_rows(frame, ledger)

    monkeypatch.setattr("windrow.ledger.spark.collect_rows", read)
    run_to_the_end(started, EngineFactory("spark", spark))


def test_fold_that_loses(started: World, embedded: EngineFactory) -> None:
    """Where somebody else commits just before a fold, nothing is folded, and the microbatch goes on."""
    version = started.version()
    runner = started.runner(embedded, fold_commits=1, max_messages=30, max_retries=0)
    itself = runner.driver.ledger.fold

    def beaten(live: Any, size: Any) -> None:
        once_only()
        itself(live, size)

    once_only = once_of(lambda: started.runner(embedded).resume())
    runner.driver.ledger.fold = beaten
    runner.once()
    assert started.version() > version
    end(started)


def test_fold_that_fails(started: World, embedded: EngineFactory, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a fold fails, the run says so and goes on, at its first attempt; the next run folds."""
    runner = started.runner(embedded, fold_commits=1, max_retries=0)

    def failing(live: Any, size: Any) -> None:
        raise OSError("no space left")

    runner.driver.ledger.fold = failing
    assert runner.once().total("message_count") == len(MORE)
    assert started.history()[-1]["attempt"] == 1
    assert folds(started) == 0
    started.runner(embedded, fold_commits=1).pause()
    started.runner(embedded, fold_commits=1).resume()
    started.runner(embedded, fold_commits=1).tick(to=NOW + HOUR)
    assert folds(started) > 0
    end(started)


def folds(world: World) -> int:
    """Return how many folds the log of a ledger has."""
    return sum("fold" in note_of(commit) for commit in DeltaTable(world.ledger).history())


def once_of(act: Callable[[], object]) -> Callable[[], None]:
    """Return a function that acts at its first call."""
    waiting = [act]

    def call() -> None:
        if waiting:
            waiting.pop()()

    return call


def closed_after_a_fold(world: World, factory: EngineFactory, size: str, **settings: Any) -> None:
    """Open a batch, fold all, close it, fold, and let the next microbatch read what is open."""
    world.publish([message(key=key) for key in "ab"])
    world.runner(EMBEDDED).once()
    fold(world.tables(EMBEDDED), "large")
    for second in (60, 61):  # so that there are files to be folded
        world.publish([message(str(second), NOW + second * SECOND, NOW + second * SECOND, key="b")])
        world.runner(factory, **settings).once()
    fold(world.tables(factory), size)
    assert [row["key"] for row in world.rows("open")] == ["b"]
    assert [row["key"] for row in world.rows("closed")] == ["a", "b"]
    world.assert_balanced()


@pytest.mark.parametrize("size", ["small", "large"])
def test_final_rows_are_not_folded(started: World, embedded: EngineFactory, size: str) -> None:
    """A fold leaves the files of final rows where they are."""
    started.runner(embedded).tick(to=NOW + HOUR)
    before = {state: files_of(started, state) for state in tables.FINAL}
    assert before["closed"]
    fold(started.tables(embedded), size)
    assert {state: files_of(started, state) for state in tables.FINAL} == before


def files_of(world: World, state: str) -> set[str]:
    """Return the files of a state at the latest version of a ledger."""
    added = DeltaTable(world.ledger).get_add_actions(flatten=True)
    paths, states = added["path"].to_pylist(), added["partition.state"].to_pylist()
    return {path for path, own in zip(paths, states, strict=True) if own == state}


def test_small_fold_keeps_tombstones(world: World, embedded: EngineFactory) -> None:
    """A batch that was folded and then closed stays closed behind a small fold."""
    closed_after_a_fold(world, embedded, "small")


@pytest.mark.ci
@pytest.mark.spark
def test_small_fold_keeps_tombstones_on_spark(world: World, spark: Any) -> None:
    """The same where Spark closes and folds."""
    closed_after_a_fold(world, EngineFactory("spark", spark), "small")


@pytest.mark.ci
@pytest.mark.spark
def test_tombstones_on_executors(world: World, spark: Any) -> None:
    """A batch that executors close is open no more."""
    closed_after_a_fold(world, EngineFactory("spark", spark), "large", max_driver_messages=0)


def test_grows_by_what_comes(world: World, embedded: EngineFactory) -> None:
    """A version of an open batch has the messages that came with it; a fold makes it whole."""
    for second in range(3):
        world.publish([message(str(second), NOW + second * SECOND, NOW + second * SECOND)])
        world.runner(embedded).once()
    assert versions_of_open(world) == [(True, 1), (False, 1), (False, 1)]
    assert messages_written(world) == [0, 1, 1, 1]
    fold(world.tables(embedded), "small")
    assert messages_written(world) == [3]
    assert versions_of_open(world) == [(True, 3)]
    end(world)


def test_split_is_written_whole(world: World, embedded: EngineFactory) -> None:
    """A batch whose window ends earlier, because a repeated type opened the next one, is written with all it has."""
    for second in range(3):
        type_ = "again" if second != 1 else "b"
        world.publish([message(type_, NOW + second * SECOND, NOW + second * SECOND)])
        world.runner(embedded).once()
    assert versions_of_open(world)[:2] == [(True, 1), (False, 1)]
    assert sorted(versions_of_open(world)[2:]) == [(True, 1), (True, 2)]
    end(world)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.slow_unless({"most": 1_000_000})
@pytest.mark.parametrize("most", [0, 1_000_000])
def test_grows_by_what_comes_on_spark(world: World, spark: Any, most: int) -> None:
    """The same on Spark, where the driver or executors process and Spark folds."""
    factory = EngineFactory("spark", spark)
    for second in range(3):
        world.publish([message(str(second), NOW + second * SECOND, NOW + second * SECOND)])
        world.runner(factory, max_driver_messages=most).once()
    assert versions_of_open(world) == [(True, 1), (False, 1), (False, 1)]
    assert messages_written(world) == [0, 1, 1, 1]
    fold(world.tables(factory), "small")
    assert messages_written(world) == [3]
    assert versions_of_open(world) == [(True, 3)]
    end(world, factory)


def messages_written(world: World) -> list[int]:
    """Return what each version of the progress row counts as written into open batches."""
    rows = DeltaTable(world.ledger).to_pyarrow_table(filters=[("state", "=", "progress")]).sort_by("revision")
    return [row["messages_written"] for row in rows.to_pylist() if row["id"] == tables.PROGRESS]


def versions_of_open(world: World) -> list[tuple[bool, int]]:
    """Return of each version of an open batch whether it is whole, and how many messages it has."""
    rows = DeltaTable(world.ledger).to_pyarrow_table(filters=[("state", "=", "open")]).sort_by("revision").to_pylist()
    return [(row["whole"], len(row["messages"])) for row in rows]


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=[pytest.mark.ci, pytest.mark.spark])])
def test_first_version_is_gone(world: World, engine: str, request: pytest.FixtureRequest) -> None:
    """A batch whose first version somebody deleted is refused: its messages would be lost without a word."""
    for second in range(2):
        world.publish([message(str(second), NOW + second * SECOND, NOW + second * SECOND)])
        world.runner(EMBEDDED).once()
    DeltaTable(world.ledger).delete("state = 'open' AND whole")
    factory = EngineFactory(engine, request.getfixturevalue("spark") if engine == "spark" else None)
    world.publish([message("late", NOW + 2 * SECOND, NOW + 2 * SECOND)])
    with pytest.raises(IncompatibleTableError, match="no version with all of its messages"):
        world.runner(factory).once()


def test_small_fold_leaves_no_gap(started: World, embedded: EngineFactory) -> None:
    """A small fold takes the files of the latest commits, and a large one too whose commits lie between those of
    others.
    """
    ledger = object.__new__(LedgerFiles)
    small, large, older = (
        File(path, tables.OPEN, False, size, Extent(None, None, None, *revisions))
        for path, size, revisions in (("a", 10, (5, 9)), ("b", 10**9, (6, 6)), ("c", 10**10, (1, 4)))
    )
    last = File("d", tables.OPEN, False, 10, Extent(None, None, None, 10, 10))
    ledger.files = [older, large, small, last]
    assert {file.path for file in ledger._list_unfolded()} == {"a", "b", "d"}


def test_small_fold_joins_eight_alike(started: World, embedded: EngineFactory) -> None:
    """A file that a fold left waits until there are eight of its size, so few folds write its rows again."""
    ledger = object.__new__(LedgerFiles)
    left = [File(str(at), tables.OPEN, False, 10_000_000, Extent(None, None, None, at, at)) for at in range(7)]
    new = [File(f"new {at}", tables.OPEN, False, 10_000, Extent(None, None, None, at, at)) for at in range(7, 20)]
    ledger.files = [*left, *new]
    assert {file.path for file in ledger._list_unfolded()} == {file.path for file in new}
    ledger.files = [*left, replace(left[0], path="eighth", extent=Extent(None, None, None, 6, 6)), *new]
    assert len(ledger._list_unfolded()) == len(ledger.files)


def test_idle(world: World, embedded: EngineFactory) -> None:
    """Whoever finds nothing new has nothing to fold either, however often it looks."""
    world.publish([message(key=str(key)) for key in range(20)], [message(key="0")], [message(key="1")])
    world.runner(embedded, max_messages=1, fold_commits=1, fold_rows=1).once()
    version = world.version()
    for _ in range(3):
        world.runner(embedded, fold_commits=1, fold_rows=1).once()
    assert world.version() <= version + 1
    end(world)


@pytest.mark.ci
@pytest.mark.spark
def test_fold_beside_columns(spark: Any) -> None:
    """A fold on Spark adds up what was written whatever the columns of the states are called."""
    versions = [("progress", 1, 5, 2, 7, None, False, "x"), ("progress", 2, 4, 3, 1, None, False, "y")]
    names = ["id", "revision", *RECORDED, "deleted", "folded", "gone"]
    types = ["STRING", *["LONG"] * 4, "BOOLEAN", "BOOLEAN", "STRING"]
    frame = spark.createDataFrame(versions, ", ".join(map(" ".join, zip(names, types, strict=True))))
    folds: list[tuple[Fold, tuple[int, ...]]] = [("small", (9, 5, 8)), ("large", (4, 0, 6))]
    for size, sums in folds:
        [row] = _fold_versions(frame, size, 6).select(*names).collect()
        assert tuple(row) == ("progress", 2, *sums, None, size == "large", "y")


@pytest.mark.ci
@pytest.mark.spark
def test_fold_beside_a_cache(started: World, spark: Any) -> None:
    """A fold takes the rows of the table, not those that somebody has cached."""
    cached = spark.read.format("delta").load(started.ledger).cache()
    try:
        cached.count()
        started.runner(EMBEDDED).once()
        rows = started.rows("open")
        fold(started.tables(EngineFactory("spark", spark)), "large")
        assert without_sums(started.rows("open")) == without_sums(rows)
    finally:
        cached.unpersist()
    end(started)
