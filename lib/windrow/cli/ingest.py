"""The command `windrow ingest`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.format_check import check_files
from windrow.cli.progress import byte_count, count_messages
from windrow.cli.shared_options import CommandContext, command, print_line
from windrow.errors import SettingsError
from windrow.formats.installed import names
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock
from windrow.settings.path_cache import INGEST_RAW

if TYPE_CHECKING:
    from windrow.ingest.ingest import Format, IngestResult
    from windrow.ingest.raw_files import RawIngestResult
    from windrow.settings.settings import Settings

TABLES: dict[str, Format] = {"parquet": "parquet", "delta": "delta"}


@command("config depot engine", example="windrow ingest data/*.parquet   or   windrow ingest readings.csv --check")
def ingest(
    call: CommandContext,
    files: Annotated[
        list[str], typer.Argument(help="Files, or Delta tables with --format delta; - is standard input, if raw.")
    ],
    format_: Annotated[
        str,
        typer.Option("--format", help="parquet or delta; for raw files the type of [format], such as csv."),
    ] = "parquet",
    raw_source: Annotated[
        str | None, typer.Option("--raw-source", help="Raw source that a raw file is. Default: its path as given.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only read raw files as a run would, and show good and bad records.")
    ] = False,
    rejects: Annotated[
        str | None, typer.Option("--rejects", help="With --check: new file for the bytes of the bad records.")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="With --check: how many records to show, of the good and of the bad.")
    ] = 5,
) -> int:
    """Append files to the depot, each file once.

    You can run it again with the same files. `ingest.columns` maps their columns. Raw files go unchanged into a raw
    depot, in chunks. --check needs and writes no depot: it shows the first bad records with line, field and reason, and
    what `depot.columns` makes of the good ones; exit status 1 for a bad record.
    """
    if check:
        return check_files(call, files, rejects, sample)
    if rejects is not None:
        raise SettingsError("--rejects goes with --check", "Give both, or none.")
    if format_ not in TABLES and format_ in names():
        chosen = call.path_settings("depot", instead=INGEST_RAW)
        if chosen.format.type not in {None, format_}:
            raise SettingsError(
                f"--format {format_}, but [format] type = {chosen.format.type!r}",
                "Make them the same, or leave out --format.",
            )
        read = ingest_raw(chosen, chosen.depot, files, raw_source, quiet=call.json)
        size, chunks = (sum(getattr(result, name) for result in read) for name in ("byte_count", "chunk_count"))
        call.answer({"byte_count": size, "chunk_count": chunks, "files": read})
        return 0
    if raw_source is not None:
        raise SettingsError(f"--raw-source is for raw files, not for --format {format_}", "Leave it out.")
    chosen = call.engine_settings()
    results = ingest_files(chosen, files, format_, quiet=call.json)
    call.answer({"message_count": sum(file.message_count for file in results), "files": results})
    return 0


def ingest_files(settings: Settings, files: list[str], format_: str, quiet: bool) -> list[IngestResult]:
    """Ingest files with a progress bar on a terminal, and say what became of each unless `quiet`."""
    from windrow.engine import open_engine
    from windrow.ingest import writer_of
    from windrow.ingest.ingest import ingest as ingest_into

    if format_ not in TABLES:
        known = ", ".join([*TABLES, *names()])
        raise SettingsError(f"--format {format_!r} is not known", f"Known are {known}.")
    results = []
    with count_messages("ingest", quiet) as progress:
        taken = ingest_into(
            writer_of(open_engine(settings), settings),
            files,
            settings.ingest.columns,
            TABLES[format_],
            settings.retention,
            progress,
        )
        for ingested in taken:
            results.append(ingested)
            if not quiet:
                print_line(_sentence(ingested))
    return results


def ingest_raw(
    settings: Settings, location: str, files: list[str], raw_source: str | None, quiet: bool
) -> list[RawIngestResult]:
    """Ingest raw files with a progress bar on a terminal, and say what became of each unless `quiet`."""
    from windrow.ingest.raw_files import ingest as ingest_into

    results = []
    with byte_count("ingest", quiet) as progress:
        taken = ingest_into(
            location,
            files,
            WallClock().now,
            settings.retention,
            raw_source=raw_source,
            part=settings.format,
            progress=progress,
        )
        for ingested in taken:
            results.append(ingested)
            if not quiet:
                print_line(_raw_sentence(ingested), markup=False)
    return results


def _raw_sentence(ingested: RawIngestResult) -> str:
    if ingested.already_ingested:
        return f"{ingested.file}: nothing new, the depot has it already."
    size, chunks = pluralize(ingested.byte_count, "byte"), pluralize(ingested.chunk_count, "chunk")
    several = (
        f"{ingested.version_count} versions of the depot, the last one"
        if ingested.version_count > 1
        else "depot version"
    )
    behind = (
        f", behind {pluralize(ingested.resumed_at_byte, 'byte')} that were there" if ingested.resumed_at_byte else ""
    )
    return f"{ingested.file}: {size} as {chunks} in {several} {ingested.depot_version}{behind}."


def _sentence(ingested: IngestResult) -> str:
    if ingested.already_ingested:
        return f"{ingested.file}: nothing new, the depot has it already."
    note = " No arrival times: received_at = event_time." if ingested.stamped_by_event_time else ""
    version = ingested.depot_version
    return f"{ingested.file}: {pluralize(ingested.message_count, 'message')} in depot version {version}.{note}"
