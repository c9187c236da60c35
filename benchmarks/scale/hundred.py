"""A hundred million messages in twenty microbatches through Spark's executors, on this machine alone.

Spark makes the depot, a version a microbatch, so neither it nor the ledger is ever held in memory. The driver's memory
should be as flat at the end as at the beginning. With `--live` each version is published when the one before is
batched; otherwise all of it is a backlog, which Spark keeps on disk once more while it reads.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from random import Random

import windrow
from benchmarks.scale import checks
from benchmarks.scale.generated import KEYS_OF_A_SOURCE, Fleet, publish
from benchmarks.scale.sessions import session
from benchmarks.scale.telling import ScenarioLog

KEYS_TO_COMPARE = 200


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--messages", type=int, default=100_000_000, help="messages, without copies (100,000,000)")
    parser.add_argument("--microbatches", type=int, default=20, help="depot versions (20)")
    parser.add_argument("--live", action="store_true", help="publish a version after the other")


def run(directory: Path, options: Namespace) -> None:
    """Publish, batch, and check."""
    spark = session("local[2]")
    depot, ledger = directory / "depot", directory / "ledger"
    fleet, telling = Fleet(options.messages, options.microbatches), ScenarioLog(spark)
    chosen = windrow.Settings(
        depot=str(depot),
        ledger=str(ledger),
        engine="spark",
        max_messages=1,
        max_driver_messages=0,
        idle_timeout="never",
    )
    for version in range(fleet.versions):
        publish(fleet.version(spark, version), depot)
        if options.live:
            telling.begin()
            windrow.run(chosen, spark=spark, report=telling.committed)
    if not options.live:
        telling.tell(f"{options.messages:,} messages of {fleet.keys:,} devices published")
        windrow.run(chosen, spark=spark, report=telling.committed)
    telling.tell_peaks()
    checks.require_way(telling.paths, "executors")
    sources = Random(1).sample(fleet.sources, min(len(fleet.sources), KEYS_TO_COMPARE // KEYS_OF_A_SOURCE))
    checks.require_sample(spark, depot, ledger, sources, windrow.Rules())
    checks.require_balance(spark, depot, ledger)
