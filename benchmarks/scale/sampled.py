"""Some streams of a ledger next to what one call of `windrow.batch` makes of their messages, byte by byte.

The clock of a stream is that of its source, so all streams of some sources are taken. It holds for a ledger of which
nothing was flushed or ticked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import windrow
from windrow.columnar.arrow import to_plain_types
from windrow.model import canonical
from windrow.model.messages import COLUMNS


@dataclass(frozen=True, slots=True)
class Sampled:
    """How many streams were compared, how many batches and rejections they have, and how many of these differ."""

    streams: int
    rows: int
    different: int


def sampled(spark: SparkSession, depot: Path, ledger: Path, sources: Sequence[str], rules: windrow.Rules) -> Sampled:
    """Compare all streams of some sources."""
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    feed = reader.load(str(depot)).where(F.col("source").isin(*sources))
    messages = to_plain_types(feed.select(*COLUMNS, F.col("_commit_version").alias("version")).toArrow())
    batched = windrow.batch(messages, rules)
    rows = spark.read.format("delta").load(str(ledger)).where(F.col("source").isin(*sources))
    kept = rows.where("state IN ('open', 'closed')").select(*canonical.BATCH, "messages")
    refused = rows.where("state = 'rejected'").select(*canonical.REJECTED)
    expected = _bytes(batched.batches, batched.rejected)
    stored = _bytes(to_plain_types(kept.toArrow()), to_plain_types(refused.toArrow()))
    streams = messages.group_by(["source", "key"]).aggregate([]).num_rows
    return Sampled(streams, len(expected), len(expected ^ stored) + abs(len(expected) - len(stored)))


def _bytes(batches: pa.Table, rejected: pa.Table) -> set[bytes]:
    """Return each row in its canonical form; rejections of `windrow.batch` do not say that they are some."""
    refused = rejected.drop_columns(["state"]) if "state" in rejected.column_names else rejected
    refused = refused.append_column("state", pa.repeat(pa.scalar("rejected"), refused.num_rows))
    forms = [(batches, canonical.batches), (refused, canonical.rejections)]
    return {
        row for table, how in forms for part in table.combine_chunks().to_batches() for row in how(part).to_pylist()
    }
