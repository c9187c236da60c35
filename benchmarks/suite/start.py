"""How long commands take from the shell on a small ledger, next to Python that only imports pyarrow.

`windrow run --once` runs with the default engine, which is Spark where Java is there. With nothing to do it needs no
Spark session, so no Java may have been started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import windrow
from benchmarks import processes
from benchmarks.conditions import Conditions
from benchmarks.microbatches import settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, times
from benchmarks.turns import Run, time_interleaved

IMPORT = 'python -c "import pyarrow"'
NOTHING_TO_DO = "windrow run --once"


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Run each command once a round."""
    depot, ledger = conditions.directory / "depot", conditions.directory / "ledger"
    inputs.write(depot, inputs.generated(1_000), 1)
    chosen = settings(depot, ledger, idle_timeout="never")
    windrow.run(chosen)
    tables = ("--depot", depot, "--ledger", ledger)
    commands = {
        "windrow --version": processes.windrow("--version"),
        "windrow --help": processes.windrow("--help"),
        "windrow status --json": processes.windrow("status", "--json", *tables),
        "windrow show": processes.windrow("show", *tables),
        NOTHING_TO_DO: processes.windrow("run", "--once", *tables),
        IMPORT: [sys.executable, "-c", "import pyarrow"],
    }
    programs: set[str] = set()

    def command(name: str) -> Run:
        def run() -> float:
            completed = processes.run(commands[name], {"WINDROW_IDLE_TIMEOUT": "never"})
            if name == NOTHING_TO_DO:
                programs.update(completed.programs)
            return completed.seconds

        return run

    taken = time_interleaved({name: command(name) for name in commands}, conditions.rounds, tell=conditions.tell)
    other = taken.pop(IMPORT)
    for name, seconds in taken.items():
        yield times(name, seconds, IMPORT, other, at_most(1, own=True))
    yield Measurement(f"{NOTHING_TO_DO}, nothing to do: JVMs", float("java" in programs), "", aim=at_most(0))
