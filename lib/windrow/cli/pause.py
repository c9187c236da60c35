"""The command `windrow pause`."""

from __future__ import annotations

from windrow.cli.microbatches import run_and_print
from windrow.cli.options import Call, command
from windrow.cli.topologies import Named, switch_topology


@command("config depot ledger engine", example="windrow pause --ledger data/ledger")
def pause(call: Call, topology: Named = None) -> None:
    """Pause the ledger until `windrow resume`.

    Every run of it does nothing meanwhile. The history records the pause.
    """
    if topology is not None:
        call.refuse_tables()
        switch_topology(topology, call.settings(), lambda runner: runner.pause(), call.json)
        return
    run_and_print(call, call.switch_settings(), lambda runner: runner.pause())
