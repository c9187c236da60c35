"""Explore scenarios briefly, one after the other, until an invariant breaks: `python -m tests.explorer.search NAME...`.

Prints a line of JSON for each: what was explored, and how often each guard was reached and struck if that is counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from tests.explorer import scenarios, topologies
from tests.explorer.exploration import Explored, explore
from tests.guards import counting

SCENARIOS = {one.name: one for one in (*scenarios.SCENARIOS, *topologies.SCENARIOS)}
MAX_STATES = 100  # of one process with at most one fault; a batcher's are all of them
WALKS = 10  # random schedules of several processes
MAX_FAULTS = 2  # in each of these
MAX_SECONDS = 60  # CPU time after which no other scenario begins


def search(names: Sequence[str], seconds: float = MAX_SECONDS) -> Iterator[Explored]:
    """Yield what was explored of each scenario; stop after the first in which an invariant breaks, or late."""
    for name in names:
        scenario = SCENARIOS[name]
        if len(scenario.works) == 1:
            explored = explore(scenario, 1, MAX_STATES)
        else:
            explored = explore(scenario, MAX_FAULTS, walks=(WALKS, 1))
        yield explored
        if explored.broken is not None or time.process_time() > seconds:
            return


def counts() -> list[list[int]]:
    """Return how often each guard was reached and struck so far, nothing if that is not counted."""
    file = os.environ.get(counting.VARIABLE)
    return [] if file is None else np.fromfile(file, np.int64).reshape(-1, 2).tolist()


if __name__ == "__main__":
    seconds, *chosen = sys.argv[1:]
    for explored in search(chosen, float(seconds)):
        sys.stdout.write(f"{json.dumps(asdict(explored) | {'counts': counts()})}\n")
        sys.stdout.flush()
