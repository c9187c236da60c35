"""The fence: what was decided over old live rows is never committed."""

import pytest
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.forms import FORMS, have_spark
from tests.messages import HOUR, log
from tests.probes import act_once
from windrow.errors import ConcurrentCommitError, RetriesExhaustedError
from windrow.ledger.merge import NO_TRANSACTION_ID
from windrow.runtime.ledger_state import prime
from windrow.testing.points import Point

ALL = ("open", "progress", "closed", "rejected", "microbatch")


@pytest.fixture
def started(world, embedded):
    """A ledger that has read two of three depot versions."""
    world.publish(*log(versions=2))
    world.runner(embedded).once()
    world.publish(log(versions=1, seed=7, start=NOW + 10_000_000)[0])
    return world


def commit_at(world, microbatch, moment):
    """Commit a tick to a moment with what was primed."""
    return microbatch.run_tick(microbatch.primed.sources.floors.at_least(moment))


class TestCommit:
    @pytest.mark.ci
    def test_tick_in_between(self, started, drivers):
        """When another driver ticks between prime and commit, the commit raises ConcurrentCommitError and the table is
        unchanged. Holds the fence: a tick has no new depot version that could tell.
        """
        microbatch = started.microbatch(drivers.first)
        started.runner(drivers.second).tick(to=NOW + HOUR)
        before, version = started.rows(*ALL), started.version()
        with pytest.raises(ConcurrentCommitError):
            commit_at(started, microbatch, NOW + 2 * HOUR)
        assert (started.rows(*ALL), started.version()) == (before, version)

    @pytest.mark.slow_on_spark
    def test_microbatch_in_between(self, started, engine, embedded):
        """When another driver commits messages between prime and commit, the commit raises ConcurrentCommitError."""
        microbatch = started.microbatch(engine)
        started.runner(embedded).once()
        before = started.rows(*ALL)
        with pytest.raises(ConcurrentCommitError):
            commit_at(started, microbatch, NOW + 2 * HOUR)
        assert started.rows(*ALL) == before

    @pytest.mark.slow_on_spark
    def test_restore_in_between(self, started, engine, embedded):
        """When the ledger is restored between prime and commit, the commit raises ConcurrentCommitError."""
        started.runner(embedded).once()
        microbatch = started.microbatch(engine)
        DeltaTable(started.ledger).restore(1)
        before = started.rows(*ALL)
        with pytest.raises(ConcurrentCommitError):
            commit_at(started, microbatch, NOW + 2 * HOUR)
        assert started.rows(*ALL) == before

    def test_restore_and_same_number_again(self, started, embedded):
        """After a RESTORE and another microbatch under the same number the commit is fenced: no number tells, the token
        does.
        """
        started.runner(embedded).once()
        microbatch = started.microbatch(embedded)
        DeltaTable(started.ledger).restore(1)
        started.runner(embedded).once()
        assert started.microbatch(embedded).primed.microbatch == microbatch.primed.microbatch
        with pytest.raises(ConcurrentCommitError):
            commit_at(started, microbatch, NOW + 2 * HOUR)

    @pytest.mark.slow_on_spark
    def test_progress_row_gone(self, started, engine):
        """When the progress row is deleted between prime and commit, the commit raises ConcurrentCommitError instead of
        making another one.
        """
        microbatch = started.microbatch(engine)
        DeltaTable(started.ledger).delete("id = 'progress'")
        with pytest.raises(ConcurrentCommitError):
            commit_at(started, microbatch, NOW + 2 * HOUR)
        assert [row for row in started.rows("progress") if row["id"] == "progress"] == []

    @pytest.mark.slow_on_spark
    def test_optimize_in_between(self, started, engine):
        """OPTIMIZE of final rows between prime and commit costs a driver no attempt and no microbatch."""

        def compact():
            for state in ("closed", "rejected", "microbatch"):
                DeltaTable(started.ledger).optimize.compact(partition_filters=[("state", "=", state)])

        started.probed(engine, act_once(Point.BEFORE_COMMIT, compact), max_retries=0).once()
        assert started.history()[-1]["attempt"] == 1
        started.assert_balanced()


class TestRunner:
    @pytest.mark.slow_on_spark
    def test_goes_on(self, world, drivers):
        """A driver that was overtaken by one that read everything goes on; nothing is counted twice, and it is no
        failed attempt.
        """
        world.publish(*log(versions=3))
        rival = world.runner(drivers.second)
        world.probed(drivers.first, act_once(Point.BEFORE_COMMIT, rival.once), max_messages=60).once()
        assert world.canonical() == world.expected()
        assert {row["attempt"] for row in world.history()} == world.attempts_of_rivals
        assert world.clock.waits == []
        world.assert_balanced()

    @pytest.mark.parametrize("point", Point)
    def test_goes_on_from_any_point(self, world, embedded, point):
        """At whatever point of a microbatch another driver reads everything, the result is right."""
        world.publish(*log(versions=3))
        rival = world.runner(embedded)
        world.probed(embedded, act_once(point, rival.once), max_messages=60).once()
        assert world.canonical() == world.expected()
        world.assert_balanced()

    @pytest.mark.slow_on_spark
    def test_goes_on_with_the_rest(self, world, engine, embedded):
        """A driver that was overtaken by one microbatch of another processes the versions that are left."""
        world.publish(*log(versions=3))

        def overtake():
            clock = ManualClock()
            tables = world.tables(embedded, max_messages=30, idle_timeout="never")
            world.made(tables, clock=clock, report=lambda _: clock.stop()).once()

        world.probed(engine, act_once(Point.BEFORE_COMMIT, overtake), max_messages=60).once()
        assert [[part["version"] for part in row["versions"]] for row in world.history()] == world.read_by_rivals
        assert world.canonical() == world.expected()
        world.assert_balanced()

    @pytest.mark.slow_on_spark
    def test_restored_while_running(self, world, engine):
        """When the ledger is restored under a running microbatch, the stream starts afresh and no message is lost."""
        world.publish(*log(versions=3))
        world.runner(EngineFactory("embedded"), max_messages=30).once()
        world.publish(log(versions=1, seed=7, start=NOW + 12_000_000)[0])
        world.probed(engine, act_once(Point.BEFORE_COMMIT, lambda: DeltaTable(world.ledger).restore(1))).once()
        assert world.canonical() == world.expected()

    @pytest.mark.slow_on_spark
    def test_depot_compacted_while_running(self, world, engine):
        """OPTIMIZE of the depot under a running microbatch changes nothing: what it rewrites is read as it was
        added.
        """
        world.publish(*log(versions=3))
        depot = DeltaTable(world.depot)
        world.probed(engine, act_once(Point.AFTER_PRIME, depot.optimize.compact), max_messages=30).once()
        assert [row["messages_read"] for row in world.history()] == [30, 30, 30]
        assert world.canonical() == world.expected()

    @pytest.mark.parametrize("version", [0, 2], ids=["nothing read", "something read"])
    def test_restored_between_rounds(self, world, embedded, version):
        """When the ledger is restored between two rounds of one runner, the next round reads again what was undone,
        also when the depot has nothing new.
        """
        world.publish(*log(versions=3))
        runner = world.runner(embedded, max_messages=30)
        runner.once()
        DeltaTable(world.ledger).restore(version)
        runner.once()
        assert world.canonical() == world.expected()

    def test_table_that_refuses(self, world, embedded):
        """A commit that fails although nobody moved the ledger is a failure with a limit, not a moved ledger for
        ever.
        """
        world.publish(*log(versions=1))
        commits = iter(range(3))

        def count(point):
            if point is Point.BEFORE_COMMIT and next(commits, None) is None:
                pytest.fail("it is tried forever")

        runner = world.probed(embedded, count, max_retries=1)
        features = [TableFeatures.IdentityColumns]
        DeltaTable(world.ledger).alter.add_feature(features, allow_protocol_versions_increase=True)
        with pytest.raises(RetriesExhaustedError, match="dentityColumns"):
            runner.once()

    @pytest.mark.parametrize("published", [1, 0], ids=["messages", "pause"])
    def test_moved_for_ever(self, world, embedded, published):
        """A commit that is refused as if the ledger had moved, though it stands as it was primed, is such a failure
        too: so it is where an engine looks at an old copy.
        """
        world.publish(*log(versions=1))
        world.runner(embedded).once()
        world.publish(*log(versions=published, seed=7, start=NOW + 12_000_000))
        commits = iter(range(3))

        def refuse(point):
            if point is Point.BEFORE_COMMIT:
                assert next(commits, None) is not None, "it is tried forever"
                raise ConcurrentCommitError("so it looks", "It did not.")

        runner = world.probed(embedded, refuse, max_retries=1)
        with pytest.raises(RetriesExhaustedError, match="as if it had changed"):
            runner.once() if published else runner.pause()
        assert next(commits) == 2


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Both forms in which Spark commits."""
    have_spark(request.param, monkeypatch)
    return request.param


class TestSparksFence:
    """The token alone fences a commit of Spark, in both forms."""

    @pytest.mark.slow_unless({"form": "reading some"})
    def test_tick_in_between(self, started, spark, form):
        """When another driver ticks between prime and commit, the commit raises ConcurrentCommitError and the table is
        unchanged.
        """
        factory = EngineFactory("spark", spark)
        microbatch = started.microbatch(factory)
        started.runner(factory).tick(to=NOW + HOUR)
        assert started.history()[-1]["commit_mode"] == "merge"
        version = started.version()
        with pytest.raises(ConcurrentCommitError, match="between prime and commit"):
            commit_at(started, microbatch, NOW + 2 * HOUR)
        assert started.version() == version

    @pytest.mark.slow_unless({"form": "reading some"})
    @pytest.mark.usefixtures("form")
    def test_progress_row_gone(self, started, spark):
        """Without a progress row there is none to compare with, and none is made."""
        microbatch = started.microbatch(EngineFactory("spark", spark))
        DeltaTable(started.ledger).delete("id = 'progress'")
        with pytest.raises(ConcurrentCommitError):
            commit_at(started, microbatch, NOW + 2 * HOUR)
        assert [row for row in started.rows("progress") if row["id"] == "progress"] == []

    @pytest.mark.slow
    def test_session_with_a_transaction_id(self, started, spark, form):
        """A commit of a session whose user writes with a transaction id, which the ledger's log has already, is made
        all the same and leaves none; the session keeps its own.
        """
        ids = dict(zip(NO_TRANSACTION_ID, ("user", "7"), strict=True))
        written = CommitProperties(app_transactions=[Transaction("user", 7)])
        DeltaTable(started.ledger).alter.set_table_properties(
            {"user.note": "7"}, raise_if_not_exists=False, commit_properties=written
        )
        assert DeltaTable(started.ledger).transaction_version("user") == 7
        for name, value in ids.items():
            spark.conf.set(name, value)
        try:
            runner = started.runner(EngineFactory("spark", spark))
            assert runner.once().total("message_count") == 30
            runner.tick(to=NOW + HOUR)
            assert {name: spark.conf.get(name) for name in ids} == ids
        finally:
            for name in ids:
                spark.conf.unset(name)
        assert [row["commit_mode"] for row in started.history()[-2:]] == ["merge"] * 2
        assert started.rows("open") == []
        assert DeltaTable(started.ledger).transaction_version("user") == 7
        started.assert_balanced()

    @pytest.mark.slow
    @pytest.mark.usefixtures("form")
    @pytest.mark.parametrize("columns", ["*", "token"], ids=["all of it", "its token"])
    def test_moved_while_cached(self, started, spark, columns):
        """A token that somebody has cached is not taken for the one that stands there."""
        started.runner(EngineFactory("spark", spark)).once()
        rows = "" if columns == "*" else " WHERE state = 'progress' AND id = 'progress'"
        cached = spark.sql(f"SELECT {columns} FROM delta.`{started.ledger}`{rows}").cache()
        cached.count()
        microbatch = started.microbatch(EngineFactory("spark", spark))
        version = started.version()
        DeltaTable(started.ledger).restore(version - 1)
        try:
            with pytest.raises(ConcurrentCommitError, match="between prime and commit"):
                commit_at(started, microbatch, NOW + 2 * HOUR)
        finally:
            cached.unpersist()
        assert started.version() == version + 1

    @pytest.mark.slow
    def test_primed_while_cached(self, started, spark):
        """Nor are live rows that somebody has cached, by a new driver nor by the one that made the last commit."""
        factory = EngineFactory("spark", spark)
        opened = started.tables(factory, idle_timeout="never")
        started.runner(factory, lambda _: opened).once()
        cached = spark.read.format("delta").load(started.ledger).cache()
        cached.count()
        before = prime(opened.ledger).microbatch
        DeltaTable(started.ledger).restore(started.version() - 1)
        try:
            assert [prime(tables.ledger).microbatch for tables in (started.tables(factory), opened)] == [before - 1] * 2
        finally:
            cached.unpersist()
