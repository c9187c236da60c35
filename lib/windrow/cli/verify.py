"""The command `windrow verify`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli.shared_options import CommandContext, TopologyArgument, command, print_line, print_markup, refuse
from windrow.cli.terminal import stderr_console
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windrow.topology.verify import TopologyReport
    from windrow.verify.report import Report, ReportStatus, VerifyProgress


MAX_MESSAGES = 5_000_000


@command(
    "config depot ledger engine",
    example="windrow verify --ledger-version 12 --ledger-version 40   or   windrow verify words:topology",
)
def verify(
    call: CommandContext,
    topology: TopologyArgument = None,
    ledger_version: Annotated[
        list[int] | None, "Ledger version to check; may be repeated. Default: the latest."
    ] = None,
    max_messages: Annotated[
        int,
        typer.Option(
            min=0,
            help="Derive the batches again for at most this many messages, the smallest streams first.",
        ),
    ] = MAX_MESSAGES,
    all_: Annotated[bool, "Derive the batches of all streams again."] = False,
    since: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Check what came after this ledger version; 0: everything. Default: the one in `[verify] record`.",
        ),
    ] = None,
    strict: Annotated[bool, "Exit status 1 also if something could not be checked."] = False,
    replay: Annotated[bool, "For a topology: run its microbatches again, and compare the states."] = False,
) -> int:
    """Check that the ledger holds every message exactly once.

    It looks for each message of the depot in the ledger. Code that is independent of the batcher then derives from the
    log the processing times, the rejections with their reasons and the batches of each stream, message by message, and
    compares them with the ledger. Exit status 1 on any difference. For a topology it checks that each row of its depots
    was read once, and that the files of its states are intact.
    """
    if topology is not None:
        of_batcher = ledger_version or all_ or max_messages != MAX_MESSAGES or since is not None
        names = "--ledger-version, --since, --max-messages and --all"
        refuse((of_batcher, f"{names} do not apply to a topology", "Only --replay and --strict apply."))
        return _of_topology(call, topology, replay, strict)
    both = ledger_version and since is not None
    refuse(
        (replay, "--replay needs a topology", "To replay the ledger of the batcher, use `windrow replay`."),
        (both, "--since and --ledger-version exclude each other", "--since checks the latest version."),
    )
    return _of_batcher(call, ledger_version, since, None if all_ else max_messages, strict)


def _of_topology(call: CommandContext, topology: str, replay: bool, strict: bool) -> int:
    from windrow.topology.verify import verify_topology

    topology_, verifying = call.topology(topology), "the topology"

    def progress(what: str) -> None:
        nonlocal verifying
        verifying = what
        spinner.update(f"verifying {what}")

    try:
        with stderr_console.status("verifying") as spinner:
            report = verify_topology(*topology_, replay, progress=progress)
    except KeyboardInterrupt:
        call.answer({"verifying": verifying}, f"stopped while verifying {verifying}")
        return 3
    return _answer(call, report, _books_of_topology(report), strict)


def _books_of_topology(report: TopologyReport) -> Iterator[str]:
    for depot in report.depots:
        counted = "not counted" if depot.depot_row_count is None else f"{depot.depot_row_count:,} in the depot"
        versions = "nothing read" if depot.first is None else f"versions {depot.first} to {depot.last}"
        yield f"depot {depot.name}, {versions}: {pluralize(depot.recorded_row_count, 'row')} recorded, {counted}"
    for state in report.states:
        again = "" if state.replayed is None else f"; replayed {state.replayed[:16]}"
        content = f"{pluralize(state.row_count, 'row')} in {pluralize(state.file_count, 'file')}"
        yield f"state {state.name}: {content}, digest {state.digest[:16]}{again}"


def _of_batcher(
    call: CommandContext, ledger_version: list[int] | None, since: int | None, max_messages: int | None, strict: bool
) -> int:
    """Verify the ledger of a batcher, and record what was verified; on Ctrl-C, say how far it came."""
    from windrow.verify import Reliance
    from windrow.verify import verify as check
    from windrow.verify.base import write_record
    from windrow.verify.report import VerifyProgress

    standing = VerifyProgress()

    def progress(now: VerifyProgress) -> None:
        nonlocal standing
        standing = now
        spinner.update(f"verifying {_how_far(now)}")

    with call.readable_settings("books") as chosen:
        record = "" if ledger_version else chosen.verify.record
        try:
            with stderr_console.status("verifying") as spinner:
                report = check(
                    chosen.depot,
                    chosen.ledger,
                    ledger_version or None,
                    progress=progress,
                    columns=chosen.depot_columns,
                    max_messages=max_messages,
                    max_memory_bytes=chosen.max_memory_bytes,
                    relying_on=Reliance(since, record),
                )
        except KeyboardInterrupt:
            call.answer(asdict(standing), f"stopped while verifying {_how_far(standing)}")
            return 3
        status = _answer(call, report, _books_of_batcher(report), strict)
        if record and write_record(report, record, datetime.now(UTC)) and not call.json:
            print_line(f"recorded in {record}: the next run continues from here")
    return status


def _how_far(standing: VerifyProgress) -> str:
    if standing.ledger_version < 0:
        return "the files of both tables, and reading the depot"
    left = pluralize(standing.part_count - standing.parts_done, "part")
    differences = pluralize(standing.difference_count, "difference") if standing.difference_count else "no difference"
    parts = pluralize(standing.part_count, "part")
    return (
        f"ledger version {standing.ledger_version}: {standing.parts_done:,} of {parts} done, {left} left; "
        f"{standing.proven_stream_count:,} of {pluralize(standing.stream_count, 'stream')} proven; "
        f"{standing.derived_message_count:,} of {pluralize(standing.message_count, 'message')} derived again; "
        f"{differences} so far"
    )


def _describe_reliance(report: Report) -> Iterator[str]:
    if report.since_refused:
        yield f"everything was verified, because there is nothing to rely on: {report.since_refused}"
    if since := report.since:
        recorded = f"verified on {since.verified_at}" if since.verified_at else "without a record"
        yield (
            f"relies on ledger version {since.ledger_version}, {recorded}: microbatches up to {since.microbatch:,}, "
            f"depot up to version {since.depot_version:,}; open then: "
            f"{pluralize(since.open_message_count, 'message')} in {pluralize(since.open_batch_count, 'batch')}"
        )


def _books_of_batcher(report: Report) -> Iterator[str]:
    yield from _describe_reliance(report)
    read = "open then or read since" if report.since else "read"
    for books in report.books:
        by_format = f" ({books.rejected_by_format:,} of them by the format)" if books.rejected_by_format else ""
        yield (
            f"ledger version {books.ledger_version} (depot version {books.depot_version}, "
            f"{pluralize(books.microbatch_count, 'microbatch')}): {pluralize(books.messages_read, 'message')} {read} = "
            f"{books.in_open_batches:,} in open batches + {books.in_closed_batches:,} in closed batches "
            f"+ {books.rejected:,} rejected{by_format}"
        )
        yield (
            f"  against the depot: {books.matched:,} ok, {books.lost:,} lost, {books.duplicated:,} duplicated, "
            f"{books.unexpected:,} unexpected"
        )
        if books.unchecked:
            yield f"  not checked: {books.unchecked:,} of {pluralize(books.messages_read, 'message')}"
        yield (
            f"  derived again: {pluralize(books.redecided, 'decision')}, "
            f"the batches of {books.derived_stream_count:,} of {pluralize(books.stream_count, 'stream')}"
        )


def _answer(call: CommandContext, report: ReportStatus, books: Iterator[str], strict: bool) -> int:
    call.answer(report.to_dict(), tell=lambda: _print(report, books))
    return 0 if report.ok and (report.complete or not strict) else 1


def _print(report: ReportStatus, books: Iterator[str]) -> None:
    print_line(*books)
    for finding in report.findings:
        print_line(f"not checked: {finding}")
    for difference in report.differences:
        where = "" if difference.ledger_version < 0 else f" in ledger version {difference.ledger_version}"
        print_markup(f"[red]difference[/red]{where}: {difference.check}")
        print_line(f"  expected {difference.expected}, found {difference.found}")
        for example in difference.examples[:3]:
            print_line(f"    {example}")
    unchecked = "[yellow]not checked: see above; no difference in the rest[/yellow]"
    good = "[green]no difference[/green]" if report.complete else unchecked
    print_markup(good if report.ok else f"[red]{pluralize(len(report.differences), 'difference')}[/red]")
