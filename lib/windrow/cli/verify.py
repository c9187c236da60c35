"""The command `windrow verify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.shared_options import Call, Named, command, count, say
from windrow.cli.terminal import aside
from windrow.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windrow.settings.settings import Settings
    from windrow.topology.topology import Topology
    from windrow.topology.verify import TopologyReport
    from windrow.verify import Difference, Report


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
        return _verify_topology(call, *call.topology(topology), replay, strict)
    if replay:
        raise SettingsError("--replay needs a topology", "To replay the ledger of the batcher, use `windrow replay`.")
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
    call.answer(report.to_dict(), tell=lambda: _print_report(report))
    return 0 if report.ok and (report.complete or not strict) else 1


def _verify_topology(call: Call, topology: Topology, chosen: Settings, replay: bool, strict: bool) -> int:
    from windrow.topology.verify import verify_topology

    with aside.status("verifying") as spinner:
        report = verify_topology(topology, chosen, replay, progress=lambda what: spinner.update(f"verifying {what}"))
    call.answer({"ok": report.ok, "complete": report.complete} | asdict(report), tell=lambda: _print_books(report))
    return 0 if report.ok and (report.complete or not strict) else 1


def _print_books(report: TopologyReport) -> None:
    """Print the books of a topology."""
    for depot in report.depots:
        counted = "not counted" if depot.counted is None else f"{depot.counted:,} there"
        versions = "nothing read" if depot.first is None else f"versions {depot.first} to {depot.last}"
        say(f"depot {depot.name}, {versions}: {count(depot.taken, 'row')} taken, {counted}", markup=False)
    for state in report.states:
        again = "" if state.replayed is None else f"; replayed {state.replayed[:16]}"
        held = f"{count(state.rows, 'row')} in {count(state.files, 'file')}"
        say(f"state {state.name}: {held}, digest {state.digest[:16]}{again}", markup=False)
    _print_found(report.findings, report.differences)
    unchecked = "[yellow]not everything was checked; in the rest no difference[/yellow]"
    good = "[green]no difference[/green]" if report.complete else unchecked
    say(good if report.ok else f"[red]{count(len(report.differences), 'difference')}[/red]")


def _print_report(report: Report) -> None:
    """Print the books of each version, what could not be checked, and every difference with its first examples."""
    for books in report.books:
        by_format = f" ({books.rejected_by_format:,} of them by the format)" if books.rejected_by_format else ""
        say(
            f"ledger version {books.ledger_version} (depot version {books.depot_version}, "
            f"{count(books.microbatches, 'microbatch')}): {count(books.messages_read, 'message')} read = "
            f"{books.in_open_batches:,} in open batches + {books.in_closed_batches:,} in closed batches "
            f"+ {books.rejected:,} rejected{by_format}"
        )
        say(
            f"  against the depot: {books.ok:,} ok, {books.lost:,} lost, {books.duplicated:,} duplicated, "
            f"{books.unexpected:,} unexpected"
        )
        say(
            f"  derived again: {count(books.decided, 'decision')}, "
            f"the batches of {books.derived_streams:,} of {count(books.streams, 'stream')}"
        )
    _print_found(report.findings, report.differences)
    say(_verdict(report))


def _print_found(findings: Sequence[str], differences: Sequence[Difference]) -> None:
    """Print what could not be checked, and each difference with its first examples."""
    for finding in findings:
        say(f"not checked: {finding}", markup=False)
    for difference in differences:
        where = "" if difference.ledger_version < 0 else f" in ledger version {difference.ledger_version}"
        say(f"[red]difference[/red]{where}: {difference.check}")
        say(f"  expected {difference.expected}, found {difference.found}", markup=False)
        for example in difference.examples[:3]:
            say(f"    {example}", markup=False)


def _verdict(report: Report) -> str:
    if not report.ok:
        return f"[red]{count(len(report.differences), 'difference')}[/red]"
    if report.complete:
        return "[green]no difference[/green]"
    last = report.books[-1]
    what = f"{last.unchecked:,} of {count(last.messages_read, 'message')}" if last.unchecked else "what is named above"
    return f"[yellow]not checked: {what}; in the rest no difference[/yellow]"
