"""Try every interleaving of the scenarios: `python -m tests.explorer [--only SCENARIO] [--faults N]`.

With `--bugs` bugs are planted and guards taken away one by one, to see which of them an exploration finds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.explorer import scenarios, topologies
from tests.explorer.exploration import Explored, explore
from tests.explorer.page import write_bugs, write_scenarios

SCENARIOS = (*scenarios.SCENARIOS, *topologies.SCENARIOS)
ROOT = Path(__file__).parents[2]
# What a scenario may cost where a guard was taken away: the faults that were found came up within some hundred states.
MAX_STATES = 500
ROOMS = ("runtime", "ledger", "source", "batching")
IN_A_PROCESS = (
    "import runpy, tests.explorer.bugs, tests.guards.plugin; runpy.run_module('tests.explorer', run_name='__main__')"
)


def main() -> int:
    """Explore what was asked for; exit status 1 when an invariant does not hold, or when no bug was found."""
    chosen = arguments()
    if chosen.bugs:
        return with_bugs(chosen.only, chosen.write)
    results = []
    walks = (chosen.walks, chosen.seed) if chosen.walks else None
    for scenario in SCENARIOS:
        if chosen.only in scenario.name:
            results.append(explore(scenario, chosen.faults, chosen.most or None, Telling(), walks))
            say(line(results[-1]))
            if results[-1].broken:
                break
    if chosen.write:
        write_scenarios(results)
    if chosen.json:
        sys.stdout.write(f"{json.dumps([asdict(one) for one in results])}\n")
    return int(any(one.broken for one in results))


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="NAME", help="scenarios, or with --bugs bugs, with this in their name"
    )
    parser.add_argument("--faults", type=int, default=1, help="most faults of a schedule (%(default)s)")
    parser.add_argument("--most", type=int, default=0, metavar="STATES", help="give up a scenario after so many states")
    parser.add_argument("--walks", type=int, default=0, metavar="N", help="so many random schedules instead of all")
    parser.add_argument("--seed", type=int, default=1, help="what random schedules follow from (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON too")
    parser.add_argument("--bugs", action="store_true", help="plant bugs and take guards away, and say which are found")
    parser.add_argument("--write", action="store_true", help="put the result into docs/reference/exploration.md")
    return parser.parse_args()


class Telling:
    """Says every ten seconds how far an exploration is."""

    def __init__(self) -> None:
        self._told = 0.0

    def __call__(self, explored: Explored) -> None:
        """Say it if it is time."""
        if explored.seconds - self._told >= 10:
            self._told = explored.seconds
            say(f"{explored.scenario}: {explored.states:,} states, {explored.ends:,} ends, {explored.seconds:.0f} s")


def line(explored: Explored) -> str:
    """Return what an exploration gave, in a line, and the schedule of what it found."""
    most = "" if explored.whole else " (not all)"
    told = (
        f"{explored.scenario}, {explored.faults} faults: {explored.states:,} states{most}, {explored.calls:,} calls, "
    )
    told += f"{explored.ends:,} ends, {explored.runs:,} runs of processes, {explored.seconds:.1f} s"
    if explored.broken is None:
        return told
    schedule = [f"  {choice.process}: {choice.call}, {choice.outcome}" for choice in explored.schedule]
    return "\n".join([told, f"  BROKEN: {explored.broken}", *schedule])


def with_bugs(only: str, write: bool) -> int:
    """Plant the bugs and take the guards of the engine away, one by one, and say which are found; 1 if none is."""
    from tests.explorer.bugs import BUGS
    from tests.explorer.bugs import VARIABLE as BUG
    from tests.guards.guard import GUARDS
    from tests.guards.guard import VARIABLE as GUARD

    guards = [guard.name for guard in GUARDS if guard.path.split("/")[0] in ROOMS and not guard.on_spark]
    rows = []
    for variable, name in [*((BUG, bug.name) for bug in BUGS), *((GUARD, guard) for guard in guards)]:
        if only in name:
            rows.append(found_by(variable, name))
            say(" | ".join(rows[-1]))
            if write:
                write_bugs(rows)
    return int(all("not found" in row for row in rows))


def found_by(variable: str, name: str) -> list[str]:
    """Return a bug or guard, the states until it was found, the scenario, and what broke."""
    known = explored_with(variable, name)
    broken = next((one for one in known if one["broken"]), None)
    states = f"{sum(one['states'] for one in known):,}"
    return [name, states, *(("", "not found") if broken is None else (broken["scenario"], broken["broken"]))]


def explored_with(variable: str, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Explore in a process without a guard, or with a bug, until a scenario breaks; return what each gave.

    What does not even begin is found at once.
    """
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, "--json", *(arguments or ("--most", str(MAX_STATES)))],
        cwd=ROOT, env=os.environ | {variable: name}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout:
        return [{"scenario": "at once", "broken": done.stderr.strip().splitlines()[-1], "states": 0}]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def say(text: str) -> None:
    """Say it where it does not get into the JSON."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
