"""Options that commands share: `@command` adds them to a function, which gets them as one `CommandContext`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

import typer

from windrow.cli.terminal import stdout_console, write
from windrow.delta.locations import is_catalog_name, local_path
from windrow.errors import SettingsError, TableMissingError, WindrowError
from windrow.model.printable import json_text as escaped_json
from windrow.settings import path_cache as paths
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from windrow.cli.spark_reader import Copies
    from windrow.engine import Engine as AnyEngine
    from windrow.topology.topology import Topology

IfExists = Annotated[bool, "Without a table, say so and end with status 0 instead of 3."]
# Parameters of several commands, at different positions among their own.
TopologyArgument = Annotated[
    str | None, typer.Argument(metavar="[MODULE:NAME]", help="Your topology. Default: the batcher.")
]
Key = Annotated[str | None, "Only this key."]
Source = Annotated[str | None, "Only this source."]
Keys = Annotated[list[str] | None, "Only this key; may be repeated."]
Sources = Annotated[list[str] | None, "Only this source; may be repeated."]
# The help of the options that `@command` adds.
TEXTS = {
    "config": "Settings file. Default: windrow.toml here, if it exists.",
    "depot": "Depot: the Delta table of messages.",
    "ledger": "Ledger: the Delta table of batches.",
    "views_schema": "Schema of the views over a catalog ledger.",
    "checkpoint_location": "Directory for Spark's checkpoints, if the platform requires one.",
    "engine": "spark, embedded (no JVM) or auto.",
    "log_format": "auto (pretty on a terminal, else JSON lines), pretty or json.",
    "log_level": "debug, info, warning or error.",
}
FLAGS = {"json": "Print one JSON document instead of text.", "debug": "Show a traceback when something fails."}


def refuse(*cases: tuple[object, str, str]) -> None:
    """Raise SettingsError for the first case that holds; each case says what is wrong, and what to do."""
    for holds, message, hint in cases:
        if holds:
            raise SettingsError(message, hint)


def print_line(*lines: str) -> None:
    """Print lines for people as they are; the terminal wraps them, so that a copied line stays one line."""
    for line in lines:
        stdout_console.print(line, markup=False, soft_wrap=True)


def print_markup(text: str) -> None:
    """Print a line for people with Rich's markup."""
    stdout_console.print(text, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The shared options of one command call: the settings file, the flags that override it, and how to answer."""

    config: str | None
    flags: dict[str, Any]
    json: bool

    def settings(self, **more: Any) -> Settings:
        """Return the settings: given flags override environment, file and defaults."""
        return Settings.load(self.config, **self.flags | {k: v for k, v in more.items() if v is not None})

    def path_settings(self, *roles: str, instead: str = paths.READ, **more: Any) -> Settings:
        """Return the settings of a command without a JVM: table names are replaced by the paths noted for them.

        `roles` are the tables that the command needs, by default both. Raises TableMissingError for a name without a
        noted path; its hint says what to do `instead` if only Spark reaches the table.
        """
        from windrow.engine import from_platform

        settings, known = self.settings(**more), paths.TablePathCache.beside(self.config)
        named = {name: getattr(settings, name) for name in roles or ("depot", "ledger")}
        places = {name: known.path(place, instead, from_platform()) for name, place in named.items()}
        return settings.model_copy(update=places)

    @contextmanager
    def readable_settings(self, copies: Copies = "all") -> Iterator[Settings]:
        """Yield the settings of a command that reads with delta-rs, or with Spark inside the block.

        Spark reads with `--engine spark`, and reads tables by name where a platform provides Spark. `copies` says how
        much of the ledger is copied (`SparkReader`).
        """
        from windrow.delta.database import memory_limit

        result = self.settings()
        reads_here = self.flags.get("engine") != "spark" and not platform_reads(result)
        result = self.path_settings() if reads_here else result
        with memory_limit(result.max_memory_bytes), nullcontext() if reads_here else _spark_reads(result, copies):
            yield result

    @contextmanager
    def replayable_settings(self) -> Iterator[Settings]:
        """Yield the settings of a command that replays, by default without Spark.

        Spark reads tables by name with `--engine spark`, or where a platform provides Spark.
        """
        settings = self.settings()
        asks_spark = self.flags.get("engine") == "spark" and _is_named(settings)
        if asks_spark or platform_reads(settings):
            with self.readable_settings() as result:
                yield result.model_copy(update={"engine": "spark"})
        else:
            yield self.path_settings(engine=self.flags.get("engine", "embedded"))

    @contextmanager
    def readable_topology(self, place: str) -> Iterator[Topology]:
        """Yield the topology `module:name` for a command that reads with delta-rs, or with Spark if necessary.

        Raises EngineUnavailableError for tables by name without Spark.
        """
        from windrow.engine import choose
        from windrow.engine.embedded import EmbeddedEngine

        topology, chosen = self.topology(place)
        if choose(chosen.engine) == "embedded":
            for location in _places(topology):
                EmbeddedEngine(chosen).place(location)
            yield topology
            return
        first = next(iter(topology.depots.values()))
        with _spark_reads(chosen.model_copy(update={"depot": first.location, "ledger": topology.location})):
            yield topology

    def engine_settings(self, **more: Any) -> Settings:
        """Return the settings of a command with an engine; the embedded engine gets the paths of tables by name."""
        from windrow.engine import choose

        settings = self.settings(**more)
        return self.path_settings(**more) if choose(settings.engine) == "embedded" else settings

    def sparkless_settings(self, *roles: str) -> Settings:
        """Return the settings of a command that needs no Spark for tables (`depot`, `ledger`) on this disk."""
        result = self.engine_settings()
        here = _are_here(result.engine, *(getattr(result, role) for role in roles or ("depot", "ledger")))
        return result.model_copy(update={"engine": "embedded"}) if here and not _needs_spark(result.ledger) else result

    def find_topology(self, place: str) -> Topology:
        """Return the topology `module:name`. Raises SettingsError for flags that name tables: it has its own."""
        from windrow.topology.importing import import_topology

        flags = [f"--{name.replace('_', '-')}" for name in ("depot", "ledger", "views_schema") if name in self.flags]
        if flags:
            raise SettingsError(
                f"{flags[0]} does not apply to a topology", "A topology names its own depots and table of states."
            )
        return import_topology(place)

    def topology(self, place: str) -> tuple[Topology, Settings]:
        """Return the topology, and settings for work that runs no function, for which local tables need no Spark."""
        result, chosen = self.find_topology(place), self.settings()
        is_here = _are_here(chosen.engine, *_places(result))
        return result, chosen.model_copy(update={"engine": "embedded"}) if is_here else chosen

    @contextmanager
    def waiting(self, allowed: bool, **document: Any) -> Iterator[None]:
        """If a table is missing in the block, say that there is nothing to do yet; unless `allowed`, raise its error.

        Somebody, or another job, has yet to create the table.
        """
        try:
            yield
        except TableMissingError as error:
            if not allowed:
                raise
            what = error.args[0]
            self.answer(document | {"waiting": what}, f"Nothing to do yet: {what}.")

    def answer(self, document: Any, *lines: str, tell: Callable[[], None] = lambda: None) -> None:
        """Print the document with `--json`, else the lines for people, and then what `tell` prints."""
        if self.json:
            write(json_text(document, indent=2))
            return
        print_line(*lines)
        tell()


class Command(NamedTuple):
    """A function for Typer and the example at the end of its help."""

    function: Callable[..., int | None]
    example: str


OR = "   or   "  # between examples


def command(shared: str, example: str) -> Callable[[Callable[..., int | None]], Command]:
    """Add to a function, after its own options, the shared options of these names, `--json` and `--debug`.

    The function gets them as one `CommandContext`, its first argument. Typer reads the longer signature. The function's
    own options with an annotation `Annotated[type, "help"]` are named like the parameter.
    """

    def extend(function: Callable[..., int | None]) -> Command:
        @wraps(function)
        def call(**values: Any) -> int | None:
            own = {name: value for name, value in values.items() if name not in TEXTS | FLAGS}
            flags = {name: value for name, value in values.items() if name in TEXTS and value is not None}
            config, json = flags.pop("config", None), values["json"]
            log = table(format=flags.pop("log_format", None), level=flags.pop("log_level", None))
            return function(CommandContext(config, flags | ({} if log is None else {"log": log}), json), **own)

        known = signature(function, eval_str=True)
        own = [_describe_parameter(option) for option in known.parameters.values()][1:]
        texts = [_option(name, str | None, None, TEXTS[name]) for name in shared.split()]
        longer = known.replace(parameters=[*own, *texts, *(_option(name, bool, False, FLAGS[name]) for name in FLAGS)])
        call.__signature__ = longer  # type: ignore[attr-defined]
        call.__annotations__ = {name: option.annotation for name, option in longer.parameters.items()}
        return Command(call, "Example: " + OR.join(f"`{line}`" for line in example.split(OR)))

    return extend


def _describe_parameter(parameter: Parameter) -> Parameter:
    """Return a command's parameter for Typer: if its annotation has a help text, it becomes the option of its name."""
    match get_args(parameter.annotation):
        case (kind, str(text)) if get_origin(parameter.annotation) is Annotated:
            return _option(parameter.name, kind, parameter.default, text)
    return parameter.replace(kind=Parameter.KEYWORD_ONLY)


def _option(name: str, kind: Any, default: Any, text: str) -> Parameter:
    annotation = Annotated[kind, typer.Option(f"--{name.rstrip('_').replace('_', '-')}", help=text)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _spark_reads(chosen: Settings, copies: Copies = "headers") -> AbstractContextManager[None]:
    """Let Spark read the tables of some settings inside the block, copying as much of the ledger as `copies` says."""
    from windrow.engine import require_spark

    require_spark()
    from windrow.cli.spark_reader import reading_by_spark

    return reading_by_spark(chosen, copies)


def _places(topology: Topology) -> list[str]:
    """Return the locations of the table of states and the depots of a topology."""
    return [topology.location, *(depot.location for depot in topology.depots.values())]


def _are_here(engine: str, *places: str) -> bool:
    """Tell whether an engine may be chosen for tables on this disk; a platform's Spark may not mean this disk."""
    from windrow.engine import from_platform

    return engine == "auto" and not from_platform() and all(map(local_path, places))


def platform_reads(chosen: Settings) -> bool:
    """Tell whether tables have names that a platform's Spark knows, because delta-rs may not reach their files."""
    from windrow.engine import choose, from_platform

    return _is_named(chosen) and from_platform() and choose(chosen.engine) == "spark"


def _is_named(chosen: Settings) -> bool:
    return any(map(is_catalog_name, (chosen.depot, chosen.ledger)))


def _needs_spark(ledger: str) -> bool:
    """Tell whether a ledger has features that only Spark knows; the engine reports a ledger that cannot be opened."""
    from windrow.delta.table import beyond_files, latest_table

    try:
        return bool(beyond_files(latest_table(ledger, "ledger")))
    except WindrowError:
        return False


def note_paths(config: str | None, chosen: Settings, engine: AnyEngine) -> None:
    """Record the paths of tables by name, for commands without a JVM, if there is a place for that."""
    from windrow.operate.log import log

    book = paths.TablePathCache.beside(config)
    for name in ("depot", "ledger"):
        if is_catalog_name(getattr(chosen, name)):
            try:
                book.note(getattr(chosen, name), engine.path(engine.place(getattr(chosen, name))))
            except OSError as error:
                log.warning("paths not noted", file=str(book.file), error=str(error))


def table(**flags: str | None) -> dict[str, str] | None:
    """Return the given flags as a table of settings, None without any."""
    return {name: value for name, value in flags.items() if value is not None} or None


def json_text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON: dataclasses as objects, and types unknown to JSON as text."""

    def known(value: Any) -> Any:
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)

    return escaped_json(document, sys.stdout.encoding or "utf-8", indent, known)


def text_table(heads: Iterable[str], rows: Iterable[Sequence[str]], **look: Any) -> Table:
    """Return a table for people with a line below its head; `look` has options of Rich."""
    from rich import box
    from rich.table import Table

    table = Table(*heads, title_justify="left", box=box.SIMPLE_HEAD, **look)
    for row in rows:
        table.add_row(*row)
    return table
