"""The command line. Each command is a function of its name, thin over the library; this module runs them.

Exit status: 0 done, 1 a check found a difference, 2 wrong usage or settings, 3 an outside failure.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import Annotated, Any

import typer

from windrow.cli import shared_options, terminal
from windrow.cli.memory import allocate_plainly
from windrow.errors import UsageError, WindrowError, first_line, is_panic

app = typer.Typer(
    help="Group messages into batches, each message exactly once, on Delta Lake.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Set up": ("demo", "init", "settings", "doctor"),
    "Send": ("produce", "ingest", "bridge"),
    "Run": ("run", "tick", "pause", "resume", "maintain", "recover"),
    "Look": ("status", "report", "ui", "show", "plot", "tune", "export"),
    "Check": ("verify", "quality", "replay", "amend", "prove"),
    "Topologies": ("rollback",),
}
COMMANDS: dict[str, list[shared_options.Command]] = {
    panel: [getattr(import_module(f"windrow.cli.{name}"), name) for name in names] for panel, names in PANELS.items()
}
for panel, commands in COMMANDS.items():
    for entry in commands:
        app.command(epilog=entry.example, rich_help_panel=panel)(entry.function)


def _version(is_asked: bool) -> None:
    if is_asked:
        from windrow.version import VERSION

        shared_options.print_line(f"windrow {VERSION}")
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Group messages into batches, each message exactly once, on Delta Lake."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; errors become one or two lines, or a traceback with `--debug`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    allocate_plainly()
    terminal.escape_unknown()
    warnings.showwarning = lambda message, *_, **__: terminal.complain(f"warning: {message}")
    try:
        status: Any = select_commands(words)(args=words, standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return _say("stopped", 3)
    except BaseException as error:
        if "--debug" in words or not (isinstance(error, Exception) or is_panic(error)):
            raise
        return _report_failure(error)
    return int(status or 0)


def select_commands(words: Sequence[str]) -> typer.Typer:
    """Return the command line with only the command that the first word names, or with all if it names none.

    Typer builds every command from its function's annotations before it looks at the arguments, and building all of
    them takes longer than reading a small ledger.
    """
    first = words[0] if words else ""
    matching = [each for each in app.registered_commands if each.callback and each.callback.__name__ == first]
    narrow = copy(app)
    narrow.registered_commands = matching or app.registered_commands
    return narrow


def _report_failure(error: BaseException) -> int:
    """Report what went wrong and return the matching exit status."""
    if isinstance(error, UsageError):
        return _say(str(error), 2)
    if isinstance(error, WindrowError):
        return _say(str(error), 3)
    if hasattr(error, "format_message"):  # Typer's exception for wrong usage
        if not error.format_message():  # an explanation was printed already
            return 2
        command = getattr(getattr(error, "ctx", None), "command_path", "windrow")
        return _say(f"WINDROW-USAGE: {error.format_message()}\nSee {command} --help.", 2)
    return _say(
        f"WINDROW-UNEXPECTED: {type(error).__name__}: {first_line(error)}\nRun it again with --debug to see where.", 3
    )


def _say(text: str, status: int) -> int:
    terminal.complain(text)
    return status
