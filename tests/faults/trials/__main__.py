"""Try every fault many times on real tables, and count what was lost: `python -m tests.faults.trials`."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.conftest import FAST_JAVA
from tests.engine.factory import EngineFactory
from tests.faults.trials.faults import FAULTS, Fault, tries
from tests.faults.trials.results import Result, markdown, of_guards, write
from tests.guards.counting import VARIABLE, GuardCount, counts

TIMES = 100
# The fault that strikes least often, RESTORE while Spark runs, did so in 4 of 7 tries: ten in vain are no bad luck.
UNTIL_IT_STRIKES = 10


def main() -> int:
    """Try the faults that were asked for; exit status 1 when anything was lost, duplicated or different."""
    chosen = arguments()
    if chosen.guards and VARIABLE not in os.environ:
        return counting_guards()
    say(f"seed {chosen.seed}")
    results = []
    with ExitStack() as stack:
        for factory in engines(chosen.engine, stack):
            for fault in FAULTS:
                if chosen.only in fault.name and fault.times(factory.name, chosen.times):
                    results.append(tried(fault, factory, chosen))
                    if chosen.write:
                        write(results, f"Counted with `--seed {chosen.seed}`:")
    if chosen.json:
        document = {"seed": chosen.seed, "times": chosen.times, "faults": [result.to_dict() for result in results]}
        document["guards"] = [guard._asdict() for guard in guards()]
        sys.stdout.write(f"{json.dumps(document, indent=2)}\n")
    else:
        sys.stdout.write(markdown(results))
        sys.stdout.write(of_guards(guards()))
    return int(not all(result.sound for result in results))


def arguments() -> Any:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.trials", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often most faults are tried (%(default)s)")
    parser.add_argument("--only", default="", metavar="FAULT", help="faults with this in their name")
    parser.add_argument("--engine", choices=["embedded", "spark"], help="one engine (both)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="what all logs and faults follow from"
    )
    parser.add_argument("--guards", action="store_true", help="count how often each guard is reached, and strikes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reference/trials.md")
    return parser.parse_args()


def counting_guards() -> int:
    """Do the same in a process that counts guards, which has to begin before it imports the library."""
    with tempfile.TemporaryDirectory(prefix="windrow-") as directory:
        environment = os.environ | {VARIABLE: f"{directory}/guards"}
        command = [sys.executable, "-m", "tests.faults.trials", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


def guards() -> list[GuardCount]:
    """Return what was counted of the guards that were reached."""
    file = os.environ.get(VARIABLE)
    return [] if file is None else [count for count in counts(Path(file)) if count.reached]


def engines(only: str | None, stack: ExitStack) -> list[EngineFactory]:
    """Return the engines, with one session of Spark."""
    factories = [EngineFactory("embedded")] if only != "spark" else []
    if only != "embedded":
        factories.append(EngineFactory("spark", session(stack)))
    return factories


def session(stack: ExitStack) -> Any:
    """Start a session that compiles fast."""
    from windrow.engine.spark.session import local_session

    os.environ.setdefault(*FAST_JAVA)
    spark = local_session("windrow-faults", master="local[2]")
    stack.callback(spark.stop)
    return spark


def tried(fault: Fault, factory: EngineFactory, chosen: Any) -> Result:
    """Try one fault, more often than asked for if it has not struck by then, and say how far it is."""
    result = Result(fault.name, factory.name)
    times = fault.times(factory.name, chosen.times)
    reported = 0
    for counted in tries(fault, factory, chosen.seed, max(times, UNTIL_IT_STRIKES), partial(failed, fault)):
        result.add(counted)
        if result.times >= min(times, reported + 10):  # what is broken off here was counted so far
            reported = result.times
            wrong = f"lost {result.lost}, duplicated {result.duplicated}, different {result.different}"
            say(f"{fault.name}, {factory.name}: {reported} of {times}, struck {result.struck} times, {wrong}")
        if result.times >= times and result.struck:
            break
    return result


def failed(fault: Fault, seed: int, error: Exception) -> None:
    """Say which try to look at."""
    say(f"{fault.name}: the try with seed {seed}: {type(error).__name__}: {error}")


def say(text: str) -> None:
    """Say it where it does not get into the table."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
