"""Read what the page shows of a batcher or topology, with the functions of `windrow.reading` and the doctor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError
from windrow.model.timestamps import time_text
from windrow.operate.doctor import Finding, examine
from windrow.reading import batches, history, status
from windrow.reading.alarms import Condition
from windrow.reading.rejected_sources import rejected_sources
from windrow.reading.status import Status
from windrow.reading.status_text import needed_lines
from windrow.reading.tables import Ledger, open_ledger
from windrow.reading.values import records
from windrow.report import tables
from windrow.report.charts import Chart, charts_of, topology_charts
from windrow.report.problems import Problem, problems_of
from windrow.report.tables import Table, Tile
from windrow.settings.settings import Settings
from windrow.topology.doctor import examine_topology
from windrow.topology.status import book_of, status_of
from windrow.topology.topology import Topology

MAX_OPEN, MAX_NEEDED = 20, 10


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows, from the top; `alarms` are the conditions that hold, `no_charts` says why there are none.

    `sources` are the sources in the table of clocks.
    """

    title: str
    at: str
    problems: list[Problem]
    tiles: list[Tile]
    charts: list[Chart]
    no_charts: str
    tables: list[Table]
    alarms: Sequence[str] = ()
    sources: Sequence[str] = ()
    is_paused: bool = False


def batcher_report(settings: Settings, now: int, alarms: Sequence[Condition] = (), source: str | None = None) -> Report:
    """Read the report of a ledger at wall time `now` (microseconds).

    Timeline and open batches are those of `source`; without it, the source with the most rejections has the timeline.
    Raises TableMissingError, IncompatibleTableError, DepotMismatchError.
    """
    current = status(settings.depot, settings.ledger, now)
    book = open_ledger(settings.ledger)
    past, rejected = _history(book), rejected_sources(book)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # findings say the same in more detail
        findings = examine(lambda: settings, now)
    holding = _holding(alarms, current)
    drawn = rejected.worst[0].source if source is None and rejected.worst else source
    charts, no_charts = charts_of(book, past, drawn)
    opened = batches(settings.ledger, "open", source=source, limit=MAX_OPEN, idle_timeout=settings.idle_timeout)
    needed = list(needed_lines(current.needed_delay, MAX_NEEDED))
    return Report(
        title=settings.ledger,
        at=time_text(now),
        problems=problems_of(current, findings, holding, rejected.worst, _paused_at(past)),
        tiles=tables.batcher_tiles(current, now),
        charts=charts,
        no_charts=no_charts,
        tables=[
            tables.rejections(rejected, needed),
            tables.sources(current.clocks, rejected),
            tables.open_batches(opened, current.open, source),
            *_common(current, past, findings),
            tables.rules(current.rules),
        ],
        alarms=holding,
        sources=[clock.source for clock in tables.furthest_behind(current.clocks)],
        is_paused=current.ledger.paused,
    )


def topology_report(topology: Topology, settings: Settings, now: int, alarms: Sequence[Condition] = ()) -> Report:
    """Read the report of a topology at wall time `now` (microseconds).

    Raises NotFoundError if it never ran, TableMissingError, IncompatibleTableError, DepotMismatchError.
    """
    current, past = status_of(topology, now, settings), _history(book_of(topology))
    findings, holding = examine_topology(topology, settings, now), _holding(alarms, current)
    charts, no_charts = topology_charts(past)
    return Report(
        title=f"{topology.name}, {topology.location}",
        at=time_text(now),
        problems=problems_of(current, findings, holding, paused_at=_paused_at(past)),
        tiles=tables.topology_tiles(current, now),
        charts=charts,
        no_charts=no_charts,
        tables=[*tables.topology_tables(current), *_common(current, past, findings)],
        alarms=holding,
        is_paused=current.ledger.paused,
    )


def _common(current: Status, past: pa.Table | None, findings: Sequence[Finding]) -> list[Table]:
    return [tables.microbatches(past), tables.depots(current), tables.checks(findings)]


def _history(book: Ledger) -> pa.Table | None:
    """Return the history of a ledger, None before its first microbatch."""
    with suppress(NotFoundError):
        return history(book)
    return None


def _paused_at(past: pa.Table | None) -> str | None:
    """Return when the last pause was committed."""
    pauses = [] if past is None else records(past.filter(pc.equal(past["kind"], "pause")).select(["started_at"]))
    return pauses[-1]["started_at"] if pauses else None


def _holding(alarms: Sequence[Condition], current: Status) -> list[str]:
    return [sentence for alarm in alarms if (sentence := alarm.holds(current))]
