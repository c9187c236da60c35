"""The whole way on S3: produced, batched, maintained and verified, on both engines, with several drivers and kills."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.proxy import by_kind
from tests.clocks import NOW
from tests.engine.processes import drivers
from tests.messages import SECOND, log, table
from tests.probes import open_tables
from windrow.engine.side_files import DeltaRsJournal, StoredSideFiles
from windrow.errors import EngineUnavailableError, RetriesExhaustedError, TableUnreadableError, TableUnwritableError
from windrow.producer import Producer
from windrow.runtime.maintenance import maintain
from windrow.topology import Microbatch, Topology, run_topology
from windrow.verify import verify

pytestmark = pytest.mark.ci

MINUTE = 60 * SECOND


class TestEmbedded:
    def test_from_producer_to_verify(self, bucket, embedded):
        """What a producer sends is batched like the same messages in one call; maintained, the ledger still
        verifies.
        """
        with Producer(bucket.depot, "plant") as producer:
            producer.send_many(table(log(1)[0])).result()
        for version in log(3, seed=2):
            bucket.publish(version)
            bucket.runner(embedded).once()
        tables = bucket.tables(embedded)
        maintain([tables.source], tables.ledger, bucket.clock.now())
        bucket.publish(*log(1, seed=3))
        bucket.runner(embedded).once()
        assert bucket.canonical() == bucket.expected()
        assert verify(bucket.depot, bucket.ledger).ok
        bucket.assert_balanced()

    @pytest.mark.parametrize("point", [pytest.param("before_commit", marks=pytest.mark.slow), "after_commit"])
    def test_killed(self, bucket, embedded, point):
        """A driver killed in the middle of its second microbatch loses nothing, and its successor counts nothing
        twice.
        """
        bucket.publish(*log(4))
        with drivers(bucket, "embedded", max_messages=30, kill=(point, 2)) as [driver]:
            driver.start()
            assert driver.status() < 0
        bucket.runner(embedded).once()
        assert bucket.canonical() == bucket.expected()
        bucket.assert_balanced()

    def test_two_drivers(self, bucket):
        """Two drivers of one ledger, without a lock between them, count each message once."""
        bucket.publish(*log(4))
        with drivers(bucket, "embedded", "embedded", max_messages=30) as both:
            for driver in both:
                driver.start()
            assert [driver.status() for driver in both] == [0, 0]
        assert bucket.canonical() == bucket.expected()
        bucket.assert_balanced()

    def test_topology(self, bucket, store, embedded):
        """A topology has its states, its plan and its output in a bucket: an attempt after a failure sees the same
        rows, and what it appends is there once.
        """
        topology = Topology(
            "counting", {"messages": bucket.depot}, f"{store}/states", outputs={"copies": f"{store}/out"}
        )
        topology.state("counts", key="type STRING", value="times BIGINT")
        seen = []

        @topology.function
        def count(microbatch: Microbatch) -> None:
            rows = microbatch.rows("messages")
            seen.append((microbatch.id, rows.num_rows))
            if len(seen) == 1:
                raise OSError("another system does not answer")
            microbatch.state("counts").combine(rows, times="count")
            microbatch.append("copies", rows.select(["type"]))

        first, second = log(2)
        settings = embedded.settings(bucket.depot, topology.location, max_retries=0)
        bucket.publish(first)
        with pytest.raises(RetriesExhaustedError, match="does not answer"):
            run_topology(topology, settings, clock=bucket.clock)
        bucket.publish(second)
        run_topology(topology, settings, clock=bucket.clock)
        assert seen == [(1, len(first)), (1, len(first)), (2, len(second))]
        assert sum(topology.read("counts")["times"].to_pylist()) == len(first) + len(second)
        assert DeltaTable(topology.outputs["copies"]).count() == len(first) + len(second)

    def test_one_plan(self, store):
        """Of drivers that save a plan in a bucket at the same moment one succeeds, and its plan stands for all."""
        files = StoredSideFiles(DeltaRsJournal.beside(f"{store}/states"))
        with ThreadPoolExecutor(3) as drivers:
            for number in range(3):
                name = f"plan-{number}"
                created = list(drivers.map(lambda text, name=name: files.create(name, text), "abc"))
                assert sum(created) == 1
                assert files.read(name) == "abc"[created.index(True)]

    @pytest.mark.parametrize("before", [2, pytest.param(40, marks=pytest.mark.slow)])
    def test_requests(self, bucket, embedded, proxy, before):
        """A round with one microbatch of a thousand messages makes 40 requests at most, however many were before it."""
        runner = bucket.runner(embedded, idle_timeout="10s")
        for number in range(before + 1):
            bucket.publish(*log(1, seed=number, size=1_000, start=NOW + number * MINUTE))
            bucket.clock.set(NOW + (number + 1) * MINUTE)
            proxy.taken()
            runner.once()
            requests = proxy.taken()
        assert len(runner.summary.microbatches) == before + 1
        assert len(requests) <= 40, by_kind(requests)

    def test_backlog(self, bucket, embedded, proxy):
        """The microbatches of a backlog make the same number of requests each, whether there are five or ten."""
        counts = []
        for versions in (5, 10):
            bucket.publish(*log(versions, seed=versions))
            runner = bucket.runner(embedded, max_messages=30)
            proxy.taken()
            runner.once()
            assert len(runner.summary.microbatches) == versions
            counts.append(len(proxy.taken()) / versions)
        assert counts[1] <= 1.1 * counts[0]


@pytest.mark.spark
class TestBothEngines:
    @pytest.mark.slow
    @pytest.mark.parametrize("maintained", [False, True])
    def test_in_turn(self, bucket, embedded, spark_driver, maintained):
        """Spark and the embedded engine, one after the other, make the ledger that one call makes, also maintained."""
        for number, version in enumerate(log(3)):
            bucket.publish(version)
            if number % 2:
                bucket.runner(embedded).once()
            else:
                assert spark_driver.do(bucket, "run") == 1
        if maintained:
            assert spark_driver.do(bucket, "maintain") == 0
        assert [row["engine"] for row in bucket.history()] == ["spark", "embedded", "spark"]
        assert bucket.canonical() == bucket.expected()
        assert verify(bucket.depot, bucket.ledger).ok

    @pytest.mark.slow_unless({"max_driver_messages": 1_000})
    @pytest.mark.parametrize("max_driver_messages", [0, 1_000])
    def test_by_files(self, bucket, embedded, spark_driver, max_driver_messages):
        """With `commit = "files"` the driver of Spark, or its tasks, write to the bucket; others take turns with it."""
        ways = ({"commit": "files", "max_driver_messages": max_driver_messages}, {}, None)
        for way, version in zip((*ways, ways[0]), log(4), strict=True):
            bucket.publish(version)
            if way is None:
                bucket.runner(embedded).once()
            else:
                assert spark_driver.do(bucket, "run", **way) == 1
        assert [row["commit_mode"] for row in bucket.history()] == ["files", "merge", "files", "files"]
        assert bucket.canonical() == bucket.expected()
        assert verify(bucket.depot, bucket.ledger).ok

    @pytest.mark.slow
    def test_conflict(self, bucket, spark_driver):
        """A log entry that another writer creates while Spark writes it stays, and Spark is told that it exists."""
        assert spark_driver.do(bucket, "conflict") == "theirs java.nio.file.FileAlreadyExistsException"

    @pytest.mark.slow
    @pytest.mark.parametrize(("commit", "most"), [("merge", 120), ("files", 105)])
    def test_requests(self, bucket, spark_driver, proxy, commit, most):
        """A round with one microbatch of a thousand messages makes 120 requests at most, and 105 by files."""
        for number in range(2):
            bucket.publish(*log(1, seed=number, size=1_000, start=NOW + number * MINUTE))
            bucket.clock.set(NOW + (number + 1) * MINUTE)
            proxy.taken()
            assert spark_driver.do(bucket, "round", commit=commit) == number + 1
            requests = proxy.taken()
        assert len(requests) <= most, by_kind(requests)

    @pytest.mark.slow
    @pytest.mark.parametrize("seconds", [6, 180])
    def test_race(self, bucket, spark_driver, seconds):
        """Spark and delta-rs append to one table at the same time, and no acknowledged commit is lost."""
        write_deltalake(bucket.depot, row("first", 0), mode="overwrite", schema_mode="overwrite")
        spark_driver.do(bucket, "append", now=1)  # the session is warm now
        spark_driver.begin(bucket, "append", now=seconds * 1_000)
        ours, before = 0, DeltaTable(bucket.depot).version()
        answer = []
        while not answer:
            write_deltalake(bucket.depot, row("delta-rs", ours), mode="append")
            ours += 1
            answer = spark_driver.answers_so_far()
        rows = DeltaTable(bucket.depot).to_pyarrow_table()["who"].to_pylist()
        assert (rows.count("spark"), rows.count("delta-rs")) == (answer[0] + 1, ours)
        assert DeltaTable(bucket.depot).version() == before + answer[0] + ours


class TestExclusion:
    @pytest.mark.parametrize("store", ["", "io.delta.storage.GCSLogStore", "io.delta.storage.S3SingleDriverLogStore"])
    def test_refused(self, spark_engine, store):
        """A session whose commits could replace those of others is refused, unless nobody else writes."""
        setting = "spark.delta.logStore.s3a.impl"
        if store:
            spark_engine.session.conf.set(setting, store)
        try:
            places = "s3a://nowhere/depot", "s3a://nowhere/ledger"
            refused = spark_engine.open(*places).writer
            with pytest.raises(EngineUnavailableError, match=f"silently replace .* {setting} is {store or 'not set'}"):
                refused.create(pa.string(), "90d")
            single = spark_engine.settings(*places, single_writer=True)
            alone = open_tables(single, spark_engine.session).writer
            with pytest.raises(TableUnwritableError, match="the Spark session has no jars for s3a"):
                alone.create(pa.string(), "90d")
        finally:
            spark_engine.session.conf.unset(setting)


FAULTS = [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "windrow", "the store refuses the credentials"),
    ({"AWS_ACCESS_KEY_ID": "unknown"}, "windrow", "the store refuses the credentials"),
    ({}, "nobucket", "there is no bucket or container nobucket"),
    ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "windrow", "the store cannot be reached"),
    ({"AWS_ALLOW_HTTP": "false"}, "windrow", "the endpoint is http"),
]


class TestFaults:
    @pytest.mark.parametrize(("environment", "bucket_name", "words"), FAULTS)
    def test_embedded(self, store, embedded, monkeypatch, environment, bucket_name, words):
        """Wrong credentials, an unknown bucket and a store that does not answer are told apart, each in a sentence."""
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(TableUnreadableError, match=words) as raised:
            embedded.open(f"s3a://{bucket_name}/depot", "ledger").source.depot()
        assert "kept-secret" not in str(raised.value)

    @pytest.mark.spark
    @pytest.mark.slow
    def test_on_spark(self, bucket, spark_driver):
        """An unknown bucket is told in the same words on Spark."""
        answer = spark_driver.do(bucket, "run", depot="s3a://nobucket/depot", max_retries=0)
        assert "there is no bucket or container nobucket" in answer["message"]


def row(who, number):
    """Return one row."""
    return pa.table({"who": [who], "number": [number]})
