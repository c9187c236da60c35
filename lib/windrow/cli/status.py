"""The command `windrow status`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from windrow.cli.shared_options import (
    CommandContext,
    TopologyArgument,
    command,
    json_text,
    print_line,
    refuse,
    text_table,
)
from windrow.cli.terminal import stderr_console, stdout_console, write
from windrow.model.durations import SECOND, microseconds
from windrow.model.printable import pluralize, printable
from windrow.model.timestamps import time_text
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from rich.table import Table

    from windrow.reading import BatcherStatus, Status
    from windrow.reading.alarms import Condition
    from windrow.reading.status import DepotStatus

EVERY = "2s"
WORST = 10  # sources, unless all are asked for

FailIf = Annotated[
    list[str] | None,
    "End with status 1 when this condition holds; may be repeated. lag>5m, lag_messages>100000, lag_versions, "
    "open_batches, open_messages, oldest_open_age>1h, rejected>0, rejected_recently, depot_rewritten, "
    "kafka_lag>100, paused; with > >= < <= ==. A topology has no open_batches, open_messages, oldest_open_age or "
    "kafka_lag.",
]
# The columns that --history shows if they have a value, and their heads.
HISTORY = {
    "microbatch": "microbatch",
    "kind": "kind",
    "depot": "depot",
    "depot_version": "version",
    "message_count": "read",
    "rejected": "rejected",
    "started_at": "started",
    "prime_ms": "prime",
    "plan_ms": "plan",
    "process_ms": "process",
    "events_fired": "events",
    "options_used": "options",
}


@command(
    "config depot ledger engine",
    example="windrow status --fail-if 'lag>5m' --fail-if paused   or   windrow status --watch",
)
def status(
    call: CommandContext,
    topology: TopologyArgument = None,
    watch: Annotated[bool, "Refresh until Ctrl-C; with --json one document per line."] = False,
    interval: Annotated[str | None, f"With --watch: refresh interval. Default: {EVERY}."] = None,
    fail_if: FailIf = None,
    kafka: Annotated[bool, "Ask the broker of [kafka] how far the depot is behind its topics."] = False,
    history: Annotated[
        int | None,
        typer.Option(min=1, help="Show this many of the last microbatches instead, with their phases."),
    ] = None,
    sources: Annotated[bool, f"Show all sources, not just the worst {WORST}."] = False,
) -> int:
    """Show backlog, clocks, batches, rejections and microbatches.

    If there are many sources, it shows only the worst. With --watch a terminal shows it live; a pipe or file gets a
    line each time.
    """
    from windrow.reading import alarms

    of_batcher = topology is not None and (sources or kafka)
    other = history is not None and (watch or fail_if or kafka or sources)
    refuse(
        (of_batcher, "--sources and --kafka do not apply to a topology", "Leave them out."),
        (other, "--history excludes --watch, --fail-if, --kafka and --sources", "Leave the others out."),
        (history is None and interval is not None and not watch, "--interval needs --watch", "Give both, or none."),
    )
    if history is not None:
        _show_history(call, topology, history)
        return 0
    conditions = [alarms.parse(text, topology is not None) for text in fail_if or ()]
    if topology is None:
        take = partial(_look_at_batcher, call, conditions, None if sources else WORST, kafka)
    else:
        take = partial(_look_at_topology, call, conditions, topology)
    if watch:
        pause = microseconds(interval or EVERY, "--interval")
        refuse((pause == 0, "--interval is 0", "Use a longer interval, for example 2s."))
        return _watch(take, pause, call.json)
    look = take()
    call.answer(look.document, tell=look.print)
    return _report_alarms(look)


@dataclass(frozen=True, slots=True)
class StatusView:
    """One look at depot and ledger, or at a topology: what --json prints, and what people see.

    `lines` appear above the tables and `remarks` below them; `line` sums everything up. `holding` has the conditions
    that hold.
    """

    at: str
    document: dict[str, Any]
    lines: list[str]
    tables: list[Table]
    remarks: list[str]
    line: str
    holding: Sequence[str] = ()

    def print(self) -> None:
        """Print all parts in order."""
        print_line(*self.lines)
        for table in self.tables:
            stdout_console.print(table)
        print_line(*self.remarks)

    def view(self) -> Group:
        """Return the live view for a terminal."""
        ends = Text(f"{self.at}; Ctrl-C ends", style="dim")
        return Group(*map(Text, self.lines), *self.tables, *map(Text, self.remarks), ends)


def _look_at_batcher(call: CommandContext, alarms: Sequence[Condition], most: int | None, kafka: bool) -> StatusView:
    from windrow import reading

    now = WallClock().now()
    with call.readable_settings("headers") as chosen:
        result = reading.status(chosen.depot, chosen.ledger, now)
    if kafka:
        from windrow.producer.bridge.kafka import kafka_lag

        result = replace(result, kafka=kafka_lag(chosen, now))
    return _of_batcher(result, most, alarms, now)


def _look_at_topology(call: CommandContext, alarms: Sequence[Condition], topology: str) -> StatusView:
    from windrow.topology.status import status_of

    now = WallClock().now()
    with call.readable_topology(topology) as named:
        status = status_of(named, now)
    states = ", ".join(f"{name} {pluralize(rows, 'row')}" for name, rows in status.states.items())
    lines = [
        f"states  {states}",
        *(f"event   {name} is due at {due}" for name, due in status.events_due_at.items()),
        *(f"option  {name} = {value}" for name, value in status.options.items()),
    ]
    for wait in status.waits:
        stands = f"it has reached {wait.reached}" if wait.reached else "it has read nothing"
        lines.append(f"waits   for {wait.topology}, which feeds {wait.depot}: {stands}, since {wait.since}")
    gone = "was read before but is no longer part of the topology; its position is kept"
    remarks = [f"depot {name} {gone}" for name in status.former_depots]
    what = f"topology {status.topology}"
    return _look(status, alarms, now, what=what, lines=lines, line=states, remarks=remarks, named=True)


def _look(
    status: Status,
    alarms: Sequence[Condition],
    now: int,
    *,
    what: str,
    lines: list[str],
    line: str,
    remarks: list[str],
    tables: Sequence[Table] = (),
    named: bool = False,
) -> StatusView:
    """Return the view of a batcher or topology: what both have in common, and what is specific (`what` names the kind).

    The depots of a topology are `named`.
    """
    from windrow.reading.status_text import lag_text

    holding = [condition for alarm in alarms if (condition := alarm.holds(status))]
    second = time_text(now // SECOND * SECOND)
    lag, totals, ledger = lag_text(status), status.totals, status.ledger
    read = pluralize(totals.message_count, "message")
    depots = ", ".join(f"{depot.name} version {depot.readable_range.version}" for depot in status.depots)
    return StatusView(
        at=second,
        document=asdict(status) | ({"failed": holding} if alarms else {}),
        lines=[
            *(f"depot   {_depot(depot, named)}" for depot in status.depots),
            f"ledger  {ledger.path}, version {ledger.version}; {what}",
            *(["paused  nothing is read until `windrow resume`"] if ledger.paused else []),
            f"lag     {lag}",
            *(line for depot in status.depots for line in _describe_changes(depot, named)),
            *lines,
            f"read    {read} in {pluralize(totals.microbatch_count, 'microbatch')}",
        ],
        tables=[table for table in (*tables, _microbatches(status)) if table.row_count],
        remarks=[
            *remarks,
            f"verify and replay reach back to ledger version {ledger.readable_range.version}, {depots}",
        ],
        line=f"{second}  microbatch {ledger.microbatch}; {lag}; {line}{'; paused' if ledger.paused else ''}",
        holding=holding,
    )


def _depot(depot: DepotStatus, named: bool) -> str:
    read = f"read up to {depot.read_version}" if depot.read_version >= 0 else "nothing is read yet"
    return f"{f'{depot.name}, ' if named else ''}{depot.path}, version {depot.version}; {read}"


def _describe_changes(depot: DepotStatus, named: bool) -> list[str]:
    """Say where the next run will stop, if known, and which versions were skipped."""
    stop, skipped, of_depot = depot.changed_version, depot.skipped_versions, f"{depot.name}:" if named else ""
    which = f"version{'s' * (len(skipped) > 1)} {', '.join(map(str, skipped))}"
    what = f"depot version {stop} removed or changed rows: the next run stops there, unless changes are ignored"
    return [
        *([f"stop    {what}; `windrow run --skip-version {of_depot}{stop}` skips it"] if stop is not None else []),
        *([f"skipped depot {which}: none of the rows were read"] if skipped else []),
    ]


def _microbatches(status: Status) -> Table:
    of_topology = any(row.depot for row in status.microbatches)
    names = ["microbatch", "kind", *(["depot"] if of_topology else []), "message_count", "rejected"]
    names += [*([] if of_topology else ["opened", "closed"]), "prime_ms", "plan_ms", "process_ms"]
    heads = [{"message_count": "read"}.get(name, name.removesuffix("_ms")) for name in names]
    last = [tuple(_figure(getattr(row, name)) for name in names) for row in status.microbatches]
    return text_table(heads, last, title="last microbatches (phases in ms)", title_style="bold")


def _of_batcher(status: BatcherStatus, most: int | None, alarms: Sequence[Condition], now: int) -> StatusView:
    from windrow.reading.status_text import needed_lines, open_text

    rules = ", ".join(f"{name} {value}" for name, value in status.rules.items())
    closed = status.closed
    lines = [
        *_kafka(status),
        f"open    {open_text(status)}",
        f"closed  {pluralize(closed.batch_count, 'batch')} with {pluralize(closed.message_count, 'message')}",
    ]
    sources = len(status.clocks)
    behind = f"clocks: the {most} sources of {sources:,} that are furthest behind; --sources shows all"
    remarks = [
        *([behind] if most is not None and sources > most else []),
        *needed_lines(status.needed_delay, most),
        *(f"hint: {hint}" for hint in status.hints),
    ]
    batches = f"{status.open.batch_count:,} open, {closed.batch_count:,} closed, {status.totals.rejected:,} rejected"
    what, tables = f"rules {rules}", _tables(status, most)
    return _look(status, alarms, now, what=what, lines=lines, line=batches, remarks=remarks, tables=tables)


def _watch(take: Callable[[], StatusView], pause: int, json: bool) -> int:
    """Look until Ctrl-C, which is not a failure, or until a condition holds."""
    clock = WallClock()
    try:
        with _show_looks(json) as show:
            while True:
                look = take()
                show(look)
                if look.holding or clock.wait(pause):
                    break
    except KeyboardInterrupt:
        return 0
    return _report_alarms(look)


@contextmanager
def _show_looks(json: bool) -> Iterator[Callable[[StatusView], None]]:
    """Yield a function that shows a look: in a live view on a terminal, as a line elsewhere."""
    from rich.live import Live

    if json:
        yield lambda look: write(json_text(look.document))
    elif stdout_console.is_terminal:
        with Live(console=stdout_console, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda look: live.update(look.view(), refresh=True)
    else:
        yield lambda look: write(printable(look.line))


def _report_alarms(look: StatusView) -> int:
    """Name the conditions that hold; return the exit status."""
    for condition in look.holding:
        stderr_console.print(condition, markup=False, soft_wrap=True)
    return 1 if look.holding else 0


def _kafka(status: BatcherStatus) -> list[str]:
    """Say how far the depot is behind Kafka, and which partitions are furthest behind."""
    if status.kafka is None:
        return []
    kafka = status.kafka
    behind = sorted((part for part in kafka.partitions if part.lag), key=lambda part: -part.lag)[:3]
    furthest = ", ".join(f"{part.topic}/{part.partition} {part.lag:,}" for part in behind)
    text = f"{pluralize(kafka.lag, 'offset')} of {pluralize(len(kafka.partitions), 'partition')} are not in the depot"
    return [f"kafka   {text}{furthest and f'; most: {furthest}'}; measured at {kafka.measured_at}"]


def _tables(status: BatcherStatus, most: int | None) -> list[Table]:
    from windrow.reading.status_text import missed_text, short_time

    shown = status.clocks
    if most is not None and len(shown) > most:
        shown = tuple(sorted(shown, key=lambda row: row.clock)[:most])
    clocks = [(row.source or "''", *map(short_time, (row.clock, row.floor, row.seen_at))) for row in shown]
    refused = [
        (row.reason, f"{row.message_count:,}", missed_text(row.missed_by_us) if row.missed_by_us else "")
        for row in status.rejections
    ]
    return [
        text_table(("source", "clock", "floor", "seen at"), clocks, title="clocks (UTC)", title_style="bold"),
        text_table(("reason", "messages", "furthest off"), refused, title="rejected", title_style="bold"),
    ]


def _figure(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float | int) else str(value or "")


def _show_history(call: CommandContext, topology: str | None, last: int) -> None:
    """Print the `last` microbatches of a ledger, or of a topology: kind, messages, time of each phase."""
    import pyarrow.compute as pc

    from windrow.reading.history import history as read

    if topology is None:
        with call.readable_settings("headers") as chosen:
            history = read(chosen.ledger)
    else:
        from windrow.topology.status import book_of

        with call.readable_topology(topology) as named:
            history = read(book_of(named))
    rows = history.filter(pc.greater(history["microbatch"], history["microbatch"][-1].as_py() - last)).to_pylist()
    filled = {name for row in rows for name, value in row.items() if value is not None}
    heads = {name: head for name, head in HISTORY.items() if name in filled}
    cells = [[_cell(row.get(name)) for name in heads] for row in rows]
    table = text_table(heads.values(), cells, padding=(0, 1, 0, 0))
    call.answer({"microbatches": rows}, tell=lambda: stdout_console.print(table))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, datetime):
        return f"{value:%m-%d %H:%M:%S}"
    return "" if value is None else str(value)
