"""Twenty million messages through `windrow run --once`, and the most memory that it held: the JVM's and Python's.

The depot has versions of a million messages, so with the default settings a microbatch takes one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import processes
from benchmarks.conditions import Conditions
from benchmarks.peers import inputs
from benchmarks.row import Measurement, Target
from benchmarks.row import memory as held

VERSIONS = 20
MOST = Target(4, "most")


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Let a command of each engine read all of it."""
    size = conditions.size(1_000_000, 500)
    depot = conditions.directory / "depot"
    for number in range(VERSIONS):
        conditions.tell(f"writing depot version {number}")
        inputs.write(depot, inputs.generated(size, seed=number, first=number * size), 1)
    for engine in ("embedded", "spark"):
        name = f"{VERSIONS * size:,} messages, {engine}"
        conditions.tell(name)
        places = ("--depot", depot, "--ledger", conditions.directory / engine)
        completed = processes.run(processes.windrow("run", "--once", "--engine", engine, *places))
        yield held(f"{name}: memory", completed.peak_bytes, MOST)
        yield Measurement(name, completed.seconds, "s")
