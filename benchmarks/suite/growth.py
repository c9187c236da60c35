"""The same small microbatch on a ledger with many closed batches, and with a hundred times as many.

The closed batches are appended to the ledger in files of 250,000, not batched. That is fair, because what a microbatch
has to do with a closed row is nothing: it reads the partitions of live rows and writes new files. What could grow with
closed rows is the list of files in Delta's log, and `windrow maintain` leaves few and large ones, as here. The ids and
columns are those of real rows; only the books of such a ledger would not balance.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.conditions import Conditions
from benchmarks.microbatches import one_by_one, ours, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, times
from windrow.model import tables
from windrow.model.messages import times as moments

MESSAGES = 5
FILE = 250_000
HOUR = 3_600_000_000


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Let both engines take the same messages on a small and on a large ledger."""
    depot, spark = conditions.directory / "depot", conditions.spark()
    size, many = conditions.size(1_000, 100), conditions.size(1_000_000, 10_000)
    few = many // 100
    inputs.write(depot, inputs.generated(10), 1)
    runs = {}
    for engine, session in (("embedded", None), ("Spark", spark)):
        for count in (few, many):
            chosen = settings(depot, conditions.directory / f"{engine}-{count}", session)
            run = ours(chosen, session)
            run()
            conditions.tell(f"{count:,} closed batches, {engine}")
            write_closed(Path(chosen.ledger), count)
            runs[f"{engine} {count}"] = run
    messages = inputs.generated(size * conditions.size(45, 3), first=10)
    taken = one_by_one(depot, messages, size, runs, conditions.tell)
    for engine in ("embedded", "Spark"):
        against = f"on {few:,} closed batches"
        name = f"microbatch on {many:,}, {engine}"
        yield times(name, taken[f"{engine} {many}"], against, taken[f"{engine} {few}"], at_most(1.1))


def write_closed(ledger: Path, count: int) -> None:
    """Append closed batches to a ledger, hours older than the messages that are measured."""
    for first in range(0, count, FILE):
        write_deltalake(str(ledger), closed(first, min(FILE, count - first)), mode="append")


def closed(first: int, count: int) -> pa.Table:
    """Return closed batches of a hundred devices, ten seconds after each other, with five messages each."""
    number = np.arange(first, first + count)
    start = inputs.START - HOUR - number // 100 * 10_000_000
    key = inputs.named("device", number % 100, 100)
    columns = {
        "id": tables.identifier("batch", key, key, pa.array(start), pa.array(np.zeros(count, np.int64))),
        "state": "closed",
        "source": key,
        "key": key,
        "part": 0,
        "window_start": moments(start),
        "window_end": moments(start + 10_000_000),
        "timeout_at": moments(start + 15_000_000),
        "open_reason": "message",
        "closed_at": moments(start + 15_000_000),
        "close_reason": "timeout",
        "message_count": MESSAGES,
        "bytes": MESSAGES * 20,
        "oversize": False,
        "first_event_time": moments(start),
        "last_event_time": moments(start + MESSAGES - 1),
        "messages": held(start),
        "opened_microbatch": 1,
        "closed_microbatch": 1,
    }
    return tables.rows(tables.ledger_schema(), columns, count)


def held(start: inputs.Ints) -> pa.Array:
    """Return the messages of batches that begin at `start`."""
    number = np.arange(start.size * MESSAGES)
    time = moments(np.repeat(start, MESSAGES) + number % MESSAGES)
    kind = inputs.named("measurement", number % MESSAGES, MESSAGES)
    payload = inputs.named("value", number % 99_991, 99_991)
    inside = tables.message_type(pa.string())
    rows = pa.StructArray.from_arrays([kind, time, time, pa.nulls(number.size, pa.int64()), payload], fields=[*inside])
    return pa.ListArray.from_arrays(pa.array(np.arange(start.size + 1) * MESSAGES, pa.int32()), rows)
