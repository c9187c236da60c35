"""The command `windrow rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from windrow.cli.options import Call, command
from windrow.cli.topologies import Required, light, print_summary, run


@command("config engine", example="windrow rollback words:topology --to-microbatch 12")
def rollback(
    call: Call,
    topology: Required,
    to_microbatch: Annotated[
        int, typer.Option("--to-microbatch", min=0, help="The last one whose changes stay; 0: none.")
    ],
) -> None:
    """Bring the states of a topology back to what they were, and its depots to where they were read to.

    What came since is read again by the next run. It is recorded in the history. The batcher has none: closed batches
    never change, `windrow replay` makes a new ledger instead.
    """
    from windrow.topology.finding import find
    from windrow.topology.running import rollback as roll_back

    found = find(topology)
    summary = run(found, light(found, call.settings()), lambda runner: roll_back(runner, to_microbatch))
    print_summary(
        summary, call.json, f"Rolled back to microbatch {to_microbatch}; `windrow run` reads what came since."
    )
