"""What a ledger recorded, as legs: stretches of the depot that can be read without a stop, each with what ended it.

Inside a leg the microbatches of the ledger leave no trace: any others give the same result. A new leg begins where
something happened that is no message: a flush, other rules, another mapping or format. It also begins
around a microbatch that rejected messages as ahead of the clock, because that alone was decided by the wall clock:
how far a stamp may be is taken from what these rejections recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.model.floors import Floors
from windrow.model.messages import LATEST, microseconds
from windrow.reading.delta import Ledger

HISTORY = "microbatch, kind, depot_version, rules, columns, messages_read, clocks"
READ_ALIKE = ("rules", "columns", "format")


@dataclass(slots=True)
class Leg:
    """Depot versions up to one, read under the same rules, mapping and format (JSON), then what ended it, if anything.

    A message stamped after `latest` (microseconds) is ahead of the clock. `ticks` are floors that were recorded on
    the way: depot version read by then, source, microseconds. What ended the leg is a flush at the floors `flushed_at`,
    or other rules, `next_rules` (JSON).
    """

    rules: str
    columns: str | None
    format: str | None
    latest: int
    depot_version: int
    messages: int = 0
    ticks: list[tuple[int, str, int]] = field(default_factory=list)
    flushed_at: Floors | None = None
    next_rules: str | None = None

    @property
    def ended(self) -> bool:
        """Tell whether something ended it."""
        return self.flushed_at is not None or self.next_rules is not None


def recorded(ledger: Ledger, after: int, upto: int) -> list[Leg]:
    """Return the legs of the microbatches after one, up to another."""
    among = f"microbatch > {after:d} AND microbatch <= {upto:d}"
    columns = f"{HISTORY}, format" if ledger.raw else HISTORY
    history = plain(ledger.rows("microbatch", columns, among, "ORDER BY microbatch"))
    return legs(history.to_pylist(), _bounds(ledger, among))


def legs(history: Iterable[Mapping[str, Any]], bounds: Mapping[int, int]) -> list[Leg]:
    """Return the legs of history rows in their order; `bounds` has `latest` of microbatches where it was exceeded."""
    found: list[Leg] = []
    rules = ""
    for row in history:
        if row["kind"] in ("pause", "resume"):
            continue
        latest = bounds.get(row["microbatch"], LATEST)
        if not found or not _goes_on(found[-1], row, latest):
            before = rules if row["kind"] == "rules" and rules else row["rules"]
            found.append(Leg(before, row["columns"], row.get("format"), latest, row["depot_version"]))
        _add(found[-1], row)
        rules = row["rules"]
    return found


def under(given: str | None, ticks: str, found: Iterable[Leg]) -> list[Leg]:
    """Return legs under given rules (JSON) instead of their own; with `ticks` `fresh` without ticks and flushes."""
    changed = []
    for leg in found:
        other = replace(leg, rules=given, next_rules=None) if given else leg
        changed.append(replace(other, ticks=[], flushed_at=None) if ticks == "fresh" else other)
    return changed


def _goes_on(leg: Leg, row: Mapping[str, Any], latest: int) -> bool:
    """Tell whether a microbatch belongs to a leg that has begun."""
    if leg.ended:
        return False
    if row["kind"] != "data":
        return True
    alike = all(getattr(leg, name) == row.get(name) for name in READ_ALIKE)
    return alike and leg.latest == latest == LATEST


def _add(leg: Leg, row: Mapping[str, Any]) -> None:
    """Add a microbatch to a leg."""
    if row["kind"] == "data":
        leg.depot_version = row["depot_version"]
        leg.messages += row["messages_read"]
    elif row["kind"] == "tick":
        floors = _floors(row["clocks"], "floor")
        sources, at = floors.source.to_pylist(), floors.floor.tolist()
        leg.ticks += [(row["depot_version"], source, floor) for source, floor in zip(sources, at, strict=True)]
    elif row["kind"] == "flush":
        leg.flushed_at = _floors(row["clocks"], "flushed_at")
    else:
        leg.next_rules = row["rules"]


def _floors(clocks: Iterable[Mapping[str, Any]], name: str) -> Floors:
    said = [(clock["source"], clock[name]) for clock in clocks or () if clock[name] is not None]
    times = pa.array([time for _, time in said], pa.timestamp("us", tz="UTC"))
    return Floors(pa.array([source for source, _ in said], pa.string()), microseconds(times).astype(np.int64))


def _bounds(ledger: Ledger, among: str) -> dict[int, int]:
    """Return for microbatches that rejected messages as ahead of the clock the last stamp that was not (us)."""
    columns = "microbatch, received_at, missed_by_us"
    ahead = plain(ledger.rows("rejected", columns, f"reason = 'clock_ahead' AND {among}"))
    bound = pc.subtract(ahead["received_at"].cast(pa.int64()), ahead["missed_by_us"])
    grouped = ahead.append_column("bound", bound).group_by("microbatch").aggregate([("bound", "min")])
    return dict(zip(grouped["microbatch"].to_pylist(), grouped["bound_min"].to_pylist(), strict=True))
