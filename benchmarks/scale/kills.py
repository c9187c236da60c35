"""Executors and Python workers that are killed at random moments, while many batches are open.

A standalone cluster of two workers on the loopback interface; the driver is this process. The state is built without
kills, and a microbatch without kills says how long one takes. In each further one a process is killed by SIGKILL at a
random moment of that time: an executor, or one of the Python processes of an executor. In the end no message may be
lost, none may stand twice, and all has to be what an undisturbed run makes of the depot.
"""

from __future__ import annotations

import os
import signal
import time
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from threading import Timer
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

import windrow
from benchmarks.scale import checks
from benchmarks.scale.generated import GATEWAYS, publish, wide
from benchmarks.scale.sessions import session
from benchmarks.scale.telling import ScenarioLog, say
from tests.engine.cluster import APPLICATION, Cluster, processes, read, running

TYPES = 5
SHARE = 10  # of the batches one gets a message in a microbatch
SOURCES_TO_COMPARE = 20
RULES = {"window": "2h", "max_delay": "30m"}  # nothing closes by itself
PYTHON = "pyspark.daemon"


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--batches", type=int, default=20_000, help="open batches (20,000)")
    parser.add_argument("--kills", type=int, default=20, help="microbatches in which something is killed (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")


def run(directory: Path, options: Namespace) -> None:
    """Build, kill, and check."""
    place = directory / "cluster"
    place.mkdir()
    with running(place) as cluster:
        cluster.fill(2)
        spark = session(cluster.master, "1g", APPLICATION)
        try:
            killing(directory, options, cluster, spark)
        finally:
            spark.stop()


def killing(directory: Path, options: Namespace, cluster: Cluster, spark: SparkSession) -> None:
    """Run microbatches while processes of the cluster are killed."""
    depot, ledger = directory / "depot", directory / "ledger"
    telling, random = ScenarioLog(spark), Random(options.seed)
    chosen = windrow.Settings(
        depot=str(depot), ledger=str(ledger), engine="spark", max_driver_messages=0, idle_timeout="never", rules=RULES
    )

    def batch(kind: int, share: int, kill: Kill | None = None) -> float:
        publish(wide(spark, options.batches, kind, share), depot)
        telling.begin()
        start = time.perf_counter()
        with kill or nullcontext():
            windrow.run(chosen, spark=spark, report=telling.committed)
        return time.perf_counter() - start

    for kind in range(TYPES):
        batch(kind, 1)
    usual = min(batch(TYPES + kind, SHARE) for kind in range(2))
    killed = 0
    for number in range(options.kills):
        kill = Kill(cluster, random, random.choice(["executor", "Python worker"]), random.uniform(0, usual))
        batch(TYPES + 2 + number, SHARE, kill)
        killed += kill.killed
    say(f"{killed} of {options.kills} kills hit a process")
    telling.tell_peaks()
    checks.require_way(telling.paths, "executors")
    sources = [
        f"gateway-{number}" for number in random.sample(range(min(GATEWAYS, options.batches)), SOURCES_TO_COMPARE)
    ]
    checks.require_sample(spark, depot, ledger, sources, windrow.Rules(**RULES))
    checks.require_balance(spark, depot, ledger)
    checks.require_verified(depot, ledger, options.batches * TYPES)


class Kill:
    """Kills one process of a cluster after so many seconds of its block, if there is one of that kind."""

    def __init__(self, cluster: Cluster, random: Random, kind: str, after: float) -> None:
        self._cluster, self._random, self._kind, self._after = cluster, random, kind, after
        self._timer, self.killed = Timer(after, self._kill), False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()

    def _kill(self) -> None:
        process_ids = self._cluster.all_executors() if self._kind == "executor" else pythons(self._cluster)
        if process_ids:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(process_ids), signal.SIGKILL)
                self.killed = True
        say(f"  {self._kind} {'killed' if self.killed else 'not there'} after {self._after:.2f} s")


def pythons(cluster: Cluster) -> list[int]:
    """Return the Python processes of all executors."""
    marked = [process for process in processes() if any(cluster._of(name, process) for name in cluster.workers)]
    return [process for process in marked if PYTHON in read(process, "cmdline")]
