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


def seconds(spark: SparkSession, depot: Path, into: Path, at_once: int, rounds: int) -> dict[str, list[float]]:
    """Return for each peer how long each round took, from the depot to its own table."""
    runs: Mapping[str, Callable[[Path], object]] = {
        peer.name: lambda out, peer=peer: peer.run(spark, depot, out, at_once) for peer in PEERS
    }
    embedded = {"Windrow embedded, no JVM": lambda out: windrow_itself.run(None, depot, out, at_once)}
    taken: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, run in (runs | embedded).items():
            out = into / f"{name.replace(' ', '-').strip('`')}-{number}"
            begin = time.perf_counter()
            run(out)
            taken.setdefault(name, []).append(time.perf_counter() - begin)
            shutil.rmtree(out)
    return taken


def ratios(taken: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median over the rounds of the time of each peer divided by Windrow's of the same round."""
    return {
        name: statistics.median(own / reference for own, reference in zip(rounds, taken[REFERENCE], strict=True))
        for name, rounds in taken.items()
    }
