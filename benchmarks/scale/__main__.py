"""Try Windrow at a scale that no test has time for: `python -m benchmarks.scale NAME`.

Says what it finds, and ends with 1 and the reason if that is not as it should be. All takes Java and Linux.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scale import fleet, heap, huge, hundred, keys, kills
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.telling import say

SCENARIOS = {module.__name__.rpartition(".")[2]: module for module in (fleet, heap, huge, hundred, keys, kills)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one scenario in a directory of its own, which is removed afterwards."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, module in SCENARIOS.items():
        told = (module.__doc__ or "").splitlines()[0]
        one = names.add_parser(name, help=told, description=module.__doc__)
        one.add_argument("--directory", type=Path, help="where there is room; the system's for temporary files")
        module.arguments(one)
    asked = parser.parse_args(arguments)
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending what was started
    with tempfile.TemporaryDirectory(prefix=f"windrow-{asked.name}-", dir=asked.directory) as directory:
        try:
            SCENARIOS[asked.name].run(Path(directory), asked)
        except CheckFailed as error:
            say(f"{asked.name}: {error}")
            return 1
    say(f"{asked.name}: as it should be, {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
