"""The command `windrow tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow.cli.progress import steps
from windrow.cli.shared_options import Call, Key, Source, command, count, grid, say
from windrow.cli.terminal import aside, people
from windrow.errors import SettingsError
from windrow.model import timestamps as moments
from windrow.model.durations import SECOND, span
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.batching.rules import Rules
    from windrow.reading.recent import Recent
    from windrow.reading.tuning import Advice, Trial

MOST = 1_000_000
Durations = Annotated[str | None, typer.Option(help="Durations with commas between. Default: to suit the messages.")]


@command("config depot engine", example="windrow tune --windows 5s,10s,30s --delays 1s,5s,20s --out tuning.html")
def tune(
    call: Call,
    windows: Durations = None,
    delays: Durations = None,
    keep: Annotated[
        float, typer.Option("--keep", min=0, max=100, help="Percent of messages that should not be too old.")
    ] = 99.0,
    key: Key = None,
    source: Source = None,
    from_: Annotated[str | None, typer.Option("--from", help="Messages received at this time or later.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Messages received before this time, ISO 8601.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Try the last so many messages.")] = MOST,
    out: Annotated[
        Path | None, typer.Option("--out", help="A picture of it as well: .html, .png, .svg or .json.")
    ] = None,
) -> None:
    """Try other windows and delays on the messages of the depot.

    For each pair it shows the batches, the rejections, how long messages wait, and the share of rounds of measurements
    that stay whole under each choice of `split_at` and `repeats`, and with windows on the calendar. Sources with wrong
    clocks are left out. It writes to no table. The other rules come from the settings.
    """
    from windrow.reading import plot, tuning
    from windrow.reading.recent import recent

    if out is not None:
        plot.require_picture(out)
    begin, end = moments.event_range(from_, to)
    with call.readable_settings() as chosen, aside.status("reading"):
        rules = chosen.rules.build()
        found = recent(chosen.depot, chosen.depot_columns, limit, begin, end, chosen.payload_type)
        latest = WallClock().now() + chosen.max_clock_skew
        trial = tuning.Trial.of(found.messages, key, source, latest, rules, chosen.warn)
    with steps("pairs", quiet=call.json) as progress:
        tuned = tuning.sweep(trial, _listed(windows, "--windows"), _listed(delays, "--delays"), rules, progress)
    advice = tuning.advise(trial, rules, keep)
    if out is not None:
        plot.save(plot.tuning(tuned, rules, of=key or source), out)
    document = _document(found, trial, rules, tuned, advice, out)
    call.answer(document, tell=lambda: _tell(found, trial, rules, tuned, advice, out))


def _listed(durations: str | None, flag: str) -> list[str] | None:
    """Return the durations of a flag, None without it. Raises SettingsError when it names none."""
    if durations is None:
        return None
    parts = [part.strip() for part in durations.split(",") if part.strip()]
    if not parts:
        raise SettingsError(f"{flag} names no duration", "Write them like 5s,10s,1m.")
    return parts


def _document(
    found: Recent, trial: Trial, rules: Rules, tuned: pa.Table, advice: Advice, out: Path | None
) -> dict[str, Any]:
    return {
        "messages": trial.messages,
        "read": found.messages.num_rows,
        "cut": found.cut,
        "depot_versions": [found.first, found.last],
        "rules": rules,
        "pairs": tuned.to_pylist(),
        "left_out": trial.left_out,
        "advice": advice,
        "file": out,
    }


def _tell(found: Recent, trial: Trial, rules: Rules, tuned: pa.Table, advice: Advice, out: Path | None) -> None:
    """Print what was tried, a line for each pair, and the advice with its reason."""
    last = f"these are the last {found.messages.num_rows:,} (--limit; --from and --to choose others)"
    more = f" There are more: {last}." if found.cut else ""
    say(f"{count(trial.messages, 'message')} of depot versions {found.first} to {found.last}.{more}")
    for reason, number in trial.refused.items():
        say(f"  {number:,} are {reason} under any rules")
    heads = ("window", "max_delay", "rejected", "batches", "slivers", "in one", "wait", "95 %", "whole %")
    table = grid((*heads, ""), (), padding=0)
    for column in table.columns[:-1]:
        column.justify = "right"
    delays = tuned["max_delay_us"].to_pylist()
    best = min((delay for delay in delays if delay >= advice.max_delay_us), default=None)
    for row in tuned.to_pylist():
        now = (row["window_us"], row["max_delay_us"]) == (rules.window, rules.max_delay)
        enough = row["max_delay_us"] == best
        notes = {"now": now, "enough": enough}
        style = "bold" if now else "green" if enough else None
        table.add_row(*_cells(row), ", ".join(note for note, holds in notes.items() if holds), style=style)
    people.print(table)
    say(f"now: the rules in force; enough: the shortest max_delay here that keeps {advice.keep_percent:g} %;")
    say("*: a window no longer than max_delay + max_leap; in one: messages in a batch, on average;", markup=False)
    say("wait: how long messages wait at least until their batch closes, half of them and 95 %;")
    say("slivers: batches with less than a quarter of the messages of the middle one of their stream;")
    say('whole: rounds of measurements in one batch, with split_at = "message", "midpoint", and repeats = "keep",')
    say('without and with window_start = "aligned".')
    for line in (*advice.why, *_of_rounds(tuned, rules, best), *([] if out is None else [f"Wrote {out}."])):
        say(line, markup=False)


def _of_rounds(tuned: pa.Table, rules: Rules, best: int | None) -> tuple[str, ...]:
    """Say what share of the rounds stays whole, under the rules in force if they were tried, else with enough delay."""
    from windrow.reading.tuning import advise_repeats

    rows = tuned.to_pylist()
    now = [row for row in rows if (row["window_us"], row["max_delay_us"]) == (rules.window, rules.max_delay)]
    return advise_repeats([*now, *(row for row in rows if row["max_delay_us"] == best), *rows][0])


def _cells(row: dict[str, Any]) -> list[str]:
    mean = row["batch_messages_mean"]
    whole = [row[f"whole_percent_{name}"] for name in ("message", "midpoint", "keep", "aligned")]
    return [
        row["window"] + ("*" if row["warning"] else ""),
        row["max_delay"],
        f"{row['rejected_percent']:.2f} %",
        f"{row['batches']:,}",
        f"{row['slivers']:,}",
        "" if mean is None else f"{mean:,.1f}",
        *(_seconds(row[f"wait_seconds_{name}"]) for name in ("median", "p95")),
        "" if None in whole else "/".join(f"{percent:.0f}" for percent in whole),
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else span(round(10 * value) * SECOND // 10)
