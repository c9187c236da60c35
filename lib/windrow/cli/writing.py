"""Commands that make tables and fill the depot: init, ingest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import options
from windrow.cli.options import Config, Debug, Depot, Engine, Json, Ledger, say
from windrow.errors import SettingsError
from windrow.settings.catalog_paths import PathBook

if TYPE_CHECKING:
    from windrow.ingest.ingest import Ingested
    from windrow.ingest.raw_files import RawIngested
    from windrow.settings.settings import Settings

RAW_FORMATS = ("csv", "json", "native", "lines", "length-prefixed")


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(epilog="Example: windrow init --depot data/depot --ledger data/ledger")(init)
    app.command(epilog="Example: windrow ingest data/*.parquet   or   windrow ingest data/*.csv --format csv")(ingest)


def init(
    payload: Annotated[
        str, typer.Option("--payload", help="The payload's type in the depot: string or binary.")
    ] = "string",
    raw: Annotated[bool, typer.Option("--raw", help="Make a raw depot, for chunks of raw files.")] = False,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Create depot and ledger, and write a commented windrow.toml. What is there already stays as it is.

    With --raw no ledger is made: what it holds follows from what the records in the raw files become.
    """
    import pyarrow as pa

    from windrow.engine import open_engine
    from windrow.runtime.api import batcher_of
    from windrow.runtime.opening import DepotReader, open_ledger
    from windrow.runtime.wall_clock import WallClock
    from windrow.settings.template import settings_file

    if payload not in ("string", "binary"):
        raise SettingsError(f"--payload {payload!r} is no type of payload", "Say string or binary.")
    if raw and payload == "binary":
        raise SettingsError("a raw depot has no payloads", "Leave --payload out.")
    file = Path(config or "windrow.toml")
    known = config if file.exists() else None
    chosen = options.settings(known, depot=depot, ledger=ledger, engine=engine)
    written = not file.exists()
    if written:
        file.write_text(settings_file(chosen), encoding="utf-8")
    opened = open_engine(chosen)
    views: list[str] = []
    if raw:
        opened.create_raw_depot(chosen.keep)
    else:
        opened.create_depot(pa.string() if payload == "string" else pa.binary(), chosen.keep)
        open_ledger([DepotReader(None, opened, chosen)], batcher_of(chosen), WallClock().now())
        views = opened.create_views()
    options.note_paths(config, chosen, opened)
    if json:
        options.print_json(
            {
                "settings": str(file),
                "written": written,
                "depot": chosen.depot,
                "raw": raw,
                "ledger": chosen.ledger,
                "views": views,
            }
        )
        return
    if raw:
        say(f"{'Wrote' if written else 'Kept'} {file}. Raw depot {chosen.depot} is there.")
        say("Next: windrow ingest FILE... --format csv.")
        return
    say(f"{'Wrote' if written else 'Kept'} {file}. Depot {chosen.depot} and ledger {chosen.ledger} are there.")
    if views:
        say(f"Views: {', '.join(view.replace('`', '') for view in views)}.", markup=False)
    say("Next: windrow ingest FILE..., windrow run, windrow status.")


def ingest(
    files: Annotated[
        list[str], typer.Argument(help="Files, or Delta tables with --format delta; - is standard input, if raw.")
    ],
    format_: Annotated[
        str,
        typer.Option("--format", help="parquet or delta; raw files: csv, json, native, lines or length-prefixed."),
    ] = "parquet",
    raw_source: Annotated[
        str | None, typer.Option("--raw-source", help="Raw source that a raw file is. Default: its path as given.")
    ] = None,
    config: Config = None,
    depot: Depot = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Append files to the depot, each once, however often it is run; `ingest.columns` maps their columns.

    Raw files are cut into chunks of a raw depot, as they are.
    """
    if format_ in RAW_FORMATS:
        place = options.settings(config, depot=depot, engine=engine)
        if place.format.type not in {None, format_}:
            raise SettingsError(f"--format {format_}, but [format] type = {place.format.type!r}", "Say one of them.")
        read = ingest_raw(place, PathBook.beside(config).path(place.depot), files, raw_source, quiet=json)
        if json:
            size, chunks = (sum(getattr(one, name) for one in read) for name in ("bytes", "chunks"))
            options.print_json({"bytes": size, "chunks": chunks, "files": [asdict(one) for one in read]})
        return
    if raw_source is not None:
        raise SettingsError(f"--raw-source is for raw files, not for --format {format_}", "Leave it out.")
    chosen = options.running(config, depot=depot, engine=engine)
    done = ingest_files(chosen, files, format_, quiet=json)
    if json:
        added = sum(file.messages for file in done)
        options.print_json({"messages": added, "files": [asdict(file) for file in done]})


def ingest_files(settings: Settings, files: list[str], format_: str, quiet: bool) -> list[Ingested]:
    """Ingest files with a progress bar on a terminal, and say what became of each unless `quiet`."""
    from windrow.engine import open_engine
    from windrow.ingest.ingest import Format
    from windrow.ingest.ingest import ingest as ingest_into

    formats: dict[str, Format] = {"parquet": "parquet", "delta": "delta"}
    if format_ not in formats:
        known = ", ".join([*formats, *RAW_FORMATS])
        raise SettingsError(f"--format {format_!r} is not known", f"Known are {known}.")
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


def ingest_raw(
    settings: Settings, location: str, files: list[str], raw_source: str | None, quiet: bool
) -> list[RawIngested]:
    """Ingest raw files with a progress bar on a terminal, and say what became of each unless `quiet`."""
    from windrow.ingest.raw_files import Coded
    from windrow.ingest.raw_files import ingest as ingest_into
    from windrow.runtime.wall_clock import WallClock

    done, chosen = [], settings.format
    with options.byte_count("ingest", quiet) as progress:
        taken = ingest_into(
            location,
            files,
            WallClock().now,
            settings.keep,
            raw_source=raw_source,
            chunk_bytes=settings.ingest.chunk_bytes,
            commit_bytes=settings.ingest.commit_bytes,
            codec=None if chosen.codec == "none" else Coded(chosen.codec, chosen.max_decoded_bytes),
            progress=progress,
        )
        for ingested in taken:
            done.append(ingested)
            if not quiet:
                say(_raw_sentence(ingested), markup=False)
    return done


def _raw_sentence(ingested: RawIngested) -> str:
    if ingested.known:
        return f"{ingested.file}: nothing new, the depot has it already."
    size, chunks = options.count(ingested.bytes, "byte"), options.count(ingested.chunks, "chunk")
    several = f"{ingested.versions} versions of the depot, the last one" if ingested.versions > 1 else "depot version"
    behind = f", behind {options.count(ingested.before, 'byte')} that were there" if ingested.before else ""
    return f"{ingested.file}: {size} as {chunks} in {several} {ingested.depot_version}{behind}."


def _sentence(ingested: Ingested) -> str:
    if ingested.known:
        return f"{ingested.file}: nothing new, the depot has it already."
    note = " No arrival times: received_at = event_time." if ingested.stamped_by_event_time else ""
    version = ingested.depot_version
    return f"{ingested.file}: {options.count(ingested.messages, 'message')} in depot version {version}.{note}"
