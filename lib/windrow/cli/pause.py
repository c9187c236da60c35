"""The command `windrow pause`."""

from __future__ import annotations

from windrow.cli.running import run_and_print, run_topology
from windrow.cli.shared_options import CommandContext, TopologyArgument, command


@command("config depot ledger engine", example="windrow pause --ledger data/ledger")
def pause(call: CommandContext, topology: TopologyArgument = None) -> None:
    """Pause the ledger until `windrow resume`.

    Until then, its runs do nothing. The history records the pause.
    """
    if topology is not None:
        run_topology(call, *call.topology(topology), lambda runner: runner.pause(), "The topology is paused.")
        return
    run_and_print(call, call.sparkless_settings(), lambda runner: runner.pause())
