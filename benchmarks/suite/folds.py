"""What folds cost: many microbatches that change a thousand scattered keys of a million, and of a thousand.

A microbatch writes the keys that change. A fold, which a run does by itself, writes those that count again. So all
bytes that were written are compared with those that the microbatches alone wrote, and the mean time of a microbatch,
folds included, with that of as many changes of a state that has no other keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

import numpy as np
from deltalake import DeltaTable

from benchmarks.conditions import Conditions
from benchmarks.row import Measurement, at_most
from benchmarks.suite.topology import append, running, summing
from benchmarks.turns import Run, time_interleaved
from windrow.delta.table import history
from windrow.model.commits import note_of


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Change scattered keys of a large state and of a small one in turns, on the embedded engine."""
    here, count = conditions.directory, conditions.size(1_000, 10)
    changed, many = conditions.size(1_000, 20), conditions.size(1_000_000, 500)
    sizes = {changed: here / "few", many: here / "many"}
    for keys, depot in sizes.items():
        append(depot, np.arange(keys))

    def publish(number: int) -> None:
        for keys, depot in sizes.items():
            append(depot, np.random.default_rng(number).choice(keys, changed, replace=False))

    with ExitStack() as until:
        runs: dict[str, Run] = {
            depot.name: running(until, summing(here, depot.name, depot.name)) for depot in sizes.values()
        }
        for run in runs.values():
            run()  # the first microbatch writes all keys
        taken = time_interleaved(runs, count, 0, publish, conditions.tell)
    own, other = (mean(taken[name]) for name in ("many", "few"))
    what = f"{changed:,} of {many:,} keys"
    yield Measurement(f"{what}, mean of {count:,}", own, "s", f"of {changed:,}", other, own / other, aim=at_most(2))
    folds, microbatches = written(here / "states-many")
    every = (folds + microbatches) / 1e6
    yield Measurement(
        f"{what}, with folds",
        every,
        "MB",
        "without",
        microbatches / 1e6,
        (folds + microbatches) / microbatches,
        "memory",
        at_most(10),
    )


def written(states: Path) -> tuple[int, int]:
    """Return how many bytes folds have written, and microbatches after the first."""
    folds = microbatches = 0
    for commit in history(DeltaTable(states), since=2, files=True):
        size = sum(file["size"] for file in commit["added"])
        if "fold" in note_of(commit):
            folds += size
        else:
            microbatches += size
    return folds, microbatches
