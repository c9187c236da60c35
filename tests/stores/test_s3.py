"""The whole way on S3: produced, batched, maintained and verified, on both engines, with several drivers and kills."""

import pytest

from benchmarks.proxy import by_kind
from tests.clocks import NOW
from tests.engine.processes import drivers
from tests.messages import SECOND, log, table
from windrow.producer import Producer
from windrow.runtime.maintenance import maintain
from windrow.verify import verify

MINUTE = 60 * SECOND


class TestEmbedded:
    def test_from_producer_to_verify(self, bucket, embedded):
        """
        What a producer sends is batched like the same messages in one call; maintained, the ledger still verifies.
        """
        with Producer(bucket.depot, "plant") as producer:
            producer.send_many(table(log(1)[0])).result()
        for version in log(3, seed=2):
            bucket.publish(version)
            bucket.runner(embedded).once()
        maintain(bucket.engine(embedded), bucket.settings(embedded), bucket.clock.now())
        bucket.publish(*log(1, seed=3))
        bucket.runner(embedded).once()
        assert bucket.canonical() == bucket.expected()
        assert verify(bucket.depot, bucket.ledger).ok
        bucket.assert_balanced()

    @pytest.mark.parametrize("point", ["before_commit", "after_commit"])
    def test_killed(self, bucket, embedded, point):
        """
        A driver killed in the middle of its second microbatch loses nothing, and its successor counts nothing twice.
        """
        bucket.publish(*log(4))
        with drivers(bucket, "embedded", max_messages=30, kill=(point, 2)) as [driver]:
            driver.start()
            assert driver.status() < 0
        bucket.runner(embedded).once()
        assert bucket.canonical() == bucket.expected()
        bucket.assert_balanced()

    def test_two_drivers(self, bucket):
        """
        Two drivers of one ledger, without a lock between them, count each message once.
        """
        bucket.publish(*log(8))
        with drivers(bucket, "embedded", "embedded", max_messages=30) as both:
            for driver in both:
                driver.start()
            assert [driver.status() for driver in both] == [0, 0]
        assert bucket.canonical() == bucket.expected()
        bucket.assert_balanced()

    @pytest.mark.parametrize("before", [2, pytest.param(40, marks=pytest.mark.slow)])
    def test_requests(self, bucket, embedded, proxy, before):
        """
        A round with one microbatch of a thousand messages makes 56 requests at most, however many were before it.
        """
        runner = bucket.runner(embedded, idle_timeout="10s")
        for number in range(before + 1):
            bucket.publish(*log(1, seed=number, size=1_000, begin=NOW + number * MINUTE))
            bucket.clock.set(NOW + (number + 1) * MINUTE)
            proxy.taken()
            runner.once()
            requests = proxy.taken()
        assert len(runner.summary.microbatches) == before + 1
        assert len(requests) <= 56, by_kind(requests)

    def test_backlog(self, bucket, embedded, proxy):
        """
        The microbatches of a backlog make the same number of requests each, whether there are ten or twenty.
        """
        counts = []
        for versions in (10, 20):
            bucket.publish(*log(versions, seed=versions))
            runner = bucket.runner(embedded, max_messages=30)
            proxy.taken()
            runner.once()
            assert len(runner.summary.microbatches) == versions
            counts.append(len(proxy.taken()) / versions)
        assert counts[1] <= 1.1 * counts[0]
