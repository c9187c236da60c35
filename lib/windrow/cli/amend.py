"""The command `windrow amend`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from windrow.cli.shared_options import CommandContext, Keys, Sources, command
from windrow.model.printable import pluralize

NO_CHANGE = "Nothing to amend: up to the windows that are open here or in the branch, both have the same batches."


@command("config depot ledger engine", example="windrow amend patient")
def amend(
    call: CommandContext,
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="Path of the ledger that `windrow replay` kept.")],
    key: Keys = None,
    source: Sources = None,
) -> None:
    """Let late data in: add the batches that differ in a branch.

    A branch is a ledger that `windrow replay` made from the same messages under other rules. Closed batches stay as
    they are. Beside them, one commit adds amended batches, and says which batches and rejected messages each replaces.
    The view current_batches shows closed and amended batches, without the replaced ones.
    """
    from windrow.replaying import ReplayRange
    from windrow.replaying import amend as commit

    with call.replayable_settings() as chosen:
        amendment = commit(chosen, branch, ReplayRange(keys=key or (), sources=source or ()).streams)
    batches = pluralize(amendment.superseded_batch_count, "batch")
    amended = pluralize(amendment.amended_batch_count, "amended batch")
    lines = [
        f"{amended} in place of {batches}, with {pluralize(amendment.let_in, 'rejected message')} let in.",
        f"Microbatch {amendment.microbatch}. Read current_batches for these, closed_batches for the original ones.",
    ]
    call.answer(asdict(amendment), *(lines if amendment.microbatch else [NO_CHANGE]))
