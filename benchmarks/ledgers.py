"""Ledgers with many open batches of five messages, and messages that come to some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import windrow
from benchmarks import streams
from benchmarks.microbatches import settings
from benchmarks.peers import inputs
from windrow.runtime.opening import tables_of

TYPES = 5
RULES = {"window": "2h", "max_delay": "30m"}
# No tick may close what is to stay open, and none of the windows ends while it is measured.
OPEN = {"rules": RULES, "idle_timeout": "never"}


def build(spark: SparkSession, depot: Path, ledger: Path, batches: int, **more: Any) -> None:
    """Make a depot and a ledger with so many open batches, in one microbatch of Spark's executors.

    They are folded, as a run leaves them after the first commits (`fold_commits`).
    """
    for kind in range(TYPES):
        inputs.write(depot, streams.many_streams(batches, kind, kind * streams.SECOND), 1)
    ledger_settings = settings(
        depot, ledger, spark, max_driver_messages=0, max_messages=TYPES * batches, **OPEN, **more
    )
    windrow.run(ledger_settings, spark=spark)
    _, made = tables_of(ledger_settings, spark)
    made.fold(made.live(), "large")


def touch(depot: Path, number: int, batches: int = 1) -> None:
    """Publish a message to each of the first open batches of such a ledger, the `number`-th time (from 0 on)."""
    kind, offset = TYPES + number, TYPES * streams.SECOND + number * 1_000
    inputs.write(depot, streams.many_streams(batches, kind, offset), 1)
