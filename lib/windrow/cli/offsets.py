"""The command `windrow offsets`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from windrow.cli.shared_options import Call, Named, command, grid
from windrow.cli.terminal import people
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.reading.status import DepotStatus


@command("config depot ledger engine", example="windrow offsets   or   windrow offsets words:topology --json")
def offsets(call: Call, topology: Named = None) -> None:
    """Show how far each depot is read, and what waits."""
    from windrow.reading.status import DepotPlace, depot_status

    now = WallClock().now()
    if topology is None:
        from windrow.reading.tables import open_ledger

        with call.readable_settings(messages=False) as chosen:
            found = depot_status(open_ledger(chosen.ledger), {None: DepotPlace(chosen.depot)}, now)
    else:
        from windrow.topology.status import book_of, places_of

        with call.readable_topology(topology) as named:
            found = depot_status(book_of(named), places_of(named), now)
    call.answer({"depots": found}, tell=lambda: _print(found))


def _print(depots: Iterable[DepotStatus]) -> None:
    heads = ("depot", "read up to", "version", "versions waiting", "messages waiting", "began", "clock")
    figures = ("read_version", "version", "versions_waiting", "messages_waiting")
    rows = (
        (one.name, *(_figure(getattr(one, name)) for name in figures), one.start_from, one.clock or "")
        for one in depots
    )
    people.print(grid(heads, rows))


def _figure(number: int | None) -> str:
    """Return a number of versions or messages, which may be unknown; nothing was read before the first version."""
    return "unknown" if number is None else str(number) if number >= 0 else "nothing"
