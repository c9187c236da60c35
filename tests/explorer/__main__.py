"""Try every interleaving of the scenarios: `python -m tests.explorer [--only SCENARIO] [--faults N]`.

With `--bugs` bugs are planted, with `--guards` guards removed, one by one, to see which of them an exploration finds.
A run that ends early goes on where it ended: `--minutes 9` looks for no other one after nine minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from tests.explorer.defects import Record, explored_guards, look_for, planted_bugs
from tests.explorer.exploration import Explored, explore
from tests.explorer.page import write_defects, write_scenarios
from tests.explorer.search import SCENARIOS


def main() -> int:
    """Explore what was asked for; exit status 1 when an invariant does not hold, or some bugs are left to look for."""
    chosen = arguments()
    if chosen.bugs or chosen.guards:
        return search_defects("bugs" if chosen.bugs else "guards", chosen.only, chosen.minutes, chosen.write)
    results = []
    walks = (chosen.walks, chosen.seed) if chosen.walks else None
    for scenario in SCENARIOS.values():
        if chosen.only in scenario.name:
            results.append(explore(scenario, chosen.faults, chosen.most or None, Telling(), walks))
            say(line(results[-1]))
            if results[-1].broken:
                break
    if chosen.write:
        write_scenarios(results)
    if chosen.json:
        sys.stdout.write(f"{json.dumps([asdict(result) for result in results])}\n")
    return int(any(result.broken for result in results))


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="scenarios, bugs or guards with this in their name")
    parser.add_argument("--faults", type=int, default=1, help="most faults of a schedule (%(default)s)")
    parser.add_argument("--most", type=int, default=0, metavar="STATES", help="give up a scenario after so many states")
    parser.add_argument("--walks", type=int, default=0, metavar="N", help="so many random schedules instead of all")
    parser.add_argument("--seed", type=int, default=1, help="what random schedules follow from (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON too")
    parser.add_argument("--bugs", action="store_true", help="plant bugs, and say which are found")
    parser.add_argument("--guards", action="store_true", help="remove guards, and say which are found")
    parser.add_argument("--minutes", type=float, default=1e6, help="look for no other bug or guard after so long")
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


def search_defects(kind: str, only: str, minutes: float, write: bool) -> int:
    """Look for bugs or guards that are still to be looked for; 1 if some are left when the time is over."""
    record, known = Record(), planted_bugs() if kind == "bugs" else explored_guards()
    chosen = [defect for defect in known if only in defect.name]
    for defect, finding in look_for(chosen, record, time.monotonic() + 60 * minutes):
        told = f"{finding.scenario}: {finding.broken}" if finding.broken else "missed"
        say(f"{defect.key} | {finding.schedules} schedules, {finding.states} states | {told}")
    if write:
        write_defects(kind, record)
    left = sum(not record.has(defect) for defect in chosen)
    if left:
        say(f"{left} are left: run it again")
    return int(left > 0)


def say(text: str) -> None:
    """Say it where it does not get into the JSON."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
