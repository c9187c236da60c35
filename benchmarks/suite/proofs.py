"""`verify --engine spark` of a million and of ten million messages: seconds, and what the driver holds at most.

The executor is a process of its own (Spark's `local-cluster`), so the memory is that of the driver alone: its Python,
and the most that was used of its JVM's heap, of which some is garbage that the collector has yet to free. The messages
are in versions of a hundred thousand; the embedded engine writes the ledger.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import windrow
from benchmarks.conditions import Conditions
from benchmarks.microbatches import settings
from benchmarks.peers import inputs
from benchmarks.row import Row, at_most

VERSION = 100_000  # messages
MASTER = "local-cluster[1,2,2048]"
PARTS = ("heap", "python")


def measure(conditions: Conditions) -> Iterator[Row]:
    """Verify both ledgers, each in a process of its own."""
    many = conditions.size(10_000_000, 20_000)
    few = many // 10
    found = {}
    for count in (few, many):
        conditions.tell(f"writing {count:,} messages")
        here = conditions.directory / str(count)
        here.mkdir()
        size = min(count, 1_000_000)
        for number in range(count // size):
            messages = inputs.generated(size, seed=number, first=number * size)
            inputs.write(here / "depot", messages, max(size // VERSION, 1))
        windrow.run(settings(here / "depot", here / "ledger"))
        conditions.tell(f"verifying {count:,} messages on Spark")
        command = [sys.executable, "-m", "benchmarks.suite.proofs", here]
        found[count] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    name = f"verify of {many:,} messages on Spark"
    for part in PARTS:
        own, other = found[many][part] / 2**30, found[few][part] / 2**30
        yield Row(
            f"{name}: {part} of the driver", own, "GiB", f"{few:,} messages", other, own / other, "memory", at_most(1.2)
        )
    yield Row(name, found[many]["seconds"], "s", f"{few:,} messages", found[few]["seconds"])


def _verify(directory: Path) -> None:
    """Verify the tables in a directory, and print what the driver held as JSON."""
    from time import perf_counter

    from benchmarks.scale.memory import Heap, resident
    from benchmarks.scale.sessions import session
    from windrow.cli.spark_reader import reading_by_spark
    from windrow.verify import verify

    spark = session(MASTER, "1g", {"spark.executor.memory": "2g"})
    chosen = settings(directory / "depot", directory / "ledger", spark)
    begin = perf_counter()
    with reading_by_spark(chosen, "books"):
        report = verify(chosen.depot, chosen.ledger, most=None)
    seconds = perf_counter() - begin
    if not report.ok or report.books[0].decided != report.books[0].messages_read:
        raise RuntimeError(f"verify found {report.differences} and {report.findings}")
    sys.stdout.write(json.dumps({"seconds": seconds, "python": resident("VmHWM"), "heap": Heap(spark).peak()}) + "\n")


if __name__ == "__main__":
    _verify(Path(sys.argv[1]))
