"""The command `windrow resume`."""

from __future__ import annotations

from windrow.cli.microbatches import run_and_print
from windrow.cli.options import Call, command
from windrow.cli.topologies import Named, switch_topology


@command("config depot ledger engine", example="windrow resume --ledger data/ledger")
def resume(call: Call, topology: Named = None) -> None:
    """Let a paused ledger continue.

    The history records it.
    """
    if topology is not None:
        call.refuse_tables()
        switch_topology(topology, call.settings(), lambda runner: runner.resume(), call.json)
        return
    run_and_print(call, call.switch_settings(), lambda runner: runner.resume(), nothing="The ledger was not paused.")
