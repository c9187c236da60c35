"""The command `windrow tick`."""

from __future__ import annotations

from typing import Annotated

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
    """Close overdue batches, or with --all every open batch.

    It closes what is overdue now, or at the time --to. The ledger records the tick, and a replay repeats it. After
    --all, messages from before the clock of their source are too old. For a topology it fires the events that are due;
    a topology has no clocks for --to and --all.
    """
    moment = None if to is None else moments.microseconds(to, "--to")
    if all_ and (topology is not None or to is not None):
        raise SettingsError("--all cannot be combined with a topology or --to", "Leave one of them out.")
    if topology is not None:
        result = call.find_topology(topology)
        run_topology(call, result, call.settings(), lambda runner: runner.tick(moment), nothing="Nothing due.")
        return
    run_and_print(call, call.engine_settings(), lambda runner: runner.flush() if all_ else runner.tick(moment))
