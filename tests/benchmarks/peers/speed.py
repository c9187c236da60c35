"""How long each peer takes next to Windrow: in turns, in one process, the write to Delta included."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.peers import windrow_itself
from tests.benchmarks.peers.counts import PEERS

REFERENCE = PEERS[0].name
ALL = 1_000_000


def seconds(spark: SparkSession, depot: Path, into: Path, rounds: int) -> dict[str, list[float]]:
    """Return for each peer how long each round took, from the whole depot to its own table in `into`."""
    runs: Mapping[str, Callable[[Path], object]] = {
        peer.name: lambda out, peer=peer: peer.run(spark, depot, out, ALL) for peer in PEERS
    }
    embedded = {"Windrow embedded, no JVM": lambda out: windrow_itself.run(None, depot, out, ALL)}
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, run in (runs | embedded).items():
            begin = time.perf_counter()
            run(into)
            taken.setdefault(name, []).append(time.perf_counter() - begin)
            shutil.rmtree(into)
    return taken


def ratios(taken: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median over the rounds of the time of each peer divided by Windrow's of the same round."""
    return {
        name: round(statistics.median(own / by for own, by in zip(rounds, taken[REFERENCE], strict=True)), 2)
        for name, rounds in taken.items()
    }
