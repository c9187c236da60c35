"""The table of `windrow status --history`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from windrow.cli.shared_options import CommandContext, text_table
from windrow.cli.terminal import stdout_console

HEADS = {
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


def show_history(call: CommandContext, topology: str | None, last: int) -> None:
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
    call.answer({"microbatches": rows}, tell=lambda: _print(rows))


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    filled = {name for row in rows for name, value in row.items() if value is not None}
    heads = [name for name in HEADS if name in filled]
    cells = ([_cell(row.get(name)) for name in heads] for row in rows)
    stdout_console.print(text_table((HEADS[name] for name in heads), cells, padding=(0, 1, 0, 0)))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, datetime):
        return f"{value:%m-%d %H:%M:%S}"
    return "" if value is None else str(value)
