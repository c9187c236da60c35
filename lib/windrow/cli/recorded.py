"""Commands that show what is recorded, of the batcher or of a topology: history, offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow.cli import options
from windrow.cli.options import Config, Debug, Depot, Engine, Json, Ledger
from windrow.cli.topologies import Named, light, print_offsets, refuse_tables, settings_of, standing_of

if TYPE_CHECKING:
    from windrow.settings.settings import Settings
    from windrow.topology.status import DepotOffset

HEADS = {
    "microbatch": "no",
    "kind": "kind",
    "depot": "depot",
    "depot_version": "version",
    "messages": "read",
    "rejected": "rejected",
    "started_at": "began",
    "prime_ms": "prime",
    "plan_ms": "plan",
    "process_ms": "process",
    "events_fired": "events",
    "options_used": "options",
}


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(epilog="Example: windrow history --last 5   or   windrow history words:topology --json")(history)
    app.command(epilog="Example: windrow offsets   or   windrow offsets words:topology --json")(offsets)


def history(
    topology: Named = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many microbatches, the latest ones.")] = 20,
    config: Config = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the last microbatches: what each read, of which kind it was, how long its phases took."""
    if topology is None:
        rows = _of_batcher(config, ledger, last)
    else:
        refuse_tables(ledger=ledger)
        rows = _of_topology(topology, settings_of(config, engine), last)
    if json:
        options.print_json({"microbatches": rows})
        return
    _print(rows)


def offsets(
    topology: Named = None,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show how far each depot is read, and what waits."""
    if topology is None:
        found = [_offset(options.reading(config, depot=depot, ledger=ledger))]
    else:
        refuse_tables(depot=depot, ledger=ledger)
        found = standing_of(topology, settings_of(config, engine)).depots
    if json:
        options.print_json({"depots": [options.plain(one) for one in found]})
        return
    print_offsets(found)


def _of_batcher(config: str | None, ledger: str | None, last: int) -> list[dict[str, Any]]:
    from windrow.reading.history import history as of_ledger

    found = of_ledger(options.reading(config, ledger=ledger).ledger)
    rows: list[dict[str, Any]] = found.slice(max(0, found.num_rows - last)).to_pylist()
    return rows


def _of_topology(topology: str, chosen: Settings, last: int) -> list[dict[str, Any]]:
    from windrow.topology.finding import find
    from windrow.topology.status import engines_of, microbatches

    found = find(topology)
    rows = microbatches(found, next(iter(engines_of(found, light(found, chosen)).values())), last)
    return [
        {"messages": row.pop("messages_read"), "depot_versions": len(row.pop("versions") or ()), **row} for row in rows
    ]


def _offset(chosen: Settings) -> DepotOffset:
    """Return how far the batcher has read its depot."""
    from windrow import reading
    from windrow.runtime.wall_clock import WallClock
    from windrow.topology.status import DepotOffset

    found = reading.status(chosen.depot, chosen.ledger, WallClock().now())
    clocks = [row.clock for row in found.clocks]
    return DepotOffset(
        name="depot",
        path=found.depot.path,
        start_from=found.ledger.start_from,
        read_version=found.depot.read_version,
        version=found.depot.version,
        versions_waiting=found.depot.versions_waiting,
        clock=max(clocks, default=None),
    )


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    said = {name for row in rows for name, value in row.items() if value is not None}
    heads = [name for name in HEADS if name in said]
    table = Table(*(HEADS[name] for name in heads), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in heads))
    options.people.print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, datetime):
        return f"{value:%m-%d %H:%M:%S}"
    return "" if value is None else str(value)
