"""What falls due: events, timers, and keys past their time to live.

An *event* is declared with an interval, and is due every time that `every` has passed since it was scheduled. If it is
overdue by more than one interval because nothing ran, it fires once for all of them (`once`), or missed events are left
out and it fires only if it is less than one interval late (`skip`). A *timer* is set by a function, for a key, and is a
row of a state of its own. In a state with a time to live, each row has the time at which it is forgotten.

Rows of the state `event` say when each of them is due. For a timer, and for a state with a time to live, that is when
the first of its rows is due, or earlier: a row that was moved or deleted since may have been the first. At that time
the due rows are read, and the next due time. Source of the idea: the time reset of Triceps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, string_scalar
from windrow.model import tables
from windrow.model.messages import microseconds

OnMissed = Literal["once", "skip"]
Scheduled = Mapping[str, int | None]  # by name, microseconds


@dataclass(frozen=True, slots=True)
class Event:
    """An event that is due every `every` microseconds."""

    name: str
    every: int
    on_missed: OnMissed

    def fires(self, due: int, now: int) -> bool:
        """Tell whether it fires at `now`."""
        return due <= now and (self.on_missed == "once" or now < due + self.every)

    def next(self, due: int, now: int) -> int:
        """Return when it is due after `now`: a whole number of intervals after `due`."""
        return due if due > now else due + ((now - due) // self.every + 1) * self.every


def due_times(rows: pa.Table) -> dict[str, int]:
    """Return when something is due (microseconds), by name, from the control rows of a ledger."""
    kept = rows.filter(pc.equal(rows["state"], string_scalar("event")))
    return dict(zip(kept["event"].to_pylist(), microseconds(kept["due"]).tolist(), strict=True))


def event_rows(schema: pa.Schema, due: Scheduled, known: Scheduled) -> pa.Table:
    """Return the rows for due times that differ from the `known` ones or are gone; with the column `known`."""
    moved = {name: at for name, at in due.items() if known.get(name) != at}
    names = pa.array(list(moved), pa.string())
    columns: dict[str, object] = {
        "id": tables.identifier("event", names),
        "state": "event",
        tables.DELETED: pa.array([True if at is None else None for at in moved.values()], pa.bool_()),
        "event": names,
        "due": pa.array(list(moved.values()), TIME),
    }
    before = pa.array([name in known for name in moved], pa.bool_())
    return tables.rows(schema, columns, len(moved)).append_column("known", before)
