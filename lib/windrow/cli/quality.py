"""The command `windrow quality`."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.markup import escape

from windrow.cli.shared_options import CommandContext, IfExists, command, print_line, print_markup, text_table
from windrow.cli.terminal import stderr_console, stdout_console
from windrow.errors import SettingsError
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    from windrow.settings.settings import Settings
    from windrow.verify.quality import Outcome, QualityResult

Severity = Literal["critical", "warning", "info"]
COLOURS = {"critical": "red", "warning": "yellow", "info": "cyan"}
SHOWN = 5
NAMES = {"closed": "closed batch", "open": "open batch", "rejected": "rejected message"}


@command(
    "config ledger engine", example="windrow quality --fail-on warning --data-docs quality   or   windrow quality --sql"
)
def quality(
    call: CommandContext,
    fail_on: Annotated[Severity, "End with status 1 when an expectation of this severity or above fails."] = "critical",
    max_rejected: Annotated[float | None, "Warn above this share of rejected messages. Default: 0.05."] = None,
    data_docs: Annotated[str | None, "Directory for Data Docs, static HTML pages."] = None,
    sql: Annotated[bool, "Only print the invariants, as SQL to paste into an editor."] = False,
    if_exists: IfExists = False,
) -> int:
    """Check the ledger's invariants with Great Expectations.

    Exit status 1 when a critical expectation fails. Quality changes nothing. A ledger on a local disk needs no Spark,
    unless you give --engine spark. `windrow verify` checks the same invariants, and each message of the depot.
    """
    from windrow.delta.database import memory_limit

    if max_rejected is not None and not 0 <= max_rejected <= 1:
        raise SettingsError(
            f"--max-rejected {max_rejected:g} must be between 0 and 1", "It is a share: 0.01 is one percent."
        )
    if sql:
        chosen = call.settings()
        _print_sql(chosen.ledger, chosen.payload_type)
        return 0
    chosen = call.sparkless_settings("ledger")
    checked: QualityResult | None = None
    with memory_limit(chosen.max_memory_bytes), call.waiting(if_exists):
        checked = _check(chosen, max_rejected, data_docs)
        call.answer(checked.to_dict(), tell=lambda: _print(checked))
    return 1 if checked is not None and checked.failures(fail_on) else 0


def _check(chosen: Settings, max_rejected: float | None, data_docs: str | None) -> QualityResult:
    """Check on the chosen engine; start Spark if no session exists."""
    from windrow.engine import choose
    from windrow.verify import quality
    from windrow.verify.quality.great_expectations import require

    require()  # reports a missing package before Spark starts
    share = quality.MAX_REJECTED if max_rejected is None else max_rejected
    embedded = choose(chosen.engine) == "embedded"
    with stderr_console.status("reading the ledger" if embedded else "starting Spark") as spinner:
        spark = None if embedded else _session(chosen.ledger)

        def progress(what: str, done: int, total: int) -> None:
            spinner.update(f"checked {what}, step {done} of {total}")

        return quality.check(spark, chosen.ledger, None, share, data_docs, progress)


def _session(ledger: str) -> Any:
    from windrow.engine import require_spark

    require_spark()
    from windrow.engine.spark.session import find_session

    return find_session(ledger)


def _print_sql(ledger: str, payload_type: str) -> None:
    """Print each invariant as a statement that selects failing rows."""
    from windrow.delta.locations import reference
    from windrow.model.payload import parse
    from windrow.verify.invariants import SUITES, views

    over = views(reference(ledger), parse(payload_type) if payload_type else None)
    for suite, invariants in SUITES.items():
        print_line(f"-- {suite}: each statement selects the rows that fail\n")
        for invariant in invariants:
            about = f"-- {invariant.name} ({invariant.severity}): {invariant.about}"
            print_line(f"{about}\n{invariant.statement(over)};\n")


def _print(checked: QualityResult) -> None:
    rows = []
    for outcome in checked.outcomes:
        colour = "green" if outcome.passed else COLOURS[outcome.severity]
        result = f"[{colour}]{'holds' if outcome.passed else 'fails'}[/{colour}]"
        failed = "" if outcome.passed or outcome.failed_count is None else f"{outcome.failed_count:,}"
        rows.append((escape(outcome.name), outcome.severity, result, failed))
    title = f"{checked.ledger}, version {checked.ledger_version}"
    stdout_console.print(text_table(("expectation", "severity", "result", "rows"), rows, title=title))
    for failure in checked.failures("info"):
        _print_failure(failure)
    print_line(*_lines(checked))


def _print_failure(outcome: Outcome) -> None:
    colour = COLOURS[outcome.severity]
    print_markup(f"[{colour}]{outcome.severity}[/{colour}]  {escape(outcome.name)}: {escape(outcome.description)}")
    for row in outcome.rows[:SHOWN]:
        print_line("    " + "  ".join(f"{name}={_figure(value)}" for name, value in row.items()))
    more = (outcome.failed_count or 0) - SHOWN
    if outcome.rows and more > 0:
        print_line(f"    and {pluralize(more, 'row')} more")
    stdout_console.print()


def _figure(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else json_text.dumps(value, default=str)


def _lines(checked: QualityResult) -> list[str]:
    failed = checked.failures("info")
    grave = [f"{sum(outcome.severity == severity for outcome in failed)} {severity}" for severity in COLOURS]
    result = f"{', '.join(grave)} failed" if failed else "all hold"
    looked = ", ".join(pluralize(checked.row_counts[state], noun) for state, noun in NAMES.items())
    empty = [NAMES[state] for state in checked.empty_states if state in NAMES]
    return [
        f"checked {looked}, {pluralize(checked.row_counts['microbatch'], 'microbatch')}",
        *([f"nothing to check: no {', no '.join(empty)}"] if empty else []),
        *([f"Data Docs: {checked.docs}"] if checked.docs else []),
        f"{pluralize(len(checked.outcomes), 'expectation')}, {result}",
    ]
