"""How long each peer takes next to Windrow: in turns, in processes that are warm, the write of batches included.

Flink reads and writes JSON, because nothing that reads Delta comes with it; the others read and write Delta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.peers import flink, windrow_itself
from benchmarks.peers.counts import PEERS
from benchmarks.turns import ratio, run_in_fresh_directory, time_interleaved

REFERENCE = PEERS[0].name
ALL = 1_000_000
PARALLELISM = {"parallelism.default": "2"}  # of Flink, as `local[2]` of Spark


def seconds(
    spark: SparkSession, process: flink.Flink | None, depot: Path, into: Path, rounds: int
) -> dict[str, list[float]]:
    """Return for each peer how long each round took, from the whole depot to its own table in `into`."""
    runs: dict[str, Callable[[Path], object]] = {
        peer.name: lambda out, peer=peer: peer.run(spark, depot, out, ALL) for peer in PEERS
    }
    runs["Windrow embedded, no JVM"] = lambda out: windrow_itself.run(None, depot, out, ALL)
    if process is not None:
        files = flink.as_json(depot, depot.with_name(f"{depot.name}-json"))
        runs |= {name: partial(flink.run_to_end, process, window, files) for name, window in flink.WINDOWS.items()}
    timed = {name: partial(run_in_fresh_directory, run, into) for name, run in runs.items()}
    return time_interleaved(timed, rounds, warm_up=0)


def ratios(taken: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median over the rounds of the time of each peer divided by Windrow's of the same round."""
    return {name: round(ratio(rounds, taken[REFERENCE]), 2) for name, rounds in taken.items()}
