"""The command `windrow rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from windrow.cli.running import run_topology
from windrow.cli.shared_options import CommandContext, command


@command("config engine", example="windrow rollback words:topology --to-microbatch 12")
def rollback(
    call: CommandContext,
    topology: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The topology.")],
    to_microbatch: Annotated[int, typer.Option(min=0, help="Last microbatch to keep; 0: none.")],
) -> None:
    """Take a topology back to its state after a microbatch.

    Its positions in its depots go back too, and the next run rereads the rows after them. The history records the
    rollback. The batcher cannot be rolled back, because closed batches never change; `windrow replay` makes a new
    ledger instead.
    """
    from windrow.topology.running import rollback as roll_back

    sentence = f"Rolled back to microbatch {to_microbatch}; `windrow run` rereads the later rows."
    run_topology(call, *call.topology(topology), lambda runner: roll_back(runner, to_microbatch), sentence)
