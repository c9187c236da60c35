"""What commands cost on a large ledger, next to one a tenth of its size: seconds from the shell, and most memory.

Both depots have the messages of a hundred devices, in versions of ten thousand. What a command costs grows with what it
reads: `run --once` gets a thousand new messages, `show` looks for one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import windrow
from benchmarks import processes
from benchmarks.conditions import Conditions
from benchmarks.microbatches import settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement

VERSION = 10_000  # messages
NEW = 1_000
COMMANDS = {
    "run --once": ("run", "--once", "--engine", "embedded"),
    "status": ("status", "--json"),
    "show": ("show", "--json"),
    "show --key": ("show", "--json", "--key", "device-1"),
    "history": ("status", "--history", "20", "--json"),
    "doctor": ("doctor", "--json"),
    "tune": ("tune", "--json"),
    "plot": ("plot", "--out", "plot.html"),
    "export": ("export", "--out", "batches.parquet"),
    "quality": ("quality",),
    "verify": ("verify", "--json"),
    "replay": ("replay", "--json"),
}


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Run each command on both ledgers in turns."""
    many = conditions.size(1_000_000, 20_000)
    few, rounds = many // 10, conditions.size(3, 1)
    messages = inputs.generated(many + rounds * NEW)
    for count in (few, many):
        conditions.tell(f"{count:,} messages")
        here = conditions.directory / str(count)
        here.mkdir()
        inputs.write(here / "depot", messages.slice(0, count), max(count // VERSION, 1))
        windrow.run(settings(here / "depot", here / "ledger"))
    for name, arguments in COMMANDS.items():
        taken: dict[int, list[processes.Finished]] = {few: [], many: []}
        for number in range(rounds):
            for count, runs in taken.items():
                here = conditions.directory / str(count)
                conditions.tell(f"windrow {name}, {count:,} messages, round {number + 1} of {rounds}")
                if name == "run --once":
                    inputs.write(here / "depot", messages.slice(many + number * NEW, NEW), 1)
                runs.append(command(here, arguments))
        yield from compared(name, few, many, taken)


def command(here: Path, arguments: tuple[str, ...]) -> processes.Finished:
    """Run a command on the tables in a directory."""
    tables = {"WINDROW_DEPOT": str(here / "depot"), "WINDROW_LEDGER": str(here / "ledger")}
    return processes.run(processes.windrow(*arguments), tables | {"WINDROW_IDLE_TIMEOUT": "never"})


def compared(name: str, few: int, many: int, taken: dict[int, list[processes.Finished]]) -> Iterator[Measurement]:
    """Compare the time and the memory of a command on both ledgers."""
    what, against = f"{name}, {many:,} messages", f"{few:,}"
    own, other = (median(run.seconds for run in taken[count]) for count in (many, few))
    yield Measurement(what, own, "s", against, other, own / other)
    own, other = (max(run.peak_bytes for run in taken[count]) / 2**30 for count in (many, few))
    yield Measurement(f"{what}, memory", own, "GiB", against, other, own / other, "memory")
