"""Put writers that batch into Delta through the trials, and count what became of each message."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.conformance import page
from tests.conformance.system import NAMES, System, load_system
from tests.conformance.trials import KILLS, TRIALS, Bench, Result, run_trial


def main() -> int:
    """Run the trials; exit status 1 if a system that claims conformance fails one."""
    chosen = arguments()
    systems = [load_system(name) for name in chosen.system or NAMES]
    trials = chosen.trial or list(TRIALS)
    results: list[Result] = []
    with ExitStack() as stack:
        directory = chosen.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        for system in systems:
            bench = Bench(system, directory.resolve(), chosen.seed, chosen.kills)
            results += [reported(bench, name) for name in trials]
    if chosen.json:
        sys.stdout.write(
            json.dumps([asdict(result) | {"sound": result.is_sound} for result in results], indent=2) + "\n"
        )
    else:
        sys.stdout.write(page.markdown(systems, results))
    if chosen.write:
        page.write(systems, results)
    return int(not all(result.is_sound for result in results if claims(systems, result)))


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--system", action="append", metavar="NAME", help=f"one of {', '.join(NAMES)}, or a TOML file; default: all six"
    )
    parser.add_argument("--trial", action="append", choices=list(TRIALS), help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="what the input and the moments follow from (%(default)s)")
    parser.add_argument("--kills", type=int, default=KILLS, help="how often a writer is killed (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep tables, checkpoints and logs there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/comparison.md")
    return parser.parse_args()


def reported(bench: Bench, name: str) -> Result:
    """Run one trial, and say on standard error what came of it."""
    started = time.monotonic()
    result = run_trial(bench, name)
    seconds = time.monotonic() - started
    sys.stderr.write(f"{bench.system.name}, {name}: {page.cell(result)} ({seconds:.0f} s)\n")
    sys.stderr.flush()
    return result


def claims(systems: list[System], result: Result) -> bool:
    """Whether the system of a result claims conformance."""
    return any(system.name == result.system and system.claims_conformance for system in systems)


if __name__ == "__main__":
    raise SystemExit(main())
