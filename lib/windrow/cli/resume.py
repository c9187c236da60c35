"""The command `windrow resume`."""

from __future__ import annotations

from windrow.cli.running import run_and_print, run_topology
from windrow.cli.shared_options import CommandContext, TopologyArgument, command


@command("config depot ledger engine", example="windrow resume --ledger data/ledger")
def resume(call: CommandContext, topology: TopologyArgument = None) -> None:
    """Resume a paused ledger.

    The history records this.
    """
    if topology is not None:
        run_topology(
            call, *call.topology(topology), lambda runner: runner.resume(), "The topology is no longer paused."
        )
        return
    run_and_print(call, call.sparkless_settings(), lambda runner: runner.resume(), nothing="The ledger was not paused.")
