"""The command `windrow export`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

from windrow.cli.progress import steps
from windrow.cli.shared_options import CommandContext, Key, Source, command, print_line
from windrow.cli.terminal import stderr_console
from windrow.errors import OutputFileError
from windrow.model import timestamps as moments
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    from windrow.reading.export import ExportResult


@command("config ledger engine", example="windrow export --out closed.parquet")
def export(
    call: CommandContext,
    out: Annotated[str, "File to write; - is standard output (not for parquet)."],
    format_: Annotated[str | None, "parquet, csv, json, or raw. Default: the file's ending."] = None,
    messages: Annotated[bool, "One row for each message of the closed batches."] = False,
    pivot: Annotated[
        bool, "One row of numbers for each batch: a column for each type, or six where repeats are kept."
    ] = False,
    type_: Annotated[list[str] | None, "With --pivot: a column for this type; repeatable. Default: all."] = None,
    rejected: Annotated[bool, "The rejected messages."] = False,
    open_: Annotated[bool, "Open batches too, as they are now; the column state tells them apart."] = False,
    source: Source = None,
    key: Key = None,
    from_: Annotated[str | None, "Windows that begin at this time or later."] = None,
    to: Annotated[str | None, "Windows that begin before this time, ISO 8601."] = None,
    since: Annotated[str | None, "Only what came after this position, as printed by the previous export."] = None,
    overwrite: Annotated[bool, "Replace the file if it exists."] = False,
) -> None:
    """Write closed batches or rejected messages to a file.

    The file is parquet, csv or json, and appears only when it is complete. --messages writes a row for each message of
    the closed batches, --pivot a row of numbers for each batch. The output ends with the position from which the next
    export continues (--since). --open adds open batches: early results, which may differ in a later export.

    --rejected --format raw writes the bytes that a format refused, unchanged and in the order of raw source, chunk and
    offset, so that you can fix and ingest them again. They do not include the header of a csv.
    """
    from windrow.reading.export import ExportRows, ExportSelection
    from windrow.reading.export import export as write

    if messages + pivot + rejected > 1:
        raise OutputFileError(
            "--messages, --pivot and --rejected exclude each other", "Export each to a separate file."
        )
    if type_ and not pivot:
        raise OutputFileError("--type needs --pivot", "Add --pivot, or leave --type out.")
    if open_ and (messages or rejected):
        raise OutputFileError(
            "--open goes with neither --messages nor --rejected", "Leave out --messages and --rejected."
        )
    if call.json and out == "-":
        raise OutputFileError("--json and --out - both write to standard output", "Name a file, or leave out --json.")
    what: ExportRows = "messages" if messages else "pivot" if pivot else "rejected" if rejected else "batches"
    start, end = moments.event_range(from_, to)
    choice = ExportSelection(what, key, start, end, since, type_ or None, source, open_)
    try:
        with call.readable_settings() as chosen, steps("export", quiet=call.json) as progress:
            result = write(chosen.ledger, out, choice, format_, overwrite, progress)
    except BrokenPipeError:  # the reader of standard output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    call.answer(result, tell=lambda: _print(result))


def _print(result: ExportResult) -> None:
    """Print what was written and how to continue; on standard error if standard output is the file."""
    nouns = {"messages": "message", "rejected": "rejected message", "bytes": "refused record"}
    noun = nouns.get(result.what, "batch")
    text = f"{result.file}: {pluralize(result.row_count, noun)}. Next export: --since {result.position}"
    if result.file == "-":
        stderr_console.print(text, markup=False, soft_wrap=True)
    else:
        print_line(text)
