"""The commands `windrow tick`, `pause`, `resume` and `rollback`, which say what a ledger or a topology does next."""

from __future__ import annotations

from typing import Annotated

import typer

from windrow.cli.running import run_and_print, run_topology
from windrow.cli.shared_options import CommandContext, TopologyArgument, command
from windrow.errors import SettingsError
from windrow.model import timestamps as moments


@command(
    "config depot ledger engine log_format log_level",
    example="windrow tick --to 2026-01-31T12:00:00Z   or   windrow tick --all",
)
def tick(
    call: CommandContext,
    topology: TopologyArgument = None,
    to: Annotated[str | None, "Raise the floor of every source to this time, ISO 8601."] = None,
    all_: Annotated[bool, "Close everything that is open (a flush), each source at its clock."] = False,
) -> None:
    """Close what is overdue, or with --all what is open.

    That is now, or at the time --to. The ledger records the tick, and a replay repeats it. With --all, messages from
    before the clock of their source are too old afterwards. For a topology it fires the events that are due; a topology
    has no clocks for --to and --all.
    """
    moment = None if to is None else moments.microseconds(to, "--to")
    if all_ and (topology is not None or to is not None):
        raise SettingsError("--all goes with no topology and no --to", "Leave one of them out.")
    if topology is not None:
        result = call.find_topology(topology)
        run_topology(call, result, call.settings(), lambda runner: runner.tick(moment), nothing="Nothing due.")
        return
    run_and_print(call, call.engine_settings(), lambda runner: runner.flush() if all_ else runner.tick(moment))


@command("config depot ledger engine", example="windrow pause --ledger data/ledger")
def pause(call: CommandContext, topology: TopologyArgument = None) -> None:
    """Pause the ledger until `windrow resume`.

    Every run of it does nothing meanwhile. The history records the pause.
    """
    if topology is not None:
        run_topology(call, *call.topology(topology), lambda runner: runner.pause(), "The topology is paused.")
        return
    run_and_print(call, call.sparkless_settings(), lambda runner: runner.pause())


@command("config depot ledger engine", example="windrow resume --ledger data/ledger")
def resume(call: CommandContext, topology: TopologyArgument = None) -> None:
    """Let a paused ledger continue.

    The history records it.
    """
    if topology is not None:
        run_topology(call, *call.topology(topology), lambda runner: runner.resume(), "The topology continues.")
        return
    run_and_print(call, call.sparkless_settings(), lambda runner: runner.resume(), nothing="The ledger was not paused.")


@command("config engine", example="windrow rollback words:topology --to-microbatch 12")
def rollback(
    call: CommandContext,
    topology: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The topology.")],
    to_microbatch: Annotated[int, typer.Option(min=0, help="Last microbatch to keep; 0: none.")],
) -> None:
    """Take a topology back to its state after a microbatch.

    Its depots go back too, and the next run reads again what came since. The history records the rollback. You cannot
    roll the batcher back, because closed batches never change; `windrow replay` makes a new ledger instead.
    """
    from windrow.topology.running import rollback as roll_back

    sentence = f"Rolled back to microbatch {to_microbatch}; `windrow run` reads what came since."
    run_topology(call, *call.topology(topology), lambda runner: roll_back(runner, to_microbatch), sentence)
