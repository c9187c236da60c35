"""The input: messages of four devices as Delta appends, in the order of their arrival.

The devices measure for 10 s, then pause for 15 s, three times. Every message has an id, `sequence`, which is also the
first word of its payload. Some arrive out of order, but within the delay that writers have to allow; some are sent
twice, equal but for `received_at`. A scenario adds what only some trials need.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

TIME = pa.timestamp("us", tz="UTC")
START = 1_780_000_000_000_000
SECOND = 1_000_000
ROUNDS, ACTIVE_SECONDS, PERIOD_SECONDS = 3, 10, 25
VERSION_SECONDS = 8
DEVICES, KEYS, TYPES = 4, 2, 3
FAST, IDLE = "device-3", "device-2"
CHANGE = START + (PERIOD_SECONDS + 5) * SECOND  # when a device falls silent, or its clock jumps
LEAD = 3 * 3600 * SECOND
TAIL_KEY = "tail"
TAIL_AT = START + 12 * 3600 * SECOND


class Scenario(Enum):
    """What is special in the input."""

    PLAIN = "plain"
    LATE = "late"  # one message in 25 arrives 40 to 60 s late, and as many that were on time come again as late
    FAST_CLOCK = "fast clock"  # the clock of one device is three hours ahead from its second round on
    IDLE_SOURCE = "idle source"  # one device falls silent in its second round


def messages(seed: int, scenario: Scenario) -> pa.Table:
    """Return all deliveries in the order of their arrival."""
    random = np.random.default_rng(seed)
    grid = np.indices((ROUNDS, ACTIVE_SECONDS, DEVICES, KEYS, TYPES)).reshape(5, -1)
    turn, second, device, key, kind = grid
    count = turn.size
    measured = START + (turn * PERIOD_SECONDS + second) * SECOND + device * 400_000 + (key * TYPES + kind) * 10_000
    measured += random.integers(0, 9_000, count)
    delay = np.where(random.random(count) < 0.15, random.integers(0, 4 * SECOND, count), 50_000)
    again = np.where(random.random(count) < 0.05, delay + random.integers(1, SECOND // 2, count), 0)
    if scenario is Scenario.LATE:
        far = random.integers(40 * SECOND, 60 * SECOND, count)
        chance = random.random(count)
        delay = np.where(chance < 0.04, far, delay)
        again = np.where((chance >= 0.04) & (chance < 0.08), far, np.where(chance < 0.04, 0, again))
    lead = np.where((device == 3) & (measured >= CHANGE), LEAD, 0) if scenario is Scenario.FAST_CLOCK else 0
    table = pa.table(
        {
            "source": [f"device-{number}" for number in device],
            "key": [f"sensor-{number}" for number in key],
            "type": [("temperature", "pressure", "humidity")[number] for number in kind],
            "event_time": measured + lead,
            "received_at": measured + delay,
            "sequence": np.arange(count),
            "payload": [f"{number} {value}" for number, value in enumerate(random.integers(0, 1000, count))],
        }
    )
    repeats = table.set_column(4, "received_at", pa.array(measured + again)).filter(pa.array(again > 0))
    table = pa.concat_tables([table, repeats]).sort_by("received_at")
    if scenario is Scenario.IDLE_SOURCE:
        table = table.filter(~((pc.field("source") == IDLE) & (pc.field("received_at") >= CHANGE)))
    return _typed(table)


def tail() -> pa.Table:
    """Return one message of each device half a day later, which ends every batch before it and is not counted."""
    names = [f"device-{number}" for number in range(DEVICES)]
    count = len(names)
    columns = {
        "source": names,
        "key": [TAIL_KEY] * count,
        "type": ["temperature"] * count,
        "event_time": [TAIL_AT] * count,
        "received_at": [TAIL_AT] * count,
        "sequence": range(-count, 0),
        "payload": [f"{number} 0" for number in range(-count, 0)],
    }
    return _typed(pa.table({name: pa.array(values) for name, values in columns.items()}))


def versions(table: pa.Table) -> Iterator[pa.Table]:
    """Cut deliveries into what arrived in each eight seconds."""
    arrived = table["received_at"].cast(pa.int64()).to_numpy() // (VERSION_SECONDS * SECOND)
    starts = [0, *(np.flatnonzero(np.diff(arrived)) + 1), table.num_rows]
    for start, stop in pairwise(starts):
        yield table.slice(start, stop - start)


def append(depot: Path, *tables: pa.Table) -> None:
    """Append each table as one version of the depot, in one file."""
    for table in tables:
        write_deltalake(str(depot), table, mode="append")


def _typed(table: pa.Table) -> pa.Table:
    times = ("event_time", "received_at")
    return table.cast(pa.schema([(f.name, TIME if f.name in times else f.type) for f in table.schema]))
