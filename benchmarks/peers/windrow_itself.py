"""Windrow, on the Spark session that it is given, or without one on the embedded engine."""

from pathlib import Path

from pyspark.sql import SparkSession

import windrow
from windrow.model.clock import Clock


def run(
    spark: SparkSession | None,
    depot: Path,
    into: Path,
    versions_at_once: int,
    clock: Clock | None = None,
    **rules: str,
) -> None:
    """Batch what is new in the depot and stop."""
    settings = windrow.Settings(
        depot=str(depot),
        ledger=str(into / "ledger"),
        engine="spark" if spark else "embedded",
        max_messages=1 if versions_at_once == 1 else 1_000_000,
        rules={"window": "10s", "max_delay": "5s", "max_lead": "1s", **rules},
    )
    windrow.run(settings, spark=spark, clock=clock)
