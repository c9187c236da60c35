"""Requests to an S3 server of a round with a microbatch of a thousand messages, counted, and with 30 ms each.

The server is SeaweedFS on this machine, and a proxy (`benchmarks/proxy.py`) counts. A round looks for new messages,
commits them, looks again and ticks. Counted is the median of as many rounds as lie between two checkpoints of a log:
after two rounds, and on the embedded engine after a hundred.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from unittest.mock import patch
from uuid import uuid4

from benchmarks.conditions import Conditions
from benchmarks.proxy import CountingProxy
from benchmarks.row import Measurement, at_most
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED
from tests.messages import SECOND, log
from tests.stores.bucket import Bucket
from tests.stores.seaweed import SeaweedFS, variables
from tests.stores.spark_driver import SparkDriver

CHECKPOINT = 10  # commits
MINUTE = 60 * SECOND
DELAY = 0.03  # seconds
Run = Callable[[Bucket], object]


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Count on both engines, then delay each request."""
    rounds, before = conditions.size(CHECKPOINT, 1), conditions.size(100, 2)
    conditions.directory.mkdir(exist_ok=True)
    with SeaweedFS(conditions.directory) as server:
        with _asked(server, 0) as (proxy, bucket):
            early, _ = _rounds(proxy, bucket, _embedded(bucket), 2, rounds)
            yield Measurement("embedded: requests", early, "", aim=at_most(40, own=True))
            late, _ = _rounds(proxy, bucket, _embedded(bucket), 2 + rounds + before, rounds)
            yield Measurement(
                f"embedded: requests after {before} rounds more", late, "", "2", early, late / early, "count"
            )
        with _asked(server, DELAY) as (proxy, bucket):
            _, seconds = _rounds(proxy, bucket, _embedded(bucket), 2, 3)
            yield Measurement("embedded: with 30 ms a request", seconds, "s")
        with _asked(server, 0) as (proxy, bucket):
            driver = SparkDriver(variables(proxy.port))
            try:
                driver.answer()
                count, _ = _rounds(proxy, bucket, lambda target: driver.do(target, "round"), 2, rounds)
                yield Measurement("Spark: requests", count, "", aim=at_most(100, own=True))
                files = Bucket(f"s3a://windrow/{uuid4().hex}", ManualClock())
                count, _ = _rounds(proxy, files, lambda target: driver.do(target, "round", commit="files"), 2, rounds)
                yield Measurement("Spark, by files: requests", count, "", aim=at_most(45, own=True))
            finally:
                driver.close()


@contextmanager
def _asked(server: SeaweedFS, delay: float) -> Iterator[tuple[CountingProxy, Bucket]]:
    """Give a proxy, and an empty bucket behind it."""
    with CountingProxy(server.port, delay) as proxy, patch.dict(os.environ, variables(proxy.port)):
        yield proxy, Bucket(f"s3a://windrow/{uuid4().hex}", ManualClock())


def _embedded(bucket: Bucket) -> Run:
    runner = bucket.made(bucket.tables(EMBEDDED, idle_timeout="10s"))
    return lambda _: runner.once()


def _rounds(proxy: CountingProxy, bucket: Bucket, run: Run, before: int, rounds: int) -> tuple[float, float]:
    """Return the median of requests and of seconds of rounds, after rounds before them."""
    counts, seconds = [], []
    for number in range(before + rounds):
        start = max(bucket.clock.now(), NOW) + MINUTE
        bucket.publish(*log(1, seed=number, size=1_000, start=start))
        bucket.clock.set(start + MINUTE)
        proxy.taken()
        begun = time.perf_counter()
        run(bucket)
        seconds.append(time.perf_counter() - begun)
        counts.append(len(proxy.taken()))
    return median(counts[before:]), median(seconds[before:])
