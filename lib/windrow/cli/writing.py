"""Commands that make tables and fill the depot: init, ingest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import options
from windrow.cli.options import Config, Debug, Depot, Engine, Json, Ledger, say
from windrow.errors import SettingsError

if TYPE_CHECKING:
    from windrow.ingest import Ingested
    from windrow.settings import Settings


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(epilog="Example: windrow init --depot data/depot --ledger data/ledger")(init)
    app.command(epilog="Example: windrow ingest data/*.parquet")(ingest)


def init(
    payload: Annotated[
        str, typer.Option("--payload", help="The payload's type in the depot: string or binary.")
    ] = "string",
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Create depot and ledger, and write a commented windrow.toml. What is there already stays as it is."""
    import pyarrow as pa

    from windrow.engine import open_engine
    from windrow.example import settings_file
    from windrow.opening import open_ledger
    from windrow.wall import WallClock

    if payload not in ("string", "binary"):
        raise SettingsError(f"--payload {payload!r} is no type of payload", "Say string or binary.")
    file = Path(config or "windrow.toml")
    known = config if file.exists() else None
    chosen = options.settings(known, depot=depot, ledger=ledger, engine=engine)
    written = not file.exists()
    if written:
        file.write_text(settings_file(chosen), encoding="utf-8")
    opened = open_engine(chosen)
    opened.create_depot(pa.string() if payload == "string" else pa.binary(), chosen.keep)
    open_ledger(opened, chosen, WallClock().now())
    views = opened.create_views()
    options.note_paths(config, chosen, opened)
    if json:
        options.print_json(
            {"settings": str(file), "written": written, "depot": chosen.depot, "ledger": chosen.ledger, "views": views}
        )
        return
    say(f"{'Wrote' if written else 'Kept'} {file}. Depot {chosen.depot} and ledger {chosen.ledger} are there.")
    if views:
        say(f"Views: {', '.join(view.replace('`', '') for view in views)}.", markup=False)
    say("Next: windrow ingest FILE..., windrow run, windrow status.")


def ingest(
    files: Annotated[list[str], typer.Argument(help="Files, or Delta tables with --format delta.")],
    format_: Annotated[str, typer.Option("--format", help="parquet or delta.")] = "parquet",
    config: Config = None,
    depot: Depot = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Append files to the depot, each once, however often it is run; `ingest.columns` maps their columns."""
    chosen = options.running(config, depot=depot, engine=engine)
    done = ingest_files(chosen, files, format_, quiet=json)
    if json:
        added = sum(file.messages for file in done)
        options.print_json({"messages": added, "files": [asdict(file) for file in done]})


def ingest_files(settings: Settings, files: list[str], format_: str, quiet: bool) -> list[Ingested]:
    """Ingest files with a progress bar on a terminal, and say what became of each unless `quiet`."""
    from windrow.engine import open_engine
    from windrow.ingest import Format
    from windrow.ingest import ingest as ingest_into

    formats: dict[str, Format] = {"parquet": "parquet", "delta": "delta"}
    if format_ not in formats:
        raise SettingsError(f"--format {format_!r} is not known", f"Known are {', '.join(formats)}.")
    done = []
    with options.counter("ingest", quiet) as progress:
        taken = ingest_into(
            open_engine(settings), files, settings.ingest.columns, formats[format_], settings.keep, progress
        )
        for ingested in taken:
            done.append(ingested)
            if not quiet:
                say(_sentence(ingested))
    return done


def _sentence(ingested: Ingested) -> str:
    if ingested.known:
        return f"{ingested.file}: nothing new, the depot has it already."
    note = " No arrival times: received_at = event_time." if ingested.stamped_by_event_time else ""
    version = ingested.depot_version
    return f"{ingested.file}: {options.count(ingested.messages, 'message')} in depot version {version}.{note}"
