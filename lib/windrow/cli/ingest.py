"""The command `windrow ingest`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape

from windrow.cli.progress import byte_count, count_messages
from windrow.cli.shared_options import CommandContext, command, print_line, print_markup, refuse, text_table
from windrow.cli.terminal import stdout_console
from windrow.errors import SettingsError
from windrow.formats.installed import names
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock
from windrow.settings.path_cache import INGEST_RAW

if TYPE_CHECKING:
    from windrow.ingest.format_check import FormatCheckResult
    from windrow.ingest.ingest import Format, IngestResult
    from windrow.ingest.raw_files import RawIngestResult
    from windrow.settings.settings import Settings

R = TypeVar("R")
TABLES: dict[str, Format] = {"parquet": "parquet", "delta": "delta"}
MAX_CELL = 40  # letters that --check shows of a value


@command("config depot engine", example="windrow ingest data/*.parquet   or   windrow ingest readings.csv --check")
def ingest(
    call: CommandContext,
    files: Annotated[
        list[str], typer.Argument(help="Files, or Delta tables with --format delta; - is standard input, if raw.")
    ],
    format_: Annotated[str, "parquet or delta; for raw files the type of [format], such as csv."] = "parquet",
    raw_source: Annotated[str | None, "Raw source to store a raw file as. Default: its path as given."] = None,
    check: Annotated[bool, "Only read raw files as a run would, and show good and bad records."] = False,
    rejects: Annotated[str | None, "With --check: new file for the bytes of the bad records."] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="With --check: how many good and how many bad records to show.")
    ] = 5,
) -> int:
    """Append files to the depot, each file once.

    You can run it again with the same files. `ingest.columns` maps their columns. Raw files go unchanged into a raw
    depot, in chunks. --check neither needs nor writes a depot: it shows the first bad records with line, field and
    reason, and what `depot.columns` makes of the good ones; exit status 1 for a bad record.
    """
    if check:
        return _check(call, files, rejects, sample)
    refuse((rejects is not None, "--rejects needs --check", "Add --check, or leave --rejects out."))
    if format_ not in TABLES and format_ in names():
        chosen = call.path_settings("depot", instead=INGEST_RAW)
        type_ = chosen.format.type
        differs = f"--format {format_}, but [format] type = {type_!r}"
        refuse((type_ not in {None, format_}, differs, "Make them the same, or leave out --format."))
        read = ingest_raw(chosen, chosen.depot, files, raw_source, quiet=call.json)
        size, chunks = (sum(getattr(result, name) for result in read) for name in ("byte_count", "chunk_count"))
        call.answer({"byte_count": size, "chunk_count": chunks, "files": read})
        return 0
    refuse((raw_source is not None, f"--raw-source is for raw files, not for --format {format_}", "Leave it out."))
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
    with count_messages("ingest", quiet) as progress:
        writer = writer_of(open_engine(settings), settings)
        columns, kind = settings.ingest.columns, TABLES[format_]
        taken = ingest_into(writer, files, columns, kind, settings.retention, progress)
        return list(_tell_each(taken, _sentence, quiet))


def ingest_raw(
    settings: Settings, location: str, files: list[str], raw_source: str | None, quiet: bool
) -> list[RawIngestResult]:
    """Ingest raw files as `ingest_files` does other files."""
    from windrow.ingest.raw_files import ingest as ingest_into

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
        return list(_tell_each(taken, _raw_sentence, quiet))


def _tell_each(results: Iterable[R], sentence: Callable[[R], str], quiet: bool) -> Iterator[R]:
    for result in results:
        if not quiet:
            print_line(sentence(result))
        yield result


def _raw_sentence(ingested: RawIngestResult) -> str:
    if ingested.already_ingested:
        return f"{ingested.file}: nothing new; the depot already has it."
    size, chunks = pluralize(ingested.byte_count, "byte"), pluralize(ingested.chunk_count, "chunk")
    count, before = ingested.version_count, ingested.resumed_at_byte
    several = f"{count} versions of the depot, the last one" if count > 1 else "depot version"
    behind = f", after {pluralize(before, 'byte')} that were already there" if before else ""
    return f"{ingested.file}: {size} as {chunks} in {several} {ingested.depot_version}{behind}."


def _sentence(ingested: IngestResult) -> str:
    if ingested.already_ingested:
        return f"{ingested.file}: nothing new; the depot already has it."
    note = " No arrival times: received_at = event_time." if ingested.stamped_by_event_time else ""
    version = ingested.depot_version
    return f"{ingested.file}: {pluralize(ingested.message_count, 'message')} in depot version {version}.{note}"


def _check(call: CommandContext, files: list[str], rejects: str | None, sample: int) -> int:
    """Read files as a run would, and print good and bad records; the exit status is 1 for a bad record.

    It shows the first bad records with line, field and reason, the first good records, and the messages that
    `depot.columns` makes of them.
    """
    from windrow.ingest.format_check import FormatChecker

    trial = FormatChecker(call.settings())
    with byte_count("check", quiet=call.json) as progress:
        checked = trial.files(files, WallClock().now(), rejects, sample, progress)
    call.answer(checked, tell=lambda: _print_check(checked, rejects))
    return 1 if checked.rejected else 0


def _print_check(checked: FormatCheckResult, rejects: str | None) -> None:
    for file in checked.files:
        bad = f", {file.rejected:,} rejected ({pluralize(file.rejected_byte_count, 'byte')})" if file.rejected else ""
        several = f" ({pluralize(file.row_count, 'row')})" if file.row_count != file.accepted_count else ""
        good = f"{pluralize(file.accepted_count, 'good record')}{several}"
        print_line(f"{file.file}: {pluralize(file.byte_count, 'byte')}, {good}{bad}")
    if checked.rejected:
        _print_rejects(checked)
    if checked.sample:
        typed = [f"{name}\n{type_}" for name, type_ in checked.fields.items()]
        rows = sum(file.row_count for file in checked.files)
        kind = "good record" if rows == checked.accepted_count else "row"
        first = "the first" if rows > len(checked.sample) else "all"
        _print_table(f"{first} of {pluralize(rows, kind)}", typed, checked.sample)
    if checked.unused:
        names = ", ".join(checked.unused)
        print_line(f"not converted, because no expression uses it: {names} (strict = true converts all)")
    if checked.messages:
        _print_table("as messages", list(checked.messages[0]), checked.messages)
    if checked.note:
        print_line(f"{'Of them' if checked.messages else 'They yield no messages:'} {checked.note}")
    if rejects is not None and checked.rejected:
        print_line(f"{rejects}: the bytes of {pluralize(checked.rejected, 'bad record')}.")


def _print_rejects(checked: FormatCheckResult) -> None:
    """Print the first bad records: where each begins, as editors accept it, why it is bad, and how it begins."""
    from windrow.ingest.format_check.shown import printable

    reasons = ", ".join(f"{number:,} {reason}" for reason, number in checked.reasons.items())
    print_markup(f"[bold]rejected[/bold]: {reasons}")
    for reject in checked.rejects:
        line = "" if reject.line is None else f":{reject.line}"
        why = printable(reject.detail if reject.field is None else f"{reject.field}: {reject.detail}")
        place = f"[bold]{escape(reject.file + line)}[/bold], byte {reject.offset:,}"
        print_markup(f"  {place}: [red]{reject.reason}[/red] {escape(why)}")
        if reject.record_preview:
            print_line(f"      {reject.record_preview}")
    more = checked.rejected - len(checked.rejects)
    if more > 0:
        print_line(f"  and {more:,} more: --sample {checked.rejected}, or --rejects FILE")


def _print_table(title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    cells = ([_cell(value) for value in row.values()] for row in rows)
    stdout_console.print(text_table(map(escape, names), cells, title=title))


def _cell(value: Any) -> str:
    """Return a value as shown; NULL differs by its colour from the text NULL, and from no value at all."""
    if value is None:
        return "[dim]NULL[/dim]"
    from windrow.ingest.format_check.shown import printable

    text = printable(str(value))
    return escape(text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}...")
