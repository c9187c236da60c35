"""The command `windrow history`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow.cli import options
from windrow.cli.options import Call, command
from windrow.cli.topologies import Named, light

if TYPE_CHECKING:
    from windrow.settings.settings import Settings

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


@command("config ledger engine", example="windrow history --last 5   or   windrow history words:topology --json")
def history(
    call: Call,
    topology: Named = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many microbatches, the latest ones.")] = 20,
) -> None:
    """Show the last microbatches: kind, messages, time of each phase."""
    if topology is None:
        with call.readable_settings(messages=False) as chosen:
            rows = _of_batcher(chosen.ledger, last)
    else:
        call.refuse_tables()
        rows = _of_topology(topology, call.settings(), last)
    if call.json:
        options.print_json({"microbatches": rows})
        return
    _print(rows)


def _of_batcher(ledger: str, last: int) -> list[dict[str, Any]]:
    from windrow.reading.history import history as of_ledger

    found = of_ledger(ledger)
    rows: list[dict[str, Any]] = found.slice(max(0, found.num_rows - last)).to_pylist()
    return rows


def _of_topology(topology: str, chosen: Settings, last: int) -> list[dict[str, Any]]:
    from windrow.topology.finding import find
    from windrow.topology.running import engines_of
    from windrow.topology.status import microbatches

    found = find(topology)
    rows = microbatches(found, next(iter(engines_of(found, light(found, chosen)).values())), last)
    return [
        {"messages": row.pop("messages_read"), "depot_versions": len(row.pop("versions") or ()), **row} for row in rows
    ]


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
