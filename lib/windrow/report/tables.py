"""The tables and tiles of the page: rows of text, which the templates escape. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa

from windrow.model.durations import SECOND, approximate_text
from windrow.model.printable import pluralize
from windrow.model.timestamps import microseconds
from windrow.operate.doctor import Finding
from windrow.reading.batcher_status import BatcherStatus, OpenBatchStatus, SourceClock
from windrow.reading.rejected_sources import RejectedSource, RejectedSources
from windrow.reading.status import Status
from windrow.reading.status_text import short_time
from windrow.report.problems import name_text, reason_text
from windrow.topology.status import TopologyStatus

SHOWN, MAX_SOURCES, MAX_MICROBATCHES = 12, 300, 30
PHASES = ("prime", "plan", "process", "commit")


@dataclass(frozen=True, slots=True)
class Link:
    """A text that links to another page; a report has none."""

    text: str
    address: str


Cell = str | tuple[int, ...] | Link  # counts are drawn as bars


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page; the first `shown` rows are open, the others folded, and columns of `numbers` are aligned.

    `notes` appear above it, `empty` replaces a table without rows. If a row has one cell more than there are heads, the
    extra cell gets its own line.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    notes: Sequence[str] = ()
    numbers: tuple[int, ...] = ()
    shown: int = SHOWN
    empty: str = "None."


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure at the top of the page, its label, and a line below it."""

    name: str
    figure: str
    text: str = ""


def batcher_tiles(status: BatcherStatus, now: int) -> list[Tile]:
    """Return the figures of a batcher: messages read, in batches, rejected; what waits; the last microbatch."""
    totals, most = status.totals, status.rejections[0] if status.rejections else None
    return [
        _read(status),
        Tile(
            "in batches",
            f"{status.open.message_count + status.closed.message_count:,}",
            f"{status.closed.batch_count:,} closed, {status.open.batch_count:,} open",
        ),
        Tile(
            "rejected",
            f"{totals.rejected:,}",
            "" if most is None else f"{_percent(totals.rejected, totals.message_count)}, mostly {most.reason}",
        ),
        *_waiting(status, now),
    ]


def topology_tiles(status: TopologyStatus, now: int) -> list[Tile]:
    """Return the figures of a topology: messages read, rows of its states, what waits, the last microbatch."""
    rows = Tile("rows in states", f"{sum(status.states.values()):,}", pluralize(len(status.states), "state"))
    return [_read(status), rows, *_waiting(status, now)]


def rejections(rejected: RejectedSources, needed: Sequence[str]) -> Table:
    """Return which sources had messages rejected, why, since when, and what would have kept them."""
    left_out, drawn = rejected.pairs - len(rejected.worst), any(row.bins for row in rejected.worst)
    more = [f"{left_out:,} more pairs of source and reason are left out."] if left_out else []
    return Table(
        "rejections",
        "Rejected messages",
        ("source", "rejected, of read", "reason", "arrived", *(["over time"] if drawn else [])),
        [_rejection(row, drawn) for row in rejected.worst],
        notes=[*needed, *more],
        numbers=(1,),
        empty="No message was rejected.",
    )


def furthest_behind(clocks: Sequence[SourceClock]) -> list[SourceClock]:
    """Return the clocks that a page has room for, furthest behind first."""
    return sorted(clocks, key=lambda clock: clock.clock)[:MAX_SOURCES]


def sources(clocks: Sequence[SourceClock], rejected: RejectedSources) -> Table:
    """Return the clocks of the sources, furthest behind first."""
    behind = furthest_behind(clocks)
    more = len(clocks) - len(behind)
    notes = ["Furthest behind first. A clock is the latest processing time of a source; batches close by its floor."]
    if more:
        notes.append(f"{more:,} more are left out; `windrow status --sources` shows all.")
    return Table(
        "sources",
        "Sources and clocks",
        ("source", "clock", "floor", "last data read", "in batches", "rejected"),
        [
            (
                name_text(row.source),
                *map(short_time, (row.clock, row.floor, row.seen_at)),
                f"{rejected.accepted.get(row.source, 0):,}",
                f"{rejected.rejected.get(row.source, 0):,}",
            )
            for row in behind
        ],
        notes=notes,
        numbers=(4, 5),
    )


def open_batches(rows: Iterable[Mapping[str, Any]], status: OpenBatchStatus, source: str | None = None) -> Table:
    """Return the open batches of one or all sources, earliest windows first, and why each is open."""
    shown = [
        (
            name_text(row["source"]),
            name_text(row["key"]),
            f"{short_time(row['window_start'])} to {short_time(row['window_end'])[11:]}",
            f"{row['message_count']:,}",
            f"{row['closing']['reason']}; it closes {row['closing']['closes']}",
        )
        for row in rows
    ]
    oldest = [f"The oldest {len(shown)} of {status.batch_count:,}; `windrow show --open` shows more."]
    heads = ("source", "key", "window", "messages")
    notes = oldest if status.batch_count > len(shown) and source is None else []
    return Table("open", "Open batches", heads, shown, notes, numbers=(3,), shown=8, empty="No batch is open.")


def microbatches(history: pa.Table | None) -> Table:
    """Return the last microbatches with their phases (milliseconds) and lag."""
    rows = [] if history is None else history.slice(max(history.num_rows - MAX_MICROBATCHES, 0)).to_pylist()[::-1]
    depots = ("depot",) if history is not None and "depot" in history.column_names else ()
    figures = ("message_count", "rejected", "opened", "closed", *(f"{name}_ms" for name in PHASES))
    phases = [f"{name} (ms)" for name in PHASES]
    heads = ("microbatch", "kind", *depots, "started", "read", *figures[1:4], *phases, "lag")
    cells = [
        (
            str(row["microbatch"]),
            f"{row['kind']}{' (retry)' if row['attempt'] > 1 else ''}",
            *(row[name] or "" for name in depots),
            f"{row['started_at'].astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            *("" if row[name] is None else f"{row[name]:,.0f}" for name in figures),
            "" if row["oldest_ms"] is None else _rough(row["oldest_ms"] * 1000),
        )
        for row in rows
    ]
    numbers = tuple(range(3 + len(depots), len(heads)))
    notes = ["Lag is the age of the newest message at the start, of the source furthest behind."] if rows else []
    return Table("microbatches", "Last microbatches", heads, cells, notes, numbers, empty="Nothing ran yet.")


def depots(status: Status) -> Table:
    """Return the tables, the version up to which each was read, and how far back the logs reach."""
    rows = [
        (
            depot.name,
            depot.path,
            f"{depot.version:,}",
            f"{depot.read_version:,}" if depot.read_version >= 0 else "nothing",
            f"{depot.versions_waiting:,}",
            ", ".join(map(str, depot.skipped_versions)),
            f"{depot.readable_range.version:,}",
            depot.readable_range.retention or "",
        )
        for depot in status.depots
    ]
    reach = status.ledger.readable_range
    rows.append(("ledger", status.ledger.path, f"{status.ledger.version:,}", "", "", "", f"{reach.version:,}",
                 reach.retention or ""))  # fmt: skip
    heads = ("table", "path", "version", "read up to", "versions waiting", "skipped", "readable from", "files kept for")
    return Table("tables", "Tables", heads, rows, numbers=(2, 3, 4, 6))


def checks(findings: Sequence[Finding]) -> Table:
    """Return all findings of the doctor."""
    rows = [(finding.level, finding.about, finding.code, finding.message) for finding in findings]
    return Table(
        "checks", "Checks", ("level", "of", "check", "finding"), rows, ["What `windrow doctor` checked."], shown=0
    )


def rules(recorded: Mapping[str, Any]) -> Table:
    """Return the rules in force."""
    return Table("rules", "Rules in force", ("rule", "value"), [(name, str(value)) for name, value in recorded.items()])


def topology_tables(status: TopologyStatus) -> list[Table]:
    """Return the states, due events, waits and options of a topology."""
    waits = [(wait.depot, wait.topology, short_time(wait.reached or "nothing"), short_time(wait.since or ""))
             for wait in status.waits]  # fmt: skip
    due = [(name, short_time(at)) for name, at in status.events_due_at.items()]
    states = [(name, f"{rows:,}") for name, rows in status.states.items()]
    tables = [
        Table("states", "States", ("state", "rows"), states, numbers=(1,)),
        Table("due", "Events and timers", ("event", "due at"), due),
        Table("waits", "Waits for other topologies", ("depot", "fed by", "has reached", "since"), waits),
        Table("options", "Options", ("option", "value"), [*status.options.items()]),
        Table("former", "Former depots", ("depot",), [(name,) for name in status.former_depots]),
    ]
    return tables[:1] + [table for table in tables[1:] if table.rows]


def _rejection(row: RejectedSource, drawn: bool) -> tuple[Cell, ...]:
    first, last = (short_time(time or "") for time in (row.since, row.until))
    return (
        name_text(row.source),
        f"{row.message_count:,} of {row.read:,} ({_percent(row.message_count, row.read)})",
        reason_text(row),
        f"{first} to {last.removeprefix(first[:11])}" if first != last else first,
        *([row.bins] if drawn else []),
        f"{row.explanation.reason}; {row.explanation.hint}",
    )


def _read(status: Status) -> Tile:
    totals = status.totals
    return Tile("messages read", f"{totals.message_count:,}", pluralize(totals.microbatch_count, "microbatch"))


def _waiting(status: Status, now: int) -> list[Tile]:
    waits, lag = status.versions_waiting, status.lag
    figure = "nothing" if not waits else "messages" if lag.message_count is None else f"{lag.message_count:,}"
    oldest = f"the oldest for {_rough(round(lag.seconds * SECOND))}" if waits else ""
    tiles = [Tile("waiting to be read", figure, oldest)]
    if status.microbatches:
        began = status.microbatches[0].started_at
        ago = _rough(max(0, now - microseconds(began, "started_at")))
        tiles.append(Tile("last microbatch", f"{ago} ago", short_time(began)))
    return tiles


def _rough(length_us: float) -> str:
    """Return a duration in its two largest units."""
    seconds = round(length_us / SECOND, 1 if length_us < 10 * SECOND else 0)
    return " ".join(approximate_text(round(seconds * SECOND)).split()[:4])


def _percent(part: int, whole: int) -> str:
    """Return a share, with decimals below a tenth."""
    return f"{100 * part / (whole or 1):.{0 if 10 * part >= whole or not part else 2}f} %"
