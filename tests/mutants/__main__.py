"""`make mutants`: change kernel, clock and step piece by piece, and list the changes that no test notices."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.mutants.mutant import Mutant, mutants
from tests.mutants.tree import ROOT, plant

# What is changed, and the tests that run against each change: they need neither Spark nor tables, and decide quickly.
# mutmut runs of them only those that call the function that was changed, the fastest first.
ROOMS = {
    "lib/windrow/batching/kernel.py": [
        "tests/batching/test_cases.py",
        "tests/batching/test_properties.py::TestDerived::test_batches",
        "tests/batching/test_properties.py::TestDerived::test_rejections",
        "tests/batching/test_properties.py::TestDerived::test_many_times",
        "tests/batching/test_properties.py::TestWishes",
        "tests/batching/test_step.py::TestMicrobatches::test_give_what_one_call_gives",
    ],
    "lib/windrow/batching/step.py": ["tests/batching/test_step.py"],
    "lib/windrow/model/clock.py": ["tests/model/test_clock.py"],
}
UNNOTICED = ("survived", "not tested", "not tried", "interrupted")


def main() -> int:
    """Try the mutants of what is asked for, and count those that no test noticed."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="such as lib/windrow/model/clock.py; all unless told"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many mutants are tried at once")
    chosen = parser.parse_args()
    modules = chosen.modules or list(ROOMS)
    for unknown in [module for module in modules if module not in ROOMS]:
        parser.error(f"{unknown} is not changed; {', '.join(ROOMS)} are")
    tried = {module: tried_out(module, chosen.processes) for module in modules}
    say(f"\n{'module':36} {'mutants':>8} {'killed':>8} {'survived':>9}")
    for module, mutants_of_module in tried.items():
        say_row(module, mutants_of_module)
    say_row("together", [mutant for mutants_of_module in tried.values() for mutant in mutants_of_module])
    return 0


def tried_out(module: str, processes: int) -> list[Mutant]:
    """Let mutmut try the mutants of a module, and tell which survive."""
    say(f"\n{module}: {', '.join(ROOMS[module])}")
    tree = ROOT / "build" / "mutants" / Path(module).with_suffix("").relative_to("lib")
    plant(tree, module, ROOMS[module])
    mutmut = Path(sys.executable).with_name("mutmut")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    uncompiled = kept | {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "mutants"}
    subprocess.run([mutmut, "run", "--max-children", str(processes)], cwd=tree, env=uncompiled, check=True)
    mutants_of_module = mutants(tree, module)
    for mutant in mutants_of_module:
        if mutant.fate in UNNOTICED:
            say(f"{mutant.module}:{mutant.line}: {mutant.function}: {mutant.fate}")
            say(f"    - {mutant.was}\n    + {mutant.becomes}")
    return mutants_of_module


def say(line: str) -> None:
    """Print a line at once, because mutmut prints below it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_row(name: str, tried: list[Mutant]) -> None:
    """Print one line of the table."""
    fates = Counter(mutant.fate in UNNOTICED for mutant in tried)
    say(f"{name:36} {len(tried):8,} {fates[False]:8,} {fates[True]:9,}")


if __name__ == "__main__":
    sys.exit(main())
