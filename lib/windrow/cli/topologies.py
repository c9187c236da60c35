"""Run a topology, given as module:name, for a command, and print where it stands or what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import options
from windrow.cli.options import aside, count, say

if TYPE_CHECKING:
    from rich.table import Table

    from windrow.runtime.runner import Runner, Summary
    from windrow.settings.settings import Settings
    from windrow.topology.status import DepotOffset, Standing
    from windrow.topology.topology import Topology

Named = Annotated[
    str | None, typer.Argument(metavar="[MODULE:NAME]", help="A topology of yours. Default: the batcher.")
]
Required = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The topology.")]


def run_topology(
    topology: str, settings: Settings, work: Callable[[Runner], Summary], json: bool, nothing: str
) -> None:
    """Run a topology."""
    from windrow.topology.finding import find

    summary = run(find(topology), settings, work)
    print_summary(summary, json, _sentence(summary, nothing))


def switch_topology(topology: str, settings: Settings, work: Callable[[Runner], Summary], json: bool) -> None:
    """Pause a topology, or resume it."""
    from windrow.topology.finding import find

    found = find(topology)
    summary = run(found, light(found, settings), work)
    print_summary(summary, json, f"The topology {'is paused' if summary.paused else 'continues'}.")


def standing_of(topology: str, settings: Settings) -> Standing:
    """Return where a topology stands."""
    from windrow.topology.finding import find
    from windrow.topology.status import standing

    found = find(topology)
    return standing(found, light(found, settings))


def offsets_table(depots: list[DepotOffset]) -> Table:
    """Return a table of how far depots are read."""
    from rich import box
    from rich.table import Table

    table = Table("depot", "read up to", "version", "versions waiting", "began", "clock", box=box.SIMPLE_HEAD)
    for one in depots:
        figures = (str(one.read_version), str(one.version), str(one.versions_waiting))
        table.add_row(one.name, *figures, one.start_from, one.clock or "")
    return table


def run(found: Topology, settings: Settings, work: Callable[[Runner], Summary]) -> Summary:
    """Do work with the runner of a topology, with log and signals."""
    from windrow.cli.watching import stopping
    from windrow.operate.log import logging_to
    from windrow.runtime.wall_clock import WallClock
    from windrow.topology.running import opened

    clock = WallClock()
    with (
        logging_to(aside, settings.log.format, settings.log.level),
        stopping(clock) as install,
        opened(found, settings, clock) as runner,
    ):
        install()
        return work(runner)


def light(found: Topology, settings: Settings) -> Settings:
    """Return the settings of what runs no function: tables on this disk need no Spark for it."""
    from windrow.delta.locations import local_path

    places = [found.location, *(depot.location for depot in found.depots.values())]
    here = settings.engine == "auto" and all(map(local_path, places))
    return settings.model_copy(update={"engine": "embedded"}) if here else settings


def _sentence(summary: Summary, nothing: str) -> str:
    """Say in one line what a run did."""
    if summary.paused:
        return "The topology is paused; `windrow resume` continues it."
    if not summary.microbatches:
        return nothing
    read, number = summary.total("messages"), len(summary.microbatches)
    rejected = f", {summary.total('rejected'):,} rejected" if summary.total("rejected") else ""
    return f"{count(number, 'microbatch')}: {count(read, 'message')} read{rejected}."


def print_summary(summary: Summary, json: bool, sentence: str) -> None:
    """Print what was done."""
    if not json:
        say(sentence, markup=False)
        return
    rows = [asdict(committed) for committed in summary.microbatches]
    totals = {name: summary.total(name) for name in ("messages", "rejected")}
    options.print_json({"engine": summary.engine, "paused": summary.paused, **totals, "microbatches": rows})
