"""`make bench`: measure Windrow next to what one would do otherwise, print a table and write JSON.

Some take long: everything is about an hour. What the numbers mean: docs/performance.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import machine, report
from benchmarks.conditions import Conditions
from benchmarks.row import Measurement
from benchmarks.suite import BENCHMARKS
from windrow.engine.spark.session import local_session


@cache
def session() -> SparkSession:
    """Return the one Spark session of the process; it starts when a benchmark first asks for it."""
    return local_session("windrow-bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for."""
    chosen = asked(arguments)
    if chosen.list:
        for value in BENCHMARKS.values():
            sys.stdout.write(f"{value.name:<10}{value.about}\n")
        return 0
    facts = machine.facts() | {"quick": chosen.quick, "rounds": chosen.rounds}
    terminal = report.Terminal()
    terminal.say(report.head())
    measured: list[tuple[str, Measurement]] = []
    for name, row in rows(chosen.names or BENCHMARKS, chosen.quick, chosen.rounds, terminal):
        measured.append((name, row))
        terminal.say(report.line(row))
        report.write(chosen.json, facts, measured)
    return 0


def asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; all without")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--quick", action="store_true", help="sizes so small that the numbers mean nothing")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, where there are rounds (5)")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="file to write (build/bench.json)")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return chosen


def rows(
    names: Iterable[str], quick: bool, rounds: int, terminal: report.Terminal
) -> Iterator[tuple[str, Measurement]]:
    """Measure the named benchmarks, each in a directory of its own, which is removed afterwards."""
    for name in names:

        def tell(text: str, name: str = name) -> None:
            terminal.tell(f"{name}: {text}")

        with tempfile.TemporaryDirectory(prefix="windrow-bench-") as directory:
            for row in BENCHMARKS[name].measure(Conditions(Path(directory), rounds, quick, session, tell)):
                yield name, row


if __name__ == "__main__":
    sys.exit(main())
