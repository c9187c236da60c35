"""The command `windrow option`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.running import run_topology
from windrow.cli.shared_options import Call, Required, command
from windrow.errors import SettingsError

if TYPE_CHECKING:
    from windrow.runtime.driver import Summary
    from windrow.runtime.loop import Runner


@command("config engine", example="windrow option words:topology max_messages=1000 trigger_interval=5s")
def option(
    call: Call,
    topology: Required,
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Options; VALUE may be default.")],
) -> None:
    """Set options of a topology, also while it runs.

    The next microbatch uses them, and the history records them. max_messages limits a microbatch, trigger_interval is
    the time between two looks at the depots, and idle_sleep the time after a look that found nothing. phase_timeout
    limits the functions: one that takes longer is stopped and tried again. An attempt whose reading took longer ends
    before it calls them. A commit has no limit.
    """
    from windrow.topology.running import set_option

    pairs = [assignment.partition("=") for assignment in assignments]
    for name, equals, _ in pairs:
        if not equals:
            raise SettingsError(f"{name!r} sets nothing", "Say NAME=VALUE, for example max_messages=1000.")

    def work(runner: Runner) -> Summary:
        for name, _, value in pairs:
            set_option(runner, name, value)
        return runner.summary

    run_topology(call, *call.topology(topology), work, f"Set: {', '.join(assignments)}.")
