"""A history done again, undisturbed: what a ledger must hold, whatever happened while it was written."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.clocks import NOW, ManualClock
from tests.conftest import EngineFactory
from tests.engine.world import SKEW, World
from tests.messages import Row
from windrow import tables
from windrow.batching.rules import Rules
from windrow.batching.step import Batching
from windrow.engine import Engine
from windrow.floors import Floors
from windrow.microbatch import Microbatch
from windrow.opening import open_ledger
from windrow.progress import prime

EMBEDDED = EngineFactory("embedded")
EVERYTHING = 1_000_000_000
EPOCH = datetime.fromtimestamp(0, UTC)


def repeated(world: World) -> World:
    """Do again, on the embedded engine and in another ledger, what the history of a ledger has on record.

    Messages are read anew from the depot, neighbouring microbatches of one moment as one; of ticks, flushes and changes
    of the rules only the floors are taken.
    """
    ledger = f"{Path(world.ledger).name}-repeated"
    shutil.rmtree(Path(world.ledger).parent / ledger, ignore_errors=True)
    other = World(Path(world.depot).parent, ManualClock(), world.payload, ledger)
    engine = other.engine(EMBEDDED)
    (progress,) = [row for row in world.rows("progress") if row["id"] == tables.PROGRESS]
    open_ledger(engine, other.settings(EMBEDDED, start_from=progress["start_from"]), NOW)
    for row in merged(world.history()):
        other.clock.set(microseconds(row["started_at"]))
        repeat(engine, row, other.clock)
    return other


def merged(history: Iterable[Row]) -> Iterator[Row]:
    """Return the microbatches that do something; of neighbours that read under the same conditions, the last."""
    moved = [row for row in history if row["kind"] not in {"pause", "resume"}]
    for (kind, *_), rows in groupby(moved, key=lambda row: (row["kind"], row["started_at"], row["rules"])):
        alike = list(rows)
        yield from alike[-1:] if kind == "data" else alike


def repeat(engine: Engine, row: Row, clock: ManualClock) -> None:
    """Do one microbatch again."""
    step = Batching(Rules.from_json(row["rules"]))
    if row["kind"] == "data":
        reached, latest = prime(engine).depot_version, clock.now() + SKEW
        engine.read(
            reached,
            row["depot_version"],
            lambda arrivals: Microbatch(engine, step, clock).run_messages(arrivals.after(reached, EVERYTHING), latest),
        )
    else:
        flush = row["kind"] == "flush"
        floors = recorded_floors(row["clocks"], "flushed_at" if flush else "floor")
        Microbatch(engine, step, clock).run_tick(floors, row["kind"], flush)


def recorded_floors(clocks: Iterable[Row], name: str) -> Floors:
    """Return the floors that a microbatch put on record."""
    given = [clock for clock in clocks if clock[name] is not None]
    moments = [microseconds(clock[name]) for clock in given]
    return Floors(pa.array([clock["source"] for clock in given], pa.string()), np.array(moments, np.int64))


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since the epoch."""
    return (moment - EPOCH) // timedelta(microseconds=1)
