"""`make mutants`: change the pure rooms piece by piece, and list the changes that no test notices."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.mutants.mutant import Mutant, explanations, mutants
from tests.mutants.tree import ROOT, plant

ROOMS = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text(encoding="utf-8"))["tests"]
UNNOTICED = ("survived", "not tested", "not tried", "interrupted")


def main() -> int:
    """Try the mutants of what is asked for; return 1 when one survives that nobody has explained."""
    asked = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    asked.add_argument(
        "modules", nargs="*", metavar="MODULE", help="such as lib/windrow/model/clock.py; all unless told"
    )
    asked.add_argument("--processes", type=int, default=os.cpu_count(), help="how many mutants are tried at once")
    chosen = asked.parse_args()
    modules = chosen.modules or list(ROOMS)
    for unknown in [module for module in modules if module not in ROOMS]:
        asked.error(f"{unknown} is not in tests/mutants/rooms.toml, which has {', '.join(ROOMS)}")
    tried = {module: tried_out(module, chosen.processes) for module in modules}
    say(f"\n{'module':36} {'mutants':>8} {'killed':>8} {'survived':>9} {'explained':>10}")
    for module, found in tried.items():
        say_row(module, found)
    say_row("together", [mutant for found in tried.values() for mutant in found])
    return int(any(unexplained(found) for found in tried.values()))


def tried_out(module: str, processes: int) -> list[Mutant]:
    """Let mutmut try the mutants of a module, and tell which survive unexplained."""
    say(f"\n{module}: {', '.join(ROOMS[module])}")
    tree = ROOT / "build" / "mutants" / Path(module).with_suffix("").relative_to("lib")
    plant(tree, module, ROOMS[module])
    mutmut = Path(sys.executable).with_name("mutmut")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    uncompiled = kept | {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "mutants"}
    subprocess.run([mutmut, "run", "--max-children", str(processes)], cwd=tree, env=uncompiled, check=True)
    found = mutants(tree, module)
    for mutant in unexplained(found):
        say(f"{mutant.module}:{mutant.line}: {mutant.function}: {mutant.fate}")
        say(f"    - {mutant.was}\n    + {mutant.becomes}")
    return found


def unexplained(found: list[Mutant]) -> list[Mutant]:
    """Return the mutants that no test noticed and nobody has explained."""
    known = explanations()
    return [mutant for mutant in found if mutant.fate in UNNOTICED and mutant.change not in known]


def say(line: str) -> None:
    """Print a line at once, because mutmut prints below it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_row(name: str, found: list[Mutant]) -> None:
    """Print one line of the table."""
    fates = Counter(mutant.fate in UNNOTICED for mutant in found)
    explained = fates[True] - len(unexplained(found))
    say(f"{name:36} {len(found):8,} {fates[False]:8,} {fates[True]:9,} {explained:10,}")


if __name__ == "__main__":
    sys.exit(main())
