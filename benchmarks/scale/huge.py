"""A hundred million messages in one commit of the depot, through the embedded engine, in bounded memory.

Tables that exist already often begin with one commit of everything. The depot is written from a stream of Arrow
batches, so it is never in memory as a whole; then `windrow run --once` and `windrow verify` run as processes of their
own, and no process may hold more than a stated amount.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks import processes
from benchmarks.peers import inputs
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.memory import MIB
from benchmarks.scale.telling import say

KEYS = 1_000  # devices
SLICE = 1_000_000  # messages made at a time
MOST = {"run": 2_000, "verify": 1_200}  # MB: twice, and a fifth more than, the setting's default of 1 GB


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--messages", type=int, default=100_000_000, help="messages of the commit (100,000,000)")


def run(directory: Path, options: Namespace) -> None:
    """Write the commit, batch it, verify it."""
    depot = directory / "depot"
    schema = inputs.generated(1).schema
    write_deltalake(depot, pa.RecordBatchReader.from_batches(schema, messages(options.messages)))
    say(f"{options.messages:,} messages in one commit")
    places = ("--depot", depot, "--ledger", directory / "ledger")
    commands = {"run": ("run", "--once", "--engine", "embedded", *places), "verify": ("verify", *places)}
    for name, command in commands.items():
        finished = processes.run(processes.windrow(*command), {"WINDROW_IDLE_TIMEOUT": "never"})
        say(f"{name}: {finished.seconds:.0f} s, at most {finished.peak_bytes // MIB:,} MiB")
        if finished.peak_bytes > MOST[name] * 1_000_000:
            raise CheckFailed(f"{name} holds more than {MOST[name]:,} MB")


def messages(count: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages, so many at a time."""
    for first in range(0, count, SLICE):
        size = min(SLICE, count - first)
        yield from inputs.generated(size, KEYS, seed=first // SLICE, first=first).to_batches()
