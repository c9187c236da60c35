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

from benchmarks.scale import fleet, heap, huge, hundred, keys, kills, soak
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.telling import say

SCENARIOS = {module.__name__.rpartition(".")[2]: module for module in (fleet, heap, huge, hundred, keys, kills, soak)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one scenario in a directory of its own, which is removed afterwards."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, module in SCENARIOS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        subparser = names.add_parser(name, help=summary, description=module.__doc__)
        subparser.add_argument("--directory", type=Path, help="where there is room; the system's for temporary files")
        module.arguments(subparser)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending what was started
    with tempfile.TemporaryDirectory(prefix=f"windrow-{options.name}-", dir=options.directory) as directory:
        try:
            SCENARIOS[options.name].run(Path(directory), options)
        except CheckFailed as error:
            say(f"{options.name}: {error}")
            return 1
    say(f"{options.name}: as it should be, {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
