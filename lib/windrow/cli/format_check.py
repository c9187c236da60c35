"""What `windrow ingest --check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from windrow.cli.progress import byte_count
from windrow.cli.shared_options import CommandContext, print_line, text_table
from windrow.cli.terminal import stdout_console
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.ingest.format_check import FormatCheckResult

MAX_CELL = 40


def check_files(call: CommandContext, files: list[str], rejects: str | None, sample: int) -> int:
    """Read files as a run would, and print good and bad records; the exit status is 1 for a bad record.

    It shows the first bad records with line, field and reason, the first good records, and the messages that
    `depot.columns` makes of them.
    """
    from windrow.ingest.format_check import FormatChecker

    trial = FormatChecker(call.settings())
    with byte_count("check", quiet=call.json) as progress:
        checked = trial.files(files, WallClock().now(), rejects, sample, progress)
    call.answer(checked, tell=lambda: _print(checked, rejects))
    return 1 if checked.rejected else 0


def _print(checked: FormatCheckResult, rejects: str | None) -> None:
    """Print what became of each file, the first bad records, the first good ones, and what they become."""
    for file in checked.files:
        bad = f", {file.rejected:,} rejected ({pluralize(file.rejected_byte_count, 'byte')})" if file.rejected else ""
        several = f" ({pluralize(file.row_count, 'row')})" if file.row_count != file.accepted_count else ""
        good = f"{pluralize(file.accepted_count, 'good record')}{several}"
        print_line(f"{file.file}: {pluralize(file.byte_count, 'byte')}, {good}{bad}", markup=False)
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
        print_line(f"not converted, because no expression uses it: {names} (strict = true converts all)", markup=False)
    if checked.messages:
        _print_table("as messages", list(checked.messages[0]), checked.messages)
    if checked.note:
        print_line(
            f"{'Of them' if checked.messages else 'No messages were made of them:'} {checked.note}", markup=False
        )
    if rejects is not None and checked.rejected:
        print_line(f"{rejects}: the bytes of {pluralize(checked.rejected, 'bad record')}.", markup=False)


def _print_rejects(checked: FormatCheckResult) -> None:
    """Print the first bad records: where each begins, as editors take it, why it is bad, and how it begins."""
    from windrow.ingest.format_check.shown import printable

    print_line(
        "[bold]rejected[/bold]: " + ", ".join(f"{number:,} {reason}" for reason, number in checked.reasons.items())
    )
    for reject in checked.rejects:
        line = "" if reject.line is None else f":{reject.line}"
        why = printable(reject.detail if reject.field is None else f"{reject.field}: {reject.detail}")
        place = f"[bold]{escape(reject.file + line)}[/bold], byte {reject.offset:,}"
        print_line(f"  {place}: [red]{reject.reason}[/red] {escape(why)}")
        if reject.record_preview:
            print_line(f"      {reject.record_preview}", markup=False)
    more = checked.rejected - len(checked.rejects)
    if more > 0:
        print_line(f"  and {more:,} more: --sample {checked.rejected}, or --rejects FILE")


def _print_table(title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    stdout_console.print(
        text_table(map(escape, names), ([_cell(value) for value in row.values()] for row in rows), title=title)
    )


def _cell(value: Any) -> str:
    """Return a value as it is shown; NULL differs from the text NULL in its colour, and from none at all."""
    if value is None:
        return "[dim]NULL[/dim]"
    from windrow.ingest.format_check.shown import printable

    text = printable(str(value))
    return escape(text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}...")
