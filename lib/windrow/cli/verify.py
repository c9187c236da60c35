"""The command `windrow verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.shared_options import Call, Named, command, count, say
from windrow.cli.terminal import aside
from windrow.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status as Spinner

    from windrow.topology.verify import TopologyReport
    from windrow.verify.report import Conclusion, Report


MOST = 5_000_000


@command("config depot ledger engine", example="windrow verify --at 12 --at 40   or   windrow verify words:topology")
def verify(
    call: Call,
    topology: Named = None,
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
    ] = MOST,
    all_: Annotated[bool, typer.Option("--all", help="Derive the batches again of all streams.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit status 1 also where something could not be checked.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="For a topology: run its microbatches again, and compare the states.")
    ] = False,
) -> int:
    """Check that the ledger holds every message exactly once.

    It looks for each message of the depot in the ledger. Code that is independent of the batcher then derives from the
    log the processing times, the rejections with their reasons and the batches of each stream, message by message, and
    compares them with the ledger. Exit status 1 on any difference. For a topology it checks that each row of its depots
    was taken once, and that the files of its states are sound.
    """
    if topology is not None:
        if at or all_ or most != MOST:
            raise SettingsError("--at, --most and --all do not apply to a topology", "--replay and --strict do.")
    elif replay:
        raise SettingsError("--replay needs a topology", "To replay the ledger of the batcher, use `windrow replay`.")
    with aside.status("verifying") as spinner:
        if topology is None:
            report, books = _of_batcher(call, spinner, at, None if all_ else most)
        else:
            report, books = _of_topology(call, spinner, topology, replay)
    call.answer(report.to_dict(), tell=lambda: _print(report, books))
    return 0 if report.ok and (report.complete or not strict) else 1


def _of_topology(call: Call, spinner: Spinner, topology: str, replay: bool) -> tuple[Conclusion, Iterator[str]]:
    """Verify a topology; return also its books, in lines."""
    from windrow.topology.verify import verify_topology

    given = call.topology(topology)
    report = verify_topology(*given, replay, progress=lambda what: spinner.update(f"verifying {what}"))
    return report, _books_of_topology(report)


def _books_of_topology(report: TopologyReport) -> Iterator[str]:
    for depot in report.depots:
        counted = "not counted" if depot.counted is None else f"{depot.counted:,} there"
        versions = "nothing read" if depot.first is None else f"versions {depot.first} to {depot.last}"
        yield f"depot {depot.name}, {versions}: {count(depot.taken, 'row')} taken, {counted}"
    for state in report.states:
        again = "" if state.replayed is None else f"; replayed {state.replayed[:16]}"
        held = f"{count(state.rows, 'row')} in {count(state.files, 'file')}"
        yield f"state {state.name}: {held}, digest {state.digest[:16]}{again}"


def _of_batcher(
    call: Call, spinner: Spinner, at: list[int] | None, most: int | None
) -> tuple[Conclusion, Iterator[str]]:
    """Verify the ledger of a batcher; return also its books, in lines."""
    from windrow.verify import verify as check

    with call.readable_settings() as chosen:
        report = check(
            chosen.depot,
            chosen.ledger,
            at or None,
            progress=lambda what, done, total: spinner.update(f"verified {what}, step {done} of {total}"),
            columns=chosen.depot_columns,
            most=most,
            max_memory_bytes=chosen.max_memory_bytes,
        )
    return report, _books_of_batcher(report)


def _books_of_batcher(report: Report) -> Iterator[str]:
    for books in report.books:
        by_format = f" ({books.rejected_by_format:,} of them by the format)" if books.rejected_by_format else ""
        yield (
            f"ledger version {books.ledger_version} (depot version {books.depot_version}, "
            f"{count(books.microbatches, 'microbatch')}): {count(books.messages_read, 'message')} read = "
            f"{books.in_open_batches:,} in open batches + {books.in_closed_batches:,} in closed batches "
            f"+ {books.rejected:,} rejected{by_format}"
        )
        yield (
            f"  against the depot: {books.ok:,} ok, {books.lost:,} lost, {books.duplicated:,} duplicated, "
            f"{books.unexpected:,} unexpected"
        )
        if books.unchecked:
            yield f"  not checked: {books.unchecked:,} of {count(books.messages_read, 'message')}"
        yield (
            f"  derived again: {count(books.decided, 'decision')}, "
            f"the batches of {books.derived_streams:,} of {count(books.streams, 'stream')}"
        )


def _print(report: Conclusion, books: Iterator[str]) -> None:
    """Print the books, what could not be checked, and each difference with its first examples."""
    for line in books:
        say(line, markup=False)
    for finding in report.findings:
        say(f"not checked: {finding}", markup=False)
    for difference in report.differences:
        where = "" if difference.ledger_version < 0 else f" in ledger version {difference.ledger_version}"
        say(f"[red]difference[/red]{where}: {difference.check}")
        say(f"  expected {difference.expected}, found {difference.found}", markup=False)
        for example in difference.examples[:3]:
            say(f"    {example}", markup=False)
    unchecked = "[yellow]not checked: what is named above; in the rest no difference[/yellow]"
    good = "[green]no difference[/green]" if report.complete else unchecked
    say(good if report.ok else f"[red]{count(len(report.differences), 'difference')}[/red]")
