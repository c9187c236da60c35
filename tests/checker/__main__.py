"""Check the model of the protocol, and that the checker finds planted bugs: `python -m tests.checker [--only NAME]`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from tests.checker.checker import Check, CheckResult, bugs, check, missing, runs
from tests.checker.page import write_bugs, write_runs


def main() -> int:
    """Check; exit status 1 if a property breaks, or a planted bug breaks none, 3 if the checker is not there."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="runs and bugs with this in their name")
    parser.add_argument("--json", action="store_true", help="print JSON too")
    parser.add_argument("--write", action="store_true", help="put the result into docs/reference/model.md")
    chosen = parser.parse_args()
    if absent := missing():
        say(f"The model needs {' and '.join(absent)}.")
        say("Install them (Debian, Ubuntu: apt-get install spin gcc; macOS: brew install spin).")
        return 3
    run_results = [checked(run) for run in runs() if chosen.only in run.name]
    bug_results = [checked(bug) for bug in bugs() if chosen.only in bug.name]
    if chosen.write:
        write_runs(run_results)
        write_bugs(bug_results)
    if chosen.json:
        sys.stdout.write(f"{json.dumps([asdict(result) for result in [*run_results, *bug_results]])}\n")
    return int(any(result.broken for result in run_results) or not all(result.broken for result in bug_results))


def checked(case: Check) -> CheckResult:
    """Check one run, and say what came out."""
    say(f"{case.name} ...")
    result = check(case)
    outcome = f"breaks {result.broken} in {result.steps} steps" if result.broken else "every property holds"
    say(f"  {result.states:,} states, {result.seconds} s: {outcome}")
    return result


def say(text: str) -> None:
    """Say it where it does not get into the JSON."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
