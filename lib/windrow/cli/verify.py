"""The command `windrow verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import options
from windrow.cli.options import Call, aside, command, count, say

if TYPE_CHECKING:
    from windrow.verify import Books, Report


@command("config depot ledger engine", example="windrow verify --at 12 --at 40")
def verify(
    call: Call,
    at: Annotated[
        list[int] | None, typer.Option("--at", help="Ledger version to check; may be repeated. Default: the latest.")
    ] = None,
    most: Annotated[
        int,
        typer.Option(
            "--most",
            min=0,
            help="Derive the batches again of streams with so many messages together, the smallest streams first.",
        ),
    ] = 5_000_000,
    all_: Annotated[bool, typer.Option("--all", help="Derive the batches again of all streams.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit status 1 also where something could not be checked.")
    ] = False,
) -> int:
    """Check that the ledger holds every message exactly once.

    It looks for each message of the depot in the ledger. Code that is independent of the batcher then derives from the
    log the processing times, the rejections with their reasons and the batches of each stream, message by message, and
    compares them with the ledger. Exit status 1 on any difference.
    """
    from windrow.verify import verify as check

    with call.readable_settings() as chosen, aside.status("verifying") as spinner:
        report = check(
            chosen.depot,
            chosen.ledger,
            at or None,
            progress=lambda what, done, total: spinner.update(f"verified {what}, step {done} of {total}"),
            columns=chosen.depot_columns,
            most=None if all_ else most,
        )
    if call.json:
        options.print_json(report.to_dict())
    else:
        _print_report(report)
    return 0 if report.ok and (report.complete or not strict) else 1


def _print_report(report: Report) -> None:
    """Print the books of each version, what could not be checked, and every difference with its first examples."""
    for books in report.books:
        say(
            f"ledger version {books.ledger_version} (depot version {books.depot_version}, "
            f"{count(books.microbatches, 'microbatch')}): {count(books.messages_read, 'message')} read = "
            f"{books.in_open_batches:,} in open batches + {books.in_closed_batches:,} in closed batches "
            f"+ {books.rejected:,} rejected{_by_format(books)}"
        )
        say(
            f"  against the depot: {books.ok:,} ok, {books.lost:,} lost, {books.duplicated:,} duplicated, "
            f"{books.unexpected:,} unexpected"
        )
        say(
            f"  derived again: {count(books.decided, 'decision')}, "
            f"the batches of {books.derived_streams:,} of {count(books.streams, 'stream')}"
        )
    for finding in report.findings:
        say(f"not checked: {finding}", markup=False)
    for difference in report.differences:
        say(f"[red]difference[/red] in ledger version {difference.ledger_version}: {difference.check}")
        say(f"  expected {difference.expected}, found {difference.found}", markup=False)
        for example in difference.examples[:3]:
            say(f"    {example}", markup=False)
    say(_verdict(report))


def _by_format(books: Books) -> str:
    return f" ({books.rejected_by_format:,} of them by the format)" if books.rejected_by_format else ""


def _verdict(report: Report) -> str:
    if not report.ok:
        return f"[red]{count(len(report.differences), 'difference')}[/red]"
    if report.complete:
        return "[green]no difference[/green]"
    last = report.books[-1]
    what = f"{last.unchecked:,} of {count(last.messages_read, 'message')}" if last.unchecked else "what is named above"
    return f"[yellow]not checked: {what}; in the rest no difference[/yellow]"
