"""The command `windrow offsets`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.cli.shared_options import Call, Named, command, grid
from windrow.cli.terminal import people
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from rich.table import Table

    from windrow.settings.settings import Settings
    from windrow.topology.status import DepotOffset


@command("config depot ledger engine", example="windrow offsets   or   windrow offsets words:topology --json")
def offsets(call: Call, topology: Named = None) -> None:
    """Show how far each depot is read, and what waits."""
    if topology is None:
        with call.readable_settings(messages=False) as chosen:
            found = [_offset(chosen)]
    else:
        from windrow.topology.status import standing

        found = standing(*call.topology(topology)).depots
    call.answer({"depots": found}, tell=lambda: people.print(offsets_table(found)))


def offsets_table(depots: list[DepotOffset]) -> Table:
    """Return a table of how far depots are read."""
    heads = ("depot", "read up to", "version", "versions waiting", "began", "clock")
    figures = ("read_version", "version", "versions_waiting")
    return grid(
        heads,
        (
            (one.name, *(_figure(getattr(one, name)) for name in figures), one.start_from, one.clock or "")
            for one in depots
        ),
    )


def _figure(version: int) -> str:
    """Return a version or a number of versions; nothing was read before the first version."""
    return str(version) if version >= 0 else "nothing"


def _offset(chosen: Settings) -> DepotOffset:
    """Return how far the batcher has read its depot."""
    from windrow import reading
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
