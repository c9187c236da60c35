"""The command `windrow tune`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow.cli.progress import steps
from windrow.cli.shared_options import CommandContext, Key, Source, command, print_line, print_markup, text_table
from windrow.cli.terminal import stderr_console, stdout_console
from windrow.errors import SettingsError
from windrow.model import timestamps as moments
from windrow.model.durations import SECOND, approximate_text
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.batching.rules import Rules
    from windrow.reading.feed import Recent
    from windrow.reading.tuning import Advice, Trial

MOST = 1_000_000
Durations = Annotated[str | None, typer.Option(help="Comma-separated durations. Default: to suit the messages.")]


@command("config depot engine", example="windrow tune --windows 5s,10s,30s --delays 1s,5s,20s --out tuning.html")
def tune(
    call: CommandContext,
    windows: Durations = None,
    delays: Durations = None,
    keep_percent: Annotated[
        float, typer.Option(min=0, max=100, help="Percent of messages that should not be too old.")
    ] = 99.0,
    key: Key = None,
    source: Source = None,
    from_: Annotated[str | None, "Messages received at this time or later."] = None,
    to: Annotated[str | None, "Messages received before this time, ISO 8601."] = None,
    limit: Annotated[int, typer.Option(min=1, help="Use this many of the latest messages.")] = MOST,
    out: Annotated[Path | None, "Also draw a picture: .html, .png, .svg or .json."] = None,
) -> None:
    """Try other windows and delays on the messages of the depot.

    One table answers which max_delay: what each rejects, and how long messages wait. The other answers which window:
    the batches, and the share of rounds of measurements that stay whole under each choice of `split_at` and
    `on_repeat`, and with windows on the calendar. --json has every pair. Sources with wrong clocks are left out. It
    writes to no table. The other rules come from the settings.
    """
    from windrow.reading import tuning
    from windrow.reading.feed import recent

    if out is not None:
        from windrow.reading import plot

        plot.require_picture(out)
    start, end = moments.event_range(from_, to)
    with call.readable_settings() as chosen, stderr_console.status("reading"):
        rules = chosen.rules.build()
        recent_messages = recent(chosen.depot, chosen.depot_columns, limit, start, end, chosen.payload_type)
        latest = WallClock().now() + chosen.max_clock_skew
        trial = tuning.Trial.of(recent_messages.messages, key, source, latest, rules)
    with steps("pairs", quiet=call.json) as progress:
        tuned = tuning.sweep(
            trial, _parse_durations(windows, "--windows"), _parse_durations(delays, "--delays"), rules, progress
        )
    advice = tuning.advise(trial, rules, keep_percent)
    if out is not None:
        plot.save(plot.tuning(tuned, rules, of=key or source), out)
    document = {
        "message_count": trial.messages,
        "read": recent_messages.messages.num_rows,
        "truncated": recent_messages.truncated,
        "depot_versions": [recent_messages.first, recent_messages.last],
        "rules": rules,
        "pairs": tuned.to_pylist(),
        "left_out": trial.left_out,
        "advice": advice,
        "file": out,
    }
    call.answer(document, tell=lambda: _tell(recent_messages, trial, rules, tuned, advice, out))


def _parse_durations(durations: str | None, flag: str) -> list[str] | None:
    """Return the durations of a flag, None without the flag. Raises SettingsError if it names none."""
    if durations is None:
        return None
    parts = [part.strip() for part in durations.split(",") if part.strip()]
    if not parts:
        raise SettingsError(f"{flag} names no duration", "Write them like 5s,10s,1m.")
    return parts


def _tell(
    recent_messages: Recent, trial: Trial, rules: Rules, tuned: pa.Table, advice: Advice, out: Path | None
) -> None:
    last = f"these are the last {recent_messages.messages.num_rows:,} (--limit; --from and --to choose others)"
    more = f" There are more: {last}." if recent_messages.truncated else ""
    versions = f"depot versions {recent_messages.first} to {recent_messages.last}"
    print_line(f"{pluralize(trial.messages, 'message')} of {versions}.{more}")
    for reason, number in trial.refused.items():
        print_line(f"  {number:,} are {reason} under any rules")
    rows = tuned.to_pylist()
    delays = sorted({row["max_delay_us"] for row in rows})
    best = next((delay for delay in delays if delay >= advice.max_delay_us), None)
    chosen = rules.max_delay if rules.max_delay in delays else best or delays[-1]
    _tell_delays(rows, rules, advice, best)
    _tell_windows([row for row in rows if row["max_delay_us"] == chosen], rules, advice)
    if out is not None:
        print_line(f"Wrote {out}.")


def _tell_delays(rows: list[dict[str, Any]], rules: Rules, advice: Advice, best: int | None) -> None:
    """Print what each max_delay does, with the window tried with most of them, preferably the one in force."""
    tried = Counter(row["window_us"] for row in rows)
    window = max(tried, key=lambda length: (tried[length], length == rules.window, -length))
    rows = [row for row in rows if row["window_us"] == window]
    marks = {best: "enough", rules.max_delay: "now, enough" if best == rules.max_delay else "now"}
    print_markup(
        f"\n[bold]Which max_delay?[/bold] It is how long batches wait; here with window = {rows[0]['window']}:"
    )
    _print(DELAYS, [(*_delay_cells(row), marks.get(row["max_delay_us"], "")) for row in rows])
    print_line("rejected: messages in no batch; wait: until a batch can close, for half of the messages and 95 %;")
    print_line(
        f"now: in force; enough: the shortest max_delay here that keeps {advice.keep_percent:g} %{_explain_stars(rows)}"
    )
    if rows[-1]["duplicate"]:
        twice = f"{rows[-1]['duplicate']:,} of the {rows[-1]['rejected']:,}"
        print_line(f"with {rows[-1]['max_delay']} {twice} rejected came twice, which no max_delay changes")
    print_line(*advice.why)


def _tell_windows(rows: list[dict[str, Any]], rules: Rules, advice: Advice) -> None:
    """Print what each window does; all rows have the same max_delay."""
    from windrow.reading.tuning import advise_repeats, advise_window

    print_markup(
        f"\n[bold]Which window?[/bold] It is what belongs together; here with max_delay = {rows[0]['max_delay']}:"
    )
    _print(WINDOWS, [(*_window_cells(row), "now" if row["window_us"] == rules.window else "") for row in rows])
    print_line(
        "in one: messages in a batch, on average; slivers: batches with less than a quarter of the messages of the"
    )
    print_line('middle one of their stream; whole: rounds of measurements in one batch, with split_at = "message" or')
    print_line(
        f'"midpoint", with on_repeat = "keep", and with that and window_anchor = "aligned"{_explain_stars(rows)}'
    )
    now = next((row for row in rows if row["window_us"] == rules.window), rows[0])
    print_line(*advise_window(rows, rules, advice.max_delay_us), *advise_repeats(now))


DELAYS = ("max_delay", "rejected", "wait", "95 %", "")
WINDOWS = ("window", "batches", "in one", "slivers", "whole: message", "midpoint", "keep", "aligned", "")


def _explain_stars(rows: list[dict[str, Any]]) -> str:
    return "; *: a window no longer than max_delay + max_lead" if any(row["warning"] for row in rows) else ""


def _print(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table whose last column labels the rows."""
    table = text_table(heads, (), padding=0)
    for column in table.columns[:-1]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row, style={"": None, "enough": "green"}.get(row[-1], "bold"))
    stdout_console.print(table)


def _delay_cells(row: dict[str, Any]) -> list[str]:
    waits = [_seconds(row[f"wait_seconds_{name}"]) for name in ("median", "p95")]
    return [row["max_delay"] + "*" * bool(row["warning"]), f"{row['rejected_percent']:.2f} %", *waits]


def _window_cells(row: dict[str, Any]) -> list[str]:
    mean = row["batch_messages_mean"]
    whole = [row[f"intact_rounds_percent_{name}"] for name in ("message", "midpoint", "keep", "aligned")]
    return [
        row["window"] + "*" * bool(row["warning"]),
        f"{row['batch_count']:,}",
        "" if mean is None else f"{mean:,.1f}",
        f"{row['slivers']:,}",
        *("" if percent is None else f"{percent:.0f} %" for percent in whole),
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else approximate_text(round(10 * value) * SECOND // 10)
