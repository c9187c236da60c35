"""The command `windrow ui`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.shared_options import CommandContext, TopologyArgument, command, refuse
from windrow.model import durations

if TYPE_CHECKING:
    from windrow.ui import BatcherView, TopologyView

MIN_SECONDS = 0.1  # a guess: browsers do not ask more often


@command("config depot ledger engine", example="windrow ui   or   windrow ui words:topology --allow-changes")
def ui(
    call: CommandContext,
    topology: TopologyArgument = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")] = 0,
    interval: Annotated[str, "Refresh the page at this interval."] = "5s",
    duration: Annotated[str | None, "Stop after this long. Default: never."] = None,
    allow_changes: Annotated[bool, "Show buttons that pause, resume and set options."] = False,
) -> None:
    """Serve the report live to a browser on this machine.

    It also shows streams and batches, and what became of a message. The printed address contains a secret; nobody can
    open the page without it. Ctrl-C ends the server. It needs the extra `ui`; pictures need `plot`.
    """
    from windrow.cli.watching import stop_on_signals
    from windrow.ui import BatcherView, Server, TopologyView

    lasts = None if duration is None else durations.microseconds(duration, "--duration") / 1_000_000
    seconds = durations.microseconds(interval, "--interval") / 1_000_000
    refuse((seconds < MIN_SECONDS, f"--interval {interval} is too short", f"Use at least {MIN_SECONDS:g}s."))
    view: BatcherView | TopologyView
    if topology is None:
        call.settings()  # invalid settings stop the command now, not every page
        view = BatcherView(call.readable_settings, call.sparkless_settings)
    else:
        view = TopologyView(*call.topology(topology), lambda: call.readable_topology(topology))
    server = Server(view, port, secrets.token_urlsafe(16), seconds, allow_changes)
    with stop_on_signals(server.stop, "stopping"):
        call.answer({"address": server.access.address}, f"Open {server.access.address}", "Ctrl-C ends the server.")
        server.run(lasts)
