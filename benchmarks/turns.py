"""Time side by side: A, B, A, B ... in one process, so that a slow minute of the machine is slow for both."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

Run = Callable[[], float]
"""Does something and returns how many seconds of it count."""


def timed(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes, not those it takes to let go of what it returned."""
    start = time.perf_counter()
    _returned = call()
    return time.perf_counter() - start


def run_in_fresh_directory(run: Callable[[Path], object], into: Path) -> float:
    """Return how many seconds a run takes that writes into a directory, which is removed afterwards."""
    seconds = timed(partial(run, into))
    shutil.rmtree(into)
    return seconds


def time_interleaved(
    runs: Mapping[str, Run],
    rounds: int,
    warm_up: int = 1,
    before: Callable[[int], object] = lambda number: None,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, list[float]]:
    """Return for each run the seconds of each round; rounds of the warm-up come first and are dropped.

    `before` is called with the number of each round, and takes no time of anybody's.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warm_up + rounds):
        before(number)
        for name, run in runs.items():
            tell(f"round {number + 1} of {warm_up + rounds}: {name}")
            taken[name].append(run())
    return {name: seconds[warm_up:] for name, seconds in taken.items()}


def ratio(own: Sequence[float], by: Sequence[float]) -> float:
    """Return the median of the ratios of each round: a round that was slow for everybody does not move it."""
    return statistics.median(own_seconds / other_seconds for own_seconds, other_seconds in zip(own, by, strict=True))
