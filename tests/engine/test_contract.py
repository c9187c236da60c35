"""The promises that hold on both engines, and when they take turns on the same tables."""

import json
from itertools import cycle

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import windrow
from tests.engine.factory import EngineFactory
from tests.engine.forms import FORMS, have_spark
from tests.engine.world import World
from tests.messages import log, message, table
from tests.probes import act_once
from windrow.ledger import merge as spark_commit
from windrow.runtime.ledger_state import prime
from windrow.testing.points import Point

NOTE = "spark.databricks.delta.commitInfo.userMetadata"


class TestResult:
    @pytest.mark.slow_on_executors
    def test_equals_one_call(self, engine, world):
        """Batches, rejections, their ids and the floors are those of one call of `windrow.batch` over the whole log,
        and the books balance at every version.
        """
        world.publish(*log(versions=4))
        world.runner(engine, max_messages=70).once()
        assert [row["messages_read"] for row in world.history()] == [60, 60]
        assert world.canonical() == world.expected()
        reasons = {row["reason"] for row in world.rows("rejected")}
        assert reasons == {"too_old", "too_far_ahead", "duplicate", "invalid", "clock_ahead"}
        assert {source: floor for source, (_, floor) in world.clocks().items()} == world.expected_floors()
        world.assert_balanced()

    @pytest.mark.parametrize("max_messages", [1, 40, 100, 1_000])
    def test_any_cut(self, embedded, world, max_messages):
        """However the log is cut into microbatches, the result is that of one call."""
        world.publish(*log(versions=8, seed=8))
        world.runner(embedded, max_messages=max_messages).once()
        assert world.canonical() == world.expected()
        world.assert_balanced()

    @pytest.mark.slow
    @pytest.mark.parametrize("small_bytes", [0, 1 << 40], ids=["as code", "interpreted"])
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("max_driver_messages", [0, 1_000], ids=["executors", "driver"])
    def test_any_form_of_sparks_commit(self, spark, world, monkeypatch, small_bytes, form, max_driver_messages):
        """What Spark turns into code and what it interprets, what it merges and what it overwrites, gives the same."""
        monkeypatch.setattr(spark_commit, "SMALL_BYTES", small_bytes)
        have_spark(form, monkeypatch)
        world.publish(*log(versions=4))
        world.runner(EngineFactory("spark", spark), max_messages=70, max_driver_messages=max_driver_messages).once()
        assert {row["commit_mode"] for row in world.history()} == {"merge"}
        assert world.canonical() == world.expected()
        world.assert_balanced()

    def test_engines_take_turns(self, spark, world):
        """Microbatches of both engines in turn, each over live rows that the other wrote, give the result of one call,
        and the history names the engine of each.
        """
        engines = cycle([EngineFactory("embedded"), EngineFactory("spark", spark)])
        for rows in log(versions=3, seed=2):
            world.publish(rows)
            world.runner(next(engines)).once()
        assert world.canonical() == world.expected()
        assert [row["engine"] for row in world.history()] == ["embedded", "spark", "embedded"]
        world.assert_balanced()

    @pytest.mark.slow
    def test_read_by_the_other(self, spark, world, embedded):
        """Spark reads from a ledger that delta-rs wrote the rows that delta-rs reads, and the other way round."""
        engines = [embedded, EngineFactory("spark", spark)]
        for factory, rows in zip(engines, log(versions=2, seed=4), strict=True):
            world.publish(rows)
            world.runner(factory).once()
        primed = [prime(world.tables(factory).ledger) for factory in engines]
        for rows in ([state.fence.rows for state in primed], [state.fence.batches(None) for state in primed]):
            ours, theirs = (read.sort_by("id").to_pylist() for read in rows)
            assert ours == theirs != []
        final = spark.read.format("delta").load(world.ledger).where("state IN ('closed', 'rejected')").orderBy("id")
        theirs = final.toArrow().to_pylist()
        ours = world.rows("closed", "rejected")
        assert {row["microbatch"] or row["closed_microbatch"] for row in ours} == {1, 2}
        assert theirs == ours

    @pytest.mark.slow_on_spark
    def test_binary_payload(self, engine, tmp_path, clock):
        """A depot with binary payloads keeps them byte by byte, in batches and in rejections."""
        world = World(tmp_path / "binary", clock, pa.binary())
        rows = [message("a", payload=b"\x00\xff"), message("a", payload=b"\xfe"), message("b", payload=None)]
        world.publish(rows)
        world.runner(engine).once()
        assert [part["payload"] for row in world.rows("open") for part in row["messages"]] == [b"\x00\xff", None]
        assert [row["payload"] for row in world.rows("rejected")] == [b"\xfe"]


class TestNote:
    @pytest.mark.slow_on_spark
    def test_commit_tells_its_microbatch(self, engine, world):
        """The metadata of a microbatch's commit, read with delta-rs, is what its history row says, with our version."""
        world.publish(*log(versions=2))
        world.runner(engine, max_messages=30).once()
        rows = world.history()
        names = ("microbatch", "kind", "depot_version", "closed", "rejected", "token")
        expected = [
            {"windrow": windrow.__version__, "depots": {}, "messages": row["messages_read"]}
            | {name: row[name] for name in names}
            for row in rows
        ]
        assert [row["closed"] + row["rejected"] > 0 for row in rows] == [True, True]
        assert notes(DeltaTable(world.ledger).history()) == expected

    @pytest.mark.slow
    def test_readable_on_spark(self, spark, world):
        """DESCRIBE HISTORY shows the notes of both engines, and a note that the session had set is there again."""
        spark.conf.set(NOTE, "of the user")
        try:
            for factory in (EngineFactory("embedded"), EngineFactory("spark", spark)):
                world.publish(log(versions=1)[0])
                world.runner(factory).once()
            world.runner(EngineFactory("spark", spark)).flush()
            assert spark.conf.get(NOTE) == "of the user"
        finally:
            spark.conf.unset(NOTE)
        commits = spark.sql(f"DESCRIBE HISTORY delta.`{world.ledger}`").select("version", "userMetadata").collect()
        assert notes([row.asDict() for row in commits]) == notes(DeltaTable(world.ledger).history())
        assert [note["kind"] for note in notes([row.asDict() for row in commits])] == ["data", "data", "flush"]


def notes(commits):
    """Return the notes of microbatches, the first one first; the commit that made the ledger says its token at most."""
    metadata = [json.loads(commit["userMetadata"]) for commit in reversed(commits) if commit.get("userMetadata")]
    return [note for note in metadata if "microbatch" in note]


class TestProgress:
    @pytest.mark.slow_on_spark
    def test_nothing_new(self, engine, world):
        """Running again reads nothing and commits nothing, also after versions of the depot without new rows (OPTIMIZE,
        properties), which are no part of the next microbatch either. Holds the progress filter.
        """
        world.publish(*log(versions=2))
        world.runner(engine).once()
        before = world.version()
        assert world.runner(engine).once().microbatches == []
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).alter.set_table_properties({"delta.appendOnly": "true"})
        assert world.runner(engine).once().microbatches == []
        assert world.version() == before
        world.publish(log(versions=1, seed=5)[0])
        world.runner(engine).once()
        [[read]] = [row["versions"] for row in world.history()][1:]
        assert (read["version"], read["messages"]) == (5, 30)

    @pytest.mark.slow_on_spark
    def test_tokens(self, engine, world):
        """Each microbatch has a token of its own, which its row in the history shares with the progress row that it
        wrote.
        """
        world.publish(*log(versions=3))
        world.runner(engine, max_messages=30).once()
        tokens = [row["token"] for row in world.history()]
        assert len(set(tokens)) == 3
        assert [prime(world.tables(engine).ledger).token] == tokens[-1:]

    def test_whole_versions(self, embedded, world):
        """`max_messages` cuts the log between versions only, and a version that is larger alone is one microbatch."""
        sizes = [10, 10, 10, 50, 5, 5]
        world.publish(*(rows[:size] for rows, size in zip(log(versions=6, size=50), sizes, strict=True)))
        world.runner(embedded, max_messages=25).once()
        read = [[part["version"] for part in row["versions"]] for row in world.history()]
        assert read == [[1, 2], [3], [4], [5, 6]]
        assert [row["messages_read"] for row in world.history()] == [20, 10, 50, 10]
        assert [row["microbatch"] for row in world.history()] == [1, 2, 3, 4]
        world.assert_balanced()

    def test_stop(self, embedded, world):
        """A stop that is asked for during a microbatch lets it finish, and no other begin."""
        world.publish(*log(versions=3))
        world.probed(embedded, act_once(Point.AFTER_PLAN, world.clock.stop), max_messages=30).once()
        assert [row["messages_read"] for row in world.history()] == [30]

    @pytest.mark.slow_on_spark
    def test_versions_of_several_files(self, spark, world):
        """A depot version of several files is read in one piece. Holds the rate limit of Spark's stream, which counts
        files: it would cut the version, and its second half would count as read.
        """
        for rows in log(versions=2):
            frame = spark.createDataFrame(table(rows)).repartition(3)
            frame.write.format("delta").mode("append").save(world.depot)
        assert len(DeltaTable(world.depot).file_uris()) == 6
        world.runner(EngineFactory("spark", spark)).once()
        assert world.canonical() == world.expected()

    def test_history_counts(self, embedded, world):
        """The history row of a microbatch says what was read, accepted, rejected, opened and closed."""
        world.publish(*log(versions=3, seed=6))
        summary = world.runner(embedded).once()
        row = world.history()[0]
        states = {state: len(world.rows(state)) for state in ("open", "closed", "rejected")}
        assert row["messages_read"] == 90
        assert row["accepted"] == 90 - states["rejected"] == summary.total("accepted")
        assert row["rejected"] == states["rejected"] == summary.total("rejected")
        assert row["opened"] == states["open"] + states["closed"] == summary.total("opened")
        assert row["closed"] == states["closed"] == summary.total("closed")
        assert (row["kind"], row["attempt"], row["depot_version"], row["processed_on"]) == ("data", 1, 3, "driver")

    @pytest.mark.slow
    @pytest.mark.parametrize("path", ["driver", "executors"])
    def test_committed_counts(self, spark, world, path):
        """What a run reports of a microbatch has the reasons of its rejections and how many batches are open after it,
        wherever it was processed, and whether or not any were open before.
        """
        max_driver_messages = 1_000 if path == "driver" else 0
        for rows in log(versions=2, seed=6, size=60):
            world.publish(rows)
            engine = EngineFactory("spark", spark)
            [committed] = world.runner(engine, max_driver_messages=max_driver_messages).once().microbatches
            number = committed.microbatch
            reasons = [row["reason"] for row in world.rows("rejected") if row["microbatch"] == number]
            assert (committed.processed_on, committed.message_count) == (path, 60)
            assert committed.reasons == {reason: reasons.count(reason) for reason in set(reasons)}
            assert committed.rejected == len(reasons) > 0
            assert committed.open_batch_count == len(world.rows("open")) > 0
