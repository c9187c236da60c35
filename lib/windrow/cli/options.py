"""The options that commands share, and the settings they make."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from windrow.delta.locations import is_name, local_path
from windrow.errors import WindrowError
from windrow.settings import catalog_paths as paths
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from windrow.engine import Engine as AnyEngine

Config = Annotated[
    str | None, typer.Option("--config", help="Settings file. Default: windrow.toml here, if there is one.")
]
Depot = Annotated[str | None, typer.Option("--depot", help="Depot: the Delta table of messages.")]
Ledger = Annotated[str | None, typer.Option("--ledger", help="Ledger: the Delta table of batches.")]
Engine = Annotated[str | None, typer.Option("--engine", help="spark, embedded (no JVM) or auto.")]
Views = Annotated[str | None, typer.Option("--views", help="Schema of the views over a catalog ledger.")]
Checkpoints = Annotated[
    str | None, typer.Option("--checkpoints", help="Directory for Spark's checkpoints, where the platform wants one.")
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", help="auto (pretty on a terminal, else JSON lines), pretty or json.")
]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")]

people = Console(highlight=False)
aside = Console(stderr=True, highlight=False)


def say(text: str, markup: bool = True) -> None:
    """Print a line for people; a terminal wraps it, so that what is copied stays one line."""
    people.print(text, markup=markup, soft_wrap=True)


def settings(config: str | None, **flags: Any) -> Settings:
    """Return the settings: flags that were given over environment, file and defaults."""
    return Settings.load(config, **{name: value for name, value in flags.items() if value is not None})


def running(config: str | None, **flags: Any) -> Settings:
    """Return the settings of a command with an engine; the embedded one gets tables by their paths, where noted."""
    from windrow.engine import choose

    chosen = settings(config, **flags)
    return reading(config, **flags) if choose(chosen.engine) == "embedded" else chosen


def switching(config: str | None, **flags: Any) -> Settings:
    """Return the settings of a command that only flips a switch: tables on this disk need no Spark for it."""
    chosen = running(config, **flags)
    here = chosen.engine == "auto" and all(local_path(place) for place in (chosen.depot, chosen.ledger))
    return chosen.model_copy(update={"engine": "embedded"}) if here and not _needs_spark(chosen.ledger) else chosen


def _needs_spark(ledger: str) -> bool:
    """Tell whether a ledger has features that only Spark knows; what cannot be opened is for the engine to say."""
    from windrow.delta.table import beyond_files, latest_table

    try:
        return bool(beyond_files(latest_table(ledger, "ledger")))
    except WindrowError:
        return False


def reading(config: str | None, **flags: Any) -> Settings:
    """Return the settings of a command without a JVM: tables by name stand there by the paths that were written down.

    Raises TableMissing for a name of which nothing was.
    """
    chosen = settings(config, **flags)
    known = paths.PathBook.beside(config)
    return chosen.model_copy(update={name: known.path(getattr(chosen, name)) for name in ("depot", "ledger")})


def note_paths(config: str | None, chosen: Settings, engine: AnyEngine) -> None:
    """Write down where tables by name lie, for commands without a JVM, if there is a place to write it to."""
    from windrow.operate.log import log

    book = paths.PathBook.beside(config)
    for name in ("depot", "ledger"):
        if is_name(getattr(chosen, name)):
            try:
                book.note(getattr(chosen, name), engine.path_of(name))
            except OSError as error:
                log.warning("paths not noted", file=str(book.file), error=str(error))


def table(**flags: str | None) -> dict[str, str] | None:
    """Return the flags that were given as a table of settings, None without any."""
    return {name: value for name, value in flags.items() if value is not None} or None


def plain(document: Any) -> Any:
    """Return a dataclass as what JSON knows, anything else as it is."""
    return asdict(document) if is_dataclass(document) and not isinstance(document, type) else document


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    value = plain(document)
    json.dump(value, sys.stdout, indent=2, default=str, ensure_ascii=False)
    sys.stdout.write("\n")


def count(number: int, noun: str) -> str:
    """Return `1 message`, `2 messages`, `3 batches`."""
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, unless `quiet`; it is told how much is done of how much."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=aside, disable=quiet or not aside.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def byte_count(what: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar of bytes on a terminal, unless `quiet`; it is told how many were read, and of how many."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=aside, disable=quiet or not aside.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def counter(what: str, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """Count messages on a terminal, unless `quiet`; it is told what is at work and how many are done."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,} messages"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=aside, disable=quiet or not aside.is_terminal, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda what, messages: bar.update(task, description=what, completed=messages)
