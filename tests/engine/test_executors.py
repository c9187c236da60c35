"""Spark's two ways of processing, and what its MERGE does not touch."""

import shutil
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PythonException

from tests.clocks import NOW
from tests.engine.forms import FORMS, have_spark
from tests.engine.world import World
from tests.faults.mishaps import forget_tables
from tests.messages import HOUR, SECOND, log, message, table
from windrow.engine.spark.errors import translate_error
from windrow.errors import DepotChangedError, EngineUnavailableError, FormatPluginError, RetriesExhaustedError
from windrow.ledger import strategy
from windrow.ledger.open_batches import SparkOpen


class TestExecutors:
    @pytest.mark.slow
    def test_same_result(self, world, spark_engine):
        """Messages processed on the executors, over live rows of an earlier microbatch, give the result of one call;
        the history names the path.
        """
        versions = log(versions=3, size=60)
        world.publish(versions[0])
        world.runner(spark_engine, max_driver_messages=500).once()
        world.publish(*versions[1:])
        world.runner(spark_engine, max_driver_messages=0, max_messages=60).once()
        assert [row["processed_on"] for row in world.history()] == ["driver", "executors", "executors"]
        assert world.canonical() == world.expected()
        world.assert_balanced()

    @pytest.mark.ci
    @pytest.mark.slow_unless({"commit": "merge"})
    @pytest.mark.parametrize("commit", ["merge", "files"])
    def test_messages_from_the_driver(self, world, spark_engine, commit):
        """Messages that the driver has, processed on the executors because too many are open, give the result of one
        call; nothing fails, and no commit takes the rows of another one.
        """
        versions = log(versions=5, size=40)
        for number, rows in enumerate(versions):
            world.publish(rows)
            summary = world.runner(spark_engine, max_driver_messages=40, commit=commit, max_retries=0).once()
            assert (len(summary.microbatches), summary.others) == (1, 0)
            assert world.history()[-1]["processed_on"] == ("executors" if number else "driver")
        assert world.canonical() == world.expected()
        world.assert_balanced()

    @pytest.mark.ci
    def test_rows_in_another_session(self, world, spark_engine, monkeypatch):
        """Rows that a session has which is not at work are not committed, and no later attempt commits them."""
        versions = log(versions=2, size=40)
        world.publish(versions[0])
        world.runner(spark_engine, max_driver_messages=40).once()
        world.publish(versions[1])
        before = world.canonical()
        monkeypatch.setattr(SparkOpen, "session", property(lambda opened: opened.engine.session))
        for _ in range(2):
            with pytest.raises(RetriesExhaustedError, match="windrow_rows_"):
                world.runner(spark_engine, max_driver_messages=40, max_retries=2).once()
        assert world.canonical() == before
        monkeypatch.undo()
        world.runner(spark_engine, max_driver_messages=40).once()
        assert world.canonical() == world.expected()

    @pytest.mark.slow
    def test_without_a_source(self, spark_engine, tmp_path, clock):
        """The executors take messages of a depot that has no sources for those of the source without a name."""
        world = World(tmp_path, clock)
        shutil.rmtree(world.depot)
        rows = [message(key=key) for key in ("a", "b")]
        whole = table(rows).drop_columns(["source", "sequence"])
        write_deltalake(world.depot, whole, configuration={"delta.enableChangeDataFeed": "true"})
        world.runner(spark_engine, max_driver_messages=0).once()
        assert [(row["source"], row["key"]) for row in world.rows("open")] == [("", "a"), ("", "b")]
        assert [row["processed_on"] for row in world.history()] == ["executors"]

    def test_deletion_stops(self, world, spark_engine, embedded):
        """A deletion in the depot stops the run also where the executors read, and nothing of it is written."""
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        before = world.version()
        DeltaTable(world.depot).delete("key = 'k'")
        world.publish(log(versions=1, seed=7)[0])
        with pytest.raises(DepotChangedError, match="version 3"):
            world.runner(spark_engine, max_driver_messages=0).once()
        assert world.version() == before

    def test_missing_package(self, spark):
        """What the Python of the executors has not installed is named, and not tried again."""

        def without(batches):
            import_module("nowhere_installed")
            yield from batches

        with pytest.raises(PythonException) as raised:
            spark.range(1).mapInArrow(without, "id long").collect()
        error = translate_error(raised.value)
        assert isinstance(error, EngineUnavailableError)
        assert "'nowhere_installed'" in error.message
        assert not error.retryable

    def test_broken_format(self, spark):
        """An error of a format on an executor is the same error on the driver."""

        def failing(_batches):
            raise FormatPluginError("the format 'logfmt' cannot parse records", "hint")

        with pytest.raises(PythonException) as raised:
            spark.range(1).mapInArrow(failing, "id long").collect()
        error = translate_error(raised.value)
        assert isinstance(error, FormatPluginError)
        assert error.message == "the format 'logfmt' cannot parse records"


SOURCES, KEYS = 3, 100
FEW = 30  # rows that come to the driver or go from it at a time: sources by versions, clocks, counts, the history


def many(*moments):
    """Return a version for each moment, with one message of each of many streams, of a type of its own."""
    return [
        [
            message(f"t{at}", at, at, source=f"s{source}", key=f"k{key}", payload="#")
            for source in range(SOURCES)
            for key in range(KEYS)
        ]
        for at in moments
    ]


class Crossings:
    """Counts the rows that come from Spark to the driver, or go to it."""

    def __init__(self, session, monkeypatch):
        self.rows = []
        frame, created = type(session.range(1)), session.createDataFrame
        for name in ("toArrow", "collect", "toPandas", "toLocalIterator"):
            monkeypatch.setattr(frame, name, self._counting(getattr(frame, name)))
        monkeypatch.setattr(type(session), "createDataFrame", self._counting_given(type(created.__self__), created))

    def _counting(self, method):
        def counted(frame, *arguments):
            collected = method(frame, *arguments)
            self.rows.append(collected.num_rows if hasattr(collected, "num_rows") else len(collected))
            return collected

        return counted

    def _counting_given(self, kind, created):
        method = kind.createDataFrame

        def counted(session, data, *arguments, **named):
            self.rows.append(data.num_rows if hasattr(data, "num_rows") else len(data))
            return method(session, data, *arguments, **named)

        return counted


class TestRowsStayThere:
    @pytest.mark.slow
    @pytest.mark.parametrize("form", [form for form in FORMS if form != "reading headers"])
    def test_counted(self, world, spark_engine, form, monkeypatch):
        """On the executors' way neither a message nor an open batch passes through the driver, whatever a microbatch
        does: what does are summaries, clocks, counts and control rows, though hundreds of batches are open.
        """
        have_spark(form, monkeypatch)
        settings = {"max_driver_messages": 0, "rules": {"window": "10s", "max_delay": "5s"}}
        world.publish(*many(NOW))
        world.runner(spark_engine, **settings).once()
        assert len(world.rows("open")) >= SOURCES * KEYS
        crossings = Crossings(spark_engine.session, monkeypatch)
        for moments, act, are_open in (
            ((NOW + SECOND, NOW + 2 * SECOND), "once", True),
            ((), "tick", False),
            ((NOW + HOUR,), "once", True),
            ((), "flush", False),
        ):
            world.publish(*many(*moments))
            world.clock.set(max(moments, default=world.clock.now()))
            crossings.rows.clear()
            runner = world.runner(spark_engine, **settings)
            runner.tick(to=NOW + 30 * SECOND) if act == "tick" else getattr(runner, act)()
            assert 0 < max(crossings.rows) <= FEW
            left = len(world.rows("open"))
            assert left >= SOURCES * KEYS if are_open else left == 0
        assert [row["processed_on"] for row in world.history()] == ["executors"] * 5
        monkeypatch.undo()
        world.assert_balanced()

    @pytest.mark.slow
    def test_the_count_sees_them(self, world, spark_engine, monkeypatch):
        """On the driver's way they pass, so the count would tell."""
        world.publish(*many(NOW))
        crossings = Crossings(spark_engine.session, monkeypatch)
        world.runner(spark_engine).once()
        assert max(crossings.rows) >= SOURCES * KEYS


class TestOneAmongMany:
    @pytest.mark.slow
    def test_by_the_driver_and_merged(self, world, spark_engine):
        """One message for one of many open batches is processed by the driver and merged, though more messages are open
        than the driver may hold; a batch that does not change is not written again.
        """
        streams = [message("a", key=f"k{number}", payload=f"{number:05}" * 10_000) for number in range(400)]
        world.publish(streams)
        world.runner(spark_engine, max_driver_messages=100).once()
        before = {row["id"]: row for row in world.rows("open")}
        assert sum(row["bytes"] for row in before.values()) > strategy.LITTLE_BYTES
        world.publish([message("b", NOW + SECOND, NOW + SECOND, key="k7", payload="one")])
        summary = world.runner(spark_engine, max_driver_messages=100).once()
        assert (len(summary.microbatches), summary.others) == (1, 0)  # what follows the commit did not fail
        ways = [(row["processed_on"], row["commit_mode"]) for row in world.history()]
        assert ways == [("executors", "merge"), ("driver", "merge")]
        after = {row["id"]: row for row in world.rows("open")}
        assert [row["key"] for row in after.values() if row != before[row["id"]]] == ["k7"]
        assert len(after) == len(before)
        assert world.canonical() == world.expected()
        world.assert_balanced()


WAYS = ("kind", "versions", "messages_read", "accepted", "rejected", "opened", "closed", "clocks", "rules")
TOTALS = ("source", "clock", "floor", "open_batches", "open_messages", "open_bytes")


class TestSameAsDriver:
    @pytest.mark.slow
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(
        "max_driver_messages",
        [pytest.param(0, id="executors"), pytest.param(500_000, id="driver")],
    )
    def test_each_kind(self, world, spark_engine, embedded, form, max_driver_messages, monkeypatch):
        """Microbatches, ticks that close some and all, other rules and a flush leave after each step what the embedded
        engine leaves, of several sources with several streams each: batches, rejections, clocks, totals and history.
        """
        have_spark(form, monkeypatch)
        twin = type(world)(Path(world.depot).parent, world.clock, ledger="twin")
        late = {"rules": {"max_delay": "8s"}}
        versions = log(versions=3, size=60)
        more = log(versions=1, size=60, seed=9, start=NOW + HOUR)
        for act, rows, rules in (
            (lambda runner: runner.once(), versions[:1], {}),
            (lambda runner: runner.tick(to=NOW + 9 * SECOND), [], {}),
            (lambda runner: runner.once(), versions[1:], {}),
            (lambda runner: runner.once(), [], late),
            (lambda runner: runner.tick(to=NOW + HOUR), [], late),
            (lambda runner: runner.once(), more, late),
            (lambda runner: runner.flush(), [], late),
        ):
            world.clock.set(NOW + HOUR if rows is more else world.clock.now())
            world.publish(*rows)
            act(world.runner(spark_engine, max_driver_messages=max_driver_messages, **rules))
            act(twin.runner(embedded, **rules))
            assert world.canonical() == twin.canonical()
            assert tell_history(world.history()) == tell_history(twin.history())
            assert picked(world.rows("progress"), TOTALS) == picked(twin.rows("progress"), TOTALS)
        assert world.kinds() == ["data", "tick", "data", "rules", "tick", "data", "flush"]
        assert world.rows("open") == []
        assert len({(row["source"], row["key"]) for row in world.rows("closed")}) >= 9
        world.assert_balanced()

    @pytest.mark.slow
    @pytest.mark.parametrize("form", FORMS)
    def test_flush_is_one_call(self, world, spark_engine, form, monkeypatch):
        """A flush on the executors, which compute its cut for each source beforehand, gives what one call of
        `windrow.batch` with a flush gives, of several sources with several streams each.
        """
        have_spark(form, monkeypatch)
        world.publish(*log(versions=3, size=60))
        runner = world.runner(spark_engine, max_driver_messages=0)
        runner.once()
        assert len({(row["source"], row["key"]) for row in world.rows("open")}) >= 6
        runner.flush()
        assert [row["processed_on"] for row in world.history()] == ["executors"] * 2
        assert world.canonical() == world.expected(flush=True)
        world.assert_balanced()


def tell_history(history):
    """Return what the history says of each microbatch, the clocks in the order of their sources."""
    rows = picked(history, WAYS)
    return [row | {"clocks": sorted(row["clocks"], key=lambda clock: clock["source"])} for row in rows]


def picked(rows, names):
    """Return some columns of rows."""
    return [{name: row[name] for name in names} for row in rows]


@contextmanager
def without_final_files(ledger):
    """Hide the files of final rows."""
    hidden = Path(f"{ledger}.hidden")
    folders = [Path(ledger) / f"state={state}" for state in ("closed", "rejected", "microbatch")]
    for folder in folders:
        shutil.move(folder, hidden / folder.name)
    yield
    for folder in folders:
        shutil.copytree(hidden / folder.name, folder, dirs_exist_ok=True)


class TestMerge:
    @pytest.mark.slow
    def test_final_files_stay_closed(self, world, engine, embedded, monkeypatch):
        """A microbatch opens no file of final rows. Holds the literal condition on the partition column."""
        have_spark("reading some", monkeypatch)
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        world.runner(embedded).tick(to=NOW + 8 * SECOND)
        with without_final_files(world.ledger):
            forget_tables()
            world.publish(log(versions=1, seed=7, start=NOW + 8 * SECOND)[0])
            world.runner(engine).once()
            world.runner(engine).tick(to=NOW + HOUR)
        world.assert_balanced()
        assert world.rows("open") == []
