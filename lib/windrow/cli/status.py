"""The command `windrow status`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from windrow.cli.offsets import offsets_table
from windrow.cli.shared_options import Call, Named, command, count, grid, json_text, say
from windrow.cli.terminal import aside, people, write
from windrow.errors import SettingsError
from windrow.model.durations import microseconds, span
from windrow.model.printable import printable
from windrow.model.timestamps import time_text
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from rich.table import Table

    from windrow.reading import NeededDelay, Status
    from windrow.reading.alarms import Condition
    from windrow.settings.settings import Settings
    from windrow.topology.topology import Topology

EVERY = "2s"
TENTH = 100_000  # of a second
WORST = 10  # sources, unless all are asked for
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help="End with status 1 when this holds; may be repeated. lag>5m, lag_messages>100000, lag_versions, open, "
        "open_messages, oldest_open>1h, rejected>0, rejected_lately, depot_changed, kafka_lag>100, paused; "
        "with > >= < <= ==.",
    ),
]


@command(
    "config depot ledger engine",
    example="windrow status --fail-if 'lag>5m' --fail-if paused   or   windrow status --watch",
)
def status(
    call: Call,
    topology: Named = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again until Ctrl-C; with --json one document a line.")
    ] = False,
    every: Annotated[
        str | None, typer.Option("--every", help=f"With --watch: time between two looks. Default: {EVERY}.")
    ] = None,
    fail_if: FailIf = None,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Ask the broker of [kafka] how far the depot is behind its topics.")
    ] = False,
    sources: Annotated[bool, typer.Option("--sources", help=f"Show all sources, not just the worst {WORST}.")] = False,
) -> int:
    """Show what waits, clocks, batches, rejections and microbatches.

    Of many sources it shows the worst. With --watch a terminal shows it live; a pipe or file gets a line each time.
    """
    from windrow.reading import alarms

    if topology is not None and (fail_if or sources or kafka):
        raise SettingsError("--fail-if, --sources and --kafka do not apply to a topology", "Use --json.")
    if every is not None and not watch:
        raise SettingsError("--every goes with --watch", "Give both, or none.")
    conditions = [alarms.parse(text) for text in fail_if or ()]
    take = partial(_look, call, conditions, sources, kafka)
    if topology is not None:
        take = partial(_look_at_topology, *call.topology(topology))
    if watch:
        pause = microseconds(every or EVERY, "--every")
        if pause == 0:
            raise SettingsError("--every is 0", "Leave the tables some time, for example 2s.")
        return _watch(take, pause, call.json)
    look = take()
    call.answer(look.document, tell=look.print)
    return _alarmed(look)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at depot and ledger, or at a topology: what --json prints, and what people see.

    `lines` stand above the tables and `remarks` below them, `line` is all of it in one. `holding` are the conditions
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
        """Print it, one part after the other."""
        for line in self.lines:
            say(line)
        for table in self.tables:
            people.print(table)
        for line in self.remarks:
            say(line, markup=False)

    def view(self) -> Group:
        """Return what a terminal shows that looks again and again."""
        lines = [Text.from_markup(line) for line in self.lines]
        return Group(*lines, *self.tables, *map(Text, self.remarks), Text(f"{self.at}; Ctrl-C ends", style="dim"))


def _look_at_topology(topology: Topology, chosen: Settings) -> Look:
    from windrow.topology.status import standing

    at, found = _second(WallClock().now()), standing(topology, chosen)
    states = ", ".join(f"{name} {count(rows, 'row')}" for name, rows in found.states.items())
    lines = [
        f"topology  {found.topology}, states in {found.path}, microbatch {found.microbatch}",
        *(["paused    nothing is read until `windrow resume`"] if found.paused else []),
        f"states    {states}",
        *(f"event     {name} is due at {due}" for name, due in found.events.items()),
        *(f"option    {name} = {value}" for name, value in found.options.items()),
    ]
    gone = "was read before and is no longer one of the topology; its place is kept"
    waiting = count(sum(depot.versions_waiting for depot in found.depots), "version")
    paused = "; paused" if found.paused else ""
    return Look(
        at=at,
        document=asdict(found),
        lines=[escape(line) for line in lines],
        tables=[offsets_table(found.depots)],
        remarks=[f"depot {name} {gone}" for name in found.other_depots],
        line=f"{at}  microbatch {found.microbatch}; {waiting} wait; {states}{paused}",
    )


def _look(call: Call, alarms: Sequence[Condition], sources: bool, kafka: bool) -> Look:
    from windrow import reading

    now, most = WallClock().now(), None if sources else WORST
    with call.readable_settings(messages=False) as chosen:
        found = reading.status(chosen.depot, chosen.ledger, now, chosen.warn)
    if kafka:
        from windrow.producer.bridge.kafka import kafka_lag

        found = replace(found, kafka=kafka_lag(chosen, now))
    holding = [said for alarm in alarms if (said := alarm.holds(found))]
    return Look(
        at=_second(now),
        document=asdict(found) | ({"failed": holding} if alarms else {}),
        lines=_lines(found),
        tables=[table for table in _tables(found, most) if table.row_count],
        remarks=_remarks(found, most),
        line=f"{_second(now)}  {_line(found)}",
        holding=holding,
    )


def _second(now: int) -> str:
    """Return a time without what is less than a second."""
    return time_text(now // 1_000_000 * 1_000_000)


def _read(version: int) -> str:
    return f"read up to {version}" if version >= 0 else "nothing is read yet"


def _lines(found: Status) -> list[str]:
    """Return what stands above the tables."""
    rules = ", ".join(f"{name} {value}" for name, value in found.rules.items())
    return [
        f"depot   {found.depot.path}, version {found.depot.version}; {_read(found.depot.read_version)}",
        f"ledger  {found.ledger.path}, version {found.ledger.version}; rules {rules}",
        *(["paused  nothing is read until `windrow resume`"] if found.ledger.paused else []),
        f"lag     {_lag(found)}",
        *_kafka(found),
        *_next_stop(found),
        *_accepted(found),
        f"open    {_open(found)}",
        f"closed  {count(found.closed.batches, 'batch')} with {count(found.closed.messages, 'message')}",
        f"read    {count(found.totals.messages, 'message')} in {count(found.totals.microbatches, 'microbatch')}",
    ]


def _remarks(found: Status, most: int | None) -> list[str]:
    """Return what stands below the tables."""
    reaches = f"verify and replay reach back to ledger version {found.reach.ledger_version}"
    too_old = _too_old(found.needed_delay, most)
    sources = len(found.clocks)
    behind = f"clocks: the {most} sources of {sources:,} that are furthest behind; --sources shows all"
    return [
        *([behind] if most is not None and sources > most else []),
        *([too_old] if too_old else []),
        *_quantiles(found.needed_delay),
        f"{reaches}, depot version {found.reach.depot_version}",
        *(f"hint: {hint}" for hint in found.hints),
    ]


def _line(found: Status) -> str:
    number = found.microbatches[0].microbatch if found.microbatches else 0
    refused = sum(row.messages for row in found.rejected)
    paused = "; paused" if found.ledger.paused else ""
    return (
        f"microbatch {number}; {_lag(found)}; {found.open.batches:,} open, "
        f"{found.closed.batches:,} closed, {refused:,} rejected{paused}"
    )


def _watch(take: Callable[[], Look], pause: int, json: bool) -> int:
    """Look until Ctrl-C, which is no failure, or until a condition holds."""
    clock = WallClock()
    try:
        with _shown(json) as show:
            while True:
                look = take()
                show(look)
                if look.holding or clock.wait(pause):
                    break
    except KeyboardInterrupt:
        return 0
    return _alarmed(look)


@contextmanager
def _shown(json: bool) -> Iterator[Callable[[Look], None]]:
    """Give what shows a look: a live view on a terminal, a line each time elsewhere."""
    from rich.live import Live

    if json:
        yield lambda look: write(json_text(look.document))
    elif people.is_terminal:
        with Live(console=people, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda look: live.update(look.view(), refresh=True)
    else:
        yield lambda look: write(printable(look.line))


def _alarmed(look: Look) -> int:
    """Name the conditions that hold; return the exit status."""
    for said in look.holding or ():
        aside.print(said, markup=False, soft_wrap=True)
    return 1 if look.holding else 0


def _lag(found: Status) -> str:
    waiting = found.depot.messages_waiting
    if not found.depot.versions_waiting:
        return "nothing waits"
    messages = "messages" if waiting is None else count(waiting, "message")
    return (
        f"{messages} in {count(found.depot.versions_waiting, 'version')} wait, the oldest for {found.lag.seconds:.0f} s"
    )


def _kafka(found: Status) -> list[str]:
    """Say how far the depot is behind Kafka, and which partitions are furthest behind."""
    if found.kafka is None:
        return []
    behind = sorted((one for one in found.kafka.partitions if one.lag), key=lambda one: -one.lag)[:3]
    furthest = ", ".join(f"{one.topic}/{one.partition} {one.lag:,}" for one in behind)
    said = (
        f"{count(found.kafka.lag, 'offset')} of {count(len(found.kafka.partitions), 'partition')} are not in the depot"
    )
    return [f"kafka   {said}{furthest and f'; most: {furthest}'}; measured at {found.kafka.measured_at}"]


def _next_stop(found: Status) -> list[str]:
    """Say where the next run will stop, if that is known."""
    version = found.depot.changed_version
    if version is None:
        return []
    what = f"depot version {version} removed or changed rows: the next run stops there, unless it ignores that"
    return [f"stop    {what}; `windrow run --accept {version}` skips it"]


def _accepted(found: Status) -> list[str]:
    """Say which versions were accepted."""
    versions = found.depot.accepted_versions
    which = f"version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))}"
    return [f"skipped depot {which}, accepted: none of the rows were read"] if versions else []


def _open(found: Status) -> str:
    if found.open.oldest is None:
        return "no batch"
    oldest = found.open.oldest
    holds = f"{count(found.open.batches, 'batch')} with {count(found.open.messages, 'message')}"
    return f"{holds}; the oldest, {oldest.id}, is due at {oldest.timeout}"


def _tables(found: Status, most: int | None) -> list[Table]:
    shown = found.clocks
    if most is not None and len(shown) > most:
        shown = tuple(sorted(shown, key=lambda row: row.clock)[:most])
    clocks = [(row.source or "''", *map(_short, (row.clock, row.floor, row.seen_at))) for row in shown]
    refused = [(row.reason, f"{row.messages:,}", _off(row.missed_by_us)) for row in found.rejected]
    names = ("microbatch", "kind", "messages", "rejected", "opened", "closed", "prime_ms", "plan_ms", "process_ms")
    heads = ("no", "kind", "read", "rejected", "opened", "closed", "prime", "plan", "process")
    last = [tuple(_figure(getattr(row, name)) for name in names) for row in found.microbatches]
    return [
        grid(("source", "clock", "floor", "seen at"), clocks, title="clocks (UTC)", title_style="bold"),
        grid(("reason", "messages", "furthest off"), refused, title="rejected", title_style="bold"),
        grid(heads, last, title="last microbatches (phases in ms)", title_style="bold"),
    ]


def _short(time: str) -> str:
    """Return a time of JSON without what a reader of a table can do without."""
    return time[:19].replace("T", " ")


def _off(length: int) -> str:
    """Return a length of time to a tenth of a second, never shorter than it is."""
    return span(-(-length // TENTH) * TENTH)


def _figure(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float | int) else str(value)


def _quantiles(needed: NeededDelay) -> list[str]:
    """Say how much max_delay most of the messages that were too old needed."""
    shares = [f"{100 * float(share):g} % needed at most {_off(us)}" for share, us in needed.quantiles_us.items()]
    return [f"too old messages, without wrong clocks: {', '.join(shares)}"] if shares else []


def _too_old(needed: NeededDelay, most: int | None) -> str:
    """Say which max_delay would have kept what was too old, and, if there are many sources, what most of them need."""
    if needed.needed_us is None:
        return ""
    each = needed.by_source
    shown = each if most is None or len(each) <= most else dict(sorted(each.items(), key=lambda one: -one[1])[:most])
    by_source = ", ".join(f"{source or repr(source)} {_off(us)}" for source, us in shown.items())
    if len(shown) < len(each):
        half, nine_tenths = (sorted(each.values())[round(share * (len(each) - 1))] for share in (0.5, 0.9))
        by_source = (
            f"half of {len(each):,} sources need at most {_off(half)}, nine tenths {_off(nine_tenths)}; {by_source}; "
            "--sources shows all"
        )
    allowed, enough = _off(needed.max_delay_us), _off(needed.needed_us)
    return f"max_delay is {allowed}; {enough} would have kept every message that was too old ({by_source})"
