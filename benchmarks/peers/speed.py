"""How long each peer takes next to Windrow: in turns, in one process, the write to Delta included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.peers import windrow_itself
from benchmarks.peers.counts import PEERS
from benchmarks.turns import ratio, run_in_fresh_directory, time_interleaved

REFERENCE = PEERS[0].name
ALL = 1_000_000


def seconds(spark: SparkSession, depot: Path, into: Path, rounds: int) -> dict[str, list[float]]:
    """Return for each peer how long each round took, from the whole depot to its own table in `into`."""
    runs: Mapping[str, Callable[[Path], object]] = {
        peer.name: lambda out, peer=peer: peer.run(spark, depot, out, ALL) for peer in PEERS
    }
    embedded = {"Windrow embedded, no JVM": lambda out: windrow_itself.run(None, depot, out, ALL)}
    return time_interleaved(
        {name: partial(run_in_fresh_directory, run, into) for name, run in (runs | embedded).items()}, rounds, warm_up=0
    )


def ratios(taken: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median over the rounds of the time of each peer divided by Windrow's of the same round."""
    return {name: round(ratio(rounds, taken[REFERENCE]), 2) for name, rounds in taken.items()}
