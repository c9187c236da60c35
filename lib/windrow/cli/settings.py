"""The command `windrow settings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.running import run_topology
from windrow.cli.shared_options import CommandContext, TopologyArgument, command, refuse, text_table
from windrow.cli.terminal import stdout_console

if TYPE_CHECKING:
    from windrow.runtime.driver import RunSummary
    from windrow.runtime.loop import Runner


@command(
    "config depot ledger engine",
    example="windrow settings --config windrow.toml   or   windrow settings words:topology max_messages=1000",
)
def settings(
    call: CommandContext,
    topology: TopologyArgument = None,
    assignments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="Options to set; VALUE may be default.")
    ] = None,
) -> None:
    """Show every setting, or set options of a topology.

    A value comes from a flag, the environment, the file or the default. Options of a topology can be set while it runs:
    the next microbatch uses them, and the history records them. max_messages limits a microbatch, trigger_interval is
    the time between two polls of the depots, and idle_sleep the time after a poll that found nothing. phase_timeout
    limits each phase of an attempt: reading the states, reading the depots, the functions, the commit. A phase that
    takes longer is ended, and the attempt is retried.
    """
    if topology is not None:
        _set_options(call, topology, assignments or [])
        return
    from windrow.settings.template import effective_settings

    rows = effective_settings(call.config, **call.flags)
    table = text_table(("setting", "value", "from"), ())
    for row in rows:
        table.add_row(row.name, row.value, row.origin, style="dim" if row.origin == "default" else None)
    call.answer(rows, tell=lambda: stdout_console.print(table))


def _set_options(call: CommandContext, topology: str, assignments: list[str]) -> None:
    from windrow.topology.running import set_option

    pairs = [assignment.partition("=") for assignment in assignments]
    hint = "Use NAME=VALUE, such as max_messages=1000. `windrow status` shows the options that are set."
    refuse((not pairs, f"no option of {topology} is given", hint))
    hint = "Use NAME=VALUE, for example max_messages=1000."
    refuse(*((not equals, f"{name!r} has no value", hint) for name, equals, _ in pairs))

    def work(runner: Runner) -> RunSummary:
        for name, _, value in pairs:
            set_option(runner, name, value)
        return runner.summary

    run_topology(call, *call.topology(topology), work, f"Set: {', '.join(assignments)}.")
