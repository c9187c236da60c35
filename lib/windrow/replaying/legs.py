"""Find the microbatches to replay, and split their history into legs: depot versions that can be read without a stop.

Within a leg the boundaries of microbatches do not matter: any others have the same result. A new leg begins after a
flush or an accepted depot version, or with other rules, another mapping or another format. A microbatch that rejected
messages as ahead of the clock is a separate leg, because only those decisions depended on the wall clock. The latest
allowed stamp follows from the recorded rejections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError, TableUnreadableError
from windrow.model import timestamps as moments
from windrow.model.floors import Floors
from windrow.model.messages import LATEST, microseconds
from windrow.reading.tables import Ledger, open_ledger, versions_after
from windrow.settings.start_from import StartFrom
from windrow.source import Source

GONE = "`windrow status` shows how far back the ledger can be read. Without --from and --to, all of it is replayed."
ORDER = "ORDER BY microbatch"
HISTORY = "microbatch, kind, depot_version, rules, column_mapping, messages_read, clocks"
READ_ALIKE = ("rules", "column_mapping", "format")


@dataclass(frozen=True, slots=True)
class MicrobatchRange:
    """The microbatches after `after`, up to `through`: depot versions, messages, and the ledger at both ends.

    `start` is None if the replay starts at the beginning of the ledger.
    """

    after: int
    through: int
    first: int
    last: int
    message_count: int
    start: Ledger | None
    end: Ledger


def find_span(ledger: str, source: Source, start: str | None, end: str | None) -> MicrobatchRange:
    """Return the microbatches that read the depot versions from `start` to `end`, rounded to whole microbatches.

    Both are a version, or a time of the depot's commits. Raises SettingsError for anything else, NotFoundError if there
    is no such microbatch, or if the ledger at one of the ends can no longer be read.
    """
    book = open_ledger(ledger)
    rows = book.rows("microbatch", "microbatch, depot_version, messages_read, versions, token", rest=ORDER)
    number, version = rows["microbatch"], rows["depot_version"]
    earlier = rows.filter(pc.less(version, _version(start, source, first=True))) if start else rows.slice(0, 0)
    within = rows.filter(pc.less_equal(version, _version(end, source, first=False))) if end else rows
    chosen = within.slice(earlier.num_rows)
    if not pc.sum(chosen["messages_read"]).as_py():
        limits = " ".join(limit for limit in (start and f"from {start}", end and f"up to {end}") if limit)
        what = f"no microbatch of the ledger {ledger} read messages of the depot {limits}".rstrip()
        raise NotFoundError(what, "`windrow status` shows what was read; a replay covers whole microbatches.")
    read = [version["version"] for versions in chosen["versions"].to_pylist() for version in versions or ()]
    return MicrobatchRange(
        after=earlier.num_rows and earlier["microbatch"][-1].as_py(),
        through=chosen["microbatch"][-1].as_py(),
        first=min(read),
        last=chosen["depot_version"][-1].as_py(),
        message_count=pc.sum(chosen["messages_read"]).as_py(),
        start=_at(book, earlier) if earlier.num_rows else None,
        end=book if chosen["microbatch"][-1] == number[-1] else _at(book, within),
    )


def _version(text: str, source: Source, first: bool) -> int:
    """Return the depot version for a version or a time: the first version at or after, or the last one before."""
    if text.isdigit():
        return int(text)
    moment = moments.microseconds(text, "--from" if first else "--to")
    before = StartFrom("timestamp", moment).version_before(source.depot().version, moment, source.commits)
    return before + 1 if first else before


def _at(book: Ledger, rows: pa.Table) -> Ledger:
    """Return the ledger after the last of some microbatches. Raises NotFoundError."""
    number, token = (rows[name][-1].as_py() for name in ("microbatch", "token"))
    for version in versions_after(book, number):
        try:
            ledger = open_ledger(book.location, version)
            if ledger.rows("progress", "token", "id = 'progress'")["token"].to_pylist() == [token]:
                return ledger
        except (TableUnreadableError, NotFoundError) as error:
            raise NotFoundError(f"the ledger can no longer be read as it was at microbatch {number}", GONE) from error
    raise NotFoundError(f"the log of the ledger no longer has the commit of microbatch {number}", GONE)


@dataclass(slots=True)
class ReplaySegment:
    """Depot versions up to `depot_version`, read with the same rules, mapping and format (JSON).

    A message with a stamp after `latest` (microseconds) is ahead of the clock. `ticks` are the floors recorded within
    the leg: depot version read by then, source, microseconds. A flush at the floors `flushed_at` or other rules,
    `next_rules` (JSON), may end the leg; it may begin after an `accepted` version, which is not read.
    """

    rules: str
    column_mapping: str | None
    format: str | None
    latest: int
    depot_version: int
    message_count: int = 0
    ticks: list[tuple[int, str, int]] = field(default_factory=list)
    flushed_at: Floors | None = None
    next_rules: str | None = None
    accepted: int | None = None

    @property
    def ended(self) -> bool:
        """Tell whether a flush or other rules ended it."""
        return self.flushed_at is not None or self.next_rules is not None


def recorded_segments(ledger: Ledger, after: int, through: int) -> list[ReplaySegment]:
    """Return the legs of the microbatches after `after`, up to `through`."""
    among = f"microbatch > {after:d} AND microbatch <= {through:d}"
    columns = f"{HISTORY}, format" if ledger.raw else HISTORY
    history = ledger.rows("microbatch", columns, among, ORDER)
    bounds, rules, legs = _bounds(ledger, among), "", list[ReplaySegment]()
    for row in history.to_pylist():
        if row["kind"] in ("pause", "resume", "amend"):
            continue
        latest = bounds.get(row["microbatch"], LATEST)
        if not legs or not _belongs_to(legs[-1], row, latest):
            before = rules if row["kind"] == "rules" and rules else row["rules"]
            legs.append(ReplaySegment(before, row["column_mapping"], row.get("format"), latest, row["depot_version"]))
        _add(legs[-1], row)
        rules = row["rules"]
    return legs


def with_rules(rules: str | None, ticks: str, legs: Iterable[ReplaySegment]) -> list[ReplaySegment]:
    """Return legs with given rules (JSON) instead of the recorded ones; `ticks="fresh"` drops ticks and flushes."""
    changed = []
    for leg in legs:
        other = replace(leg, rules=rules, next_rules=None) if rules else leg
        changed.append(replace(other, ticks=[], flushed_at=None) if ticks == "fresh" else other)
    return changed


def _belongs_to(leg: ReplaySegment, row: Mapping[str, Any], latest: int) -> bool:
    if leg.ended or row["kind"] == "skip":
        return False
    if row["kind"] != "data":
        return True
    alike = all(getattr(leg, name) == row.get(name) for name in READ_ALIKE)
    return alike and leg.latest == latest == LATEST


def _add(leg: ReplaySegment, row: Mapping[str, Any]) -> None:
    if row["kind"] == "data":
        leg.depot_version = row["depot_version"]
        leg.message_count += row["messages_read"]
    elif row["kind"] == "tick":
        floors = _floors(row["clocks"], "floor")
        sources, at = floors.source.to_pylist(), floors.floor.tolist()
        leg.ticks += [(row["depot_version"], source, floor) for source, floor in zip(sources, at, strict=True)]
    elif row["kind"] == "flush":
        leg.flushed_at = _floors(row["clocks"], "flushed_at")
    elif row["kind"] == "skip":
        leg.accepted = row["depot_version"]
    else:
        leg.next_rules = row["rules"]


def _floors(clocks: Iterable[Mapping[str, Any]], name: str) -> Floors:
    clock_times = [(clock["source"], clock[name]) for clock in clocks or () if clock[name] is not None]
    times = pa.array([time for _, time in clock_times], pa.timestamp("us", tz="UTC"))
    return Floors(pa.array([source for source, _ in clock_times], pa.string()), microseconds(times).astype(np.int64))


def _bounds(ledger: Ledger, among: str) -> dict[int, int]:
    """Return the latest allowed stamp (microseconds) of the microbatches that rejected messages as `clock_ahead`."""
    columns = "microbatch, received_at, missed_by_us"
    ahead = ledger.rows("rejected", columns, f"reason = 'clock_ahead' AND {among}")
    bound = pc.subtract(ahead["received_at"].cast(pa.int64()), ahead["missed_by_us"])
    grouped = ahead.append_column("bound", bound).group_by("microbatch").aggregate([("bound", "min")])
    return dict(zip(grouped["microbatch"].to_pylist(), grouped["bound_min"].to_pylist(), strict=True))
