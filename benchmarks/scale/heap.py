"""A million open batches of five messages on a cluster whose driver has a heap of 1 GiB.

The cluster is Spark's `local-cluster`: two executors of 1 GiB in processes of their own. The state is built in five
microbatches, one for each message of a batch; then come further microbatches to one batch in a hundred, a tick when
nothing is due, and the flush of everything, which closes all. At the end the books have to balance.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import windrow
from benchmarks.scale import checks
from benchmarks.scale.generated import GATEWAYS, publish, wide
from benchmarks.scale.sessions import session
from benchmarks.scale.telling import ScenarioLog
from windrow.runtime.loop import Runner
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock

MASTER = "local-cluster[2,1,2048]"
TYPES = 5
SHARE = 100  # of the batches one gets a message in a further microbatch
KEYS_TO_COMPARE = 200
RULES = {"window": "2h", "max_delay": "30m"}  # nothing closes by itself


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--batches", type=int, default=1_000_000, help="open batches (1,000,000)")
    parser.add_argument("--further", type=int, default=5, help="microbatches to open batches (5)")
    parser.add_argument("--max-driver-messages", type=int, default=10_000, help="the setting (10,000)")


def run(directory: Path, options: Namespace) -> None:
    """Build, go on, tick, flush, and check."""
    spark = session(MASTER, "1g", {"spark.executor.memory": "1g"})
    depot, ledger = directory / "depot", directory / "ledger"
    telling = ScenarioLog(spark)
    chosen = windrow.Settings(
        depot=str(depot),
        ledger=str(ledger),
        engine="spark",
        max_driver_messages=options.max_driver_messages,
        idle_timeout="1d",
        rules=RULES,
    )

    def work(what: Callable[[Runner], object]) -> None:
        telling.begin()
        with open_runner(*tables_of(chosen, spark), WallClock(), report=telling.committed) as runner:
            what(runner)

    for kind in range(TYPES + options.further):
        publish(wide(spark, options.batches, kind, 1 if kind < TYPES else SHARE), depot)
        work(Runner.once)
    work(Runner.tick)
    telling.tell("tick, nothing due")
    sources = [f"gateway-{number}" for number in range(1 + KEYS_TO_COMPARE * GATEWAYS // options.batches)]
    checks.require_sample(spark, depot, ledger, sources, windrow.Rules(**RULES))
    work(Runner.flush)
    telling.tell_peaks()
    checks.require_balance(spark, depot, ledger)
    checks.require_verified(depot, ledger, options.batches * TYPES)
    if options.batches > options.max_driver_messages:
        checks.require_way(telling.paths, "executors")
