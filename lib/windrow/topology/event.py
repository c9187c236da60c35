"""Scheduled events: rows of the state `event`, which the clock fires in a microbatch that records them.

An event is due every time `every` has passed since it was scheduled. If it is overdue by more than one interval because
nothing ran, it fires once for all of them (`once`), or missed events are left out and it fires only if it is less than
one interval late (`skip`). Source of the idea: the time reset of Triceps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import tables
from windrow.model.messages import microseconds, times

Overdue = Literal["once", "skip"]


@dataclass(frozen=True, slots=True)
class Event:
    """An event that is due every `every` microseconds."""

    name: str
    every: int
    overdue: Overdue

    def fires(self, due: int, now: int) -> bool:
        """Tell whether it fires at `now`."""
        return due <= now and (self.overdue == "once" or now < due + self.every)

    def next(self, due: int, now: int) -> int:
        """Return when it is due after `now`: a whole number of intervals after `due`."""
        return due if due > now else due + ((now - due) // self.every + 1) * self.every


def scheduled(rows: pa.Table) -> dict[str, int]:
    """Return when events are due (microseconds), from the control rows of a ledger."""
    kept = rows.filter(pc.equal(rows["state"], "event"))
    return dict(zip(kept["event"].to_pylist(), microseconds(kept["due"]).tolist(), strict=True))


def event_rows(schema: pa.Schema, due: dict[str, int], known: dict[str, int]) -> pa.Table:
    """Return the rows of events with a new due time, with `known`."""
    names = pa.array(list(due), pa.string())
    columns: dict[str, object] = {
        "id": tables.identifier("event", names),
        "state": "event",
        "event": names,
        "due": times(np.array(list(due.values()), np.int64)),
    }
    before = pa.array([name in known for name in due], pa.bool_())
    return tables.rows(schema, columns, len(due)).append_column("known", before)
