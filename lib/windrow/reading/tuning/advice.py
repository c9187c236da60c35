"""Advice: the shortest max_delay that keeps a given share of the messages, with the reasons in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from windrow.batching.rules import CALENDAR, Rules
from windrow.model.durations import approximate_text, format_duration
from windrow.reading.tuning.sweep import round_up
from windrow.reading.tuning.trial import Trial
from windrow.reading.warnings import OLDEST, first_names

MAJORITY = 0.5
CENTISECOND = 10_000
NAMED_SOURCES = 5
NEARLY_ALL = "of sources that are nearly all too old or too far ahead"
SETTINGS = {
    "message": 'split_at = "message"',
    "midpoint": 'split_at = "midpoint"',
    "keep": 'on_repeat = "keep"',
    "aligned": CALENDAR,
}
SIMILAR = 0.02  # the share by which batch counts may differ and still be similar
MANY = 0.1  # of all batches


@dataclass(frozen=True, slots=True)
class Advice:
    """The shortest `max_delay_us` that keeps `keep_percent` of the messages that are at most 30 days old, and why.

    `too_old` counts the messages that it rejects, `too_old_in_force` those that the rules in force reject. Both counts
    include older messages: their clocks are probably wrong, so no `max_delay` is proposed for their sake.
    """

    keep_percent: float
    max_delay_us: int
    too_old: int
    too_old_in_force: int
    why: tuple[str, ...]


def advise(trial: Trial, rules: Rules | None = None, keep_percent: float = 99.0) -> Advice:
    """Return the shortest max_delay that keeps `keep_percent` of the messages, rounded up to a usual duration.

    Only lateness decides: whether a message is too old follows from its age and max_delay alone, whatever the window
    is. There is no best window to advise: it depends on what belongs together downstream. Messages older than 30 days
    do not count; if all are older, the advice is the max_delay in force.
    """
    now, age = rules or Rules(), np.sort(np.maximum(trial.age, 0))
    counted = age[: np.searchsorted(age, OLDEST, side="right")]
    max_delay, ages = now.max_delay, []
    if counted.size:
        most = int(counted.size * (1 - keep_percent / 100) + 1e-9)
        needed = int(counted[counted.size - 1 - min(most, counted.size - 1)])
        max_delay = round_up(needed)
        others = "messages" if counted.size == age.size else "other messages"
        reached = f"{keep_percent:g} % of the {others} were at most {_age(needed)} old when they were processed"
        ages = [f"{reached}, the oldest {_age(int(counted[-1]))}"]
    too_old, too_old_in_force = (age.size - np.searchsorted(age, [max_delay, now.max_delay], side="right")).tolist()
    costs = f'max_delay = "{format_duration(max_delay)}" rejects {too_old:,} of {age.size:,} as too old'
    why = (
        *_describe_left_out(trial),
        *ages,
        f"{costs}; {approximate_text(now.max_delay)}, as it is, {too_old_in_force:,}",
        *_clock_moved_by_others(trial, max_delay, too_old),
        *_window_too_short(now, max_delay),
    )
    return Advice(keep_percent, max_delay, too_old, too_old_in_force, why)


def _age(microseconds: int) -> str:
    return approximate_text(-(-microseconds // CENTISECOND) * CENTISECOND)


def _describe_left_out(trial: Trial) -> list[str]:
    """Say which sources are left out, how many other messages are too old to count, and who sent most of them."""
    older = dict(trial.count_older(OLDEST))
    return [
        f"{sum(counts.values()):,} messages {what} are left out, from {_name_sources(counts)}: check the clocks there"
        for what, counts in ((NEARLY_ALL, trial.left_out), (f"older than {approximate_text(OLDEST)}", older))
        if counts
    ]


def _name_sources(counts: dict[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    return first_names([f"{source!r} ({count:,})" for source, count in most], NAMED_SOURCES, " and ")


def advise_window(rows: Sequence[dict[str, Any]], rules: Rules, max_delay: int) -> tuple[str, ...]:
    """Say which window suits a max_delay (microseconds), from rows of `sweep` that differ in the window, in its order.

    A repeated type ends a batch early, so beyond some length all windows make the same batches. With
    `on_repeat = "keep"` the window alone decides what belongs together.
    """
    first, last = rows[0], rows[-1]
    spread = f"{first['window']} makes {first['batch_count']:,} batches, {last['window']} {last['batch_count']:,}"
    if first is last:
        return ()
    if rules.on_repeat == "keep":
        return (f"the window alone decides what belongs together downstream: {spread}",)
    alike = [row for row in rows if row["batch_count"] <= (1 + SIMILAR) * last["batch_count"]]
    if len(alike) == 1:
        return (f"the longer the window, the fewer batches: {spread}",)
    least = max_delay + rules.max_lead if rules.window_anchor == "arrival" else 0
    chosen = next((row for row in alike if row["window_us"] > least), last)
    same = f"from {alike[0]['window']} on all make about {chosen['batch_count']:,} batches"
    window = format_duration(chosen["window_us"])
    return (f'window = "{window}" is long enough: {same}, because a type that comes again ends them',)


def advise_repeats(row: dict[str, Any]) -> tuple[str, ...]:
    """Say what share of the rounds stays whole under the rules of a row of `sweep`, and which choice keeps more whole.

    If many batches are slivers, say how many would be with windows on the calendar.
    """
    whole, few = row["intact_rounds_percent"], _slivers(row)
    if whole is None:
        return few
    text = f"with window = {row['window']} and max_delay = {row['max_delay']}, {whole:.0f} % of the rounds stay whole"
    better = [
        f"{setting} would keep {row[f'intact_rounds_percent_{name}']:.0f} %, in {row[f'batch_count_{name}']:,} batches"
        for name, setting in SETTINGS.items()
        if row[f"intact_rounds_percent_{name}"] >= whole + 1
    ]
    return ("; ".join([text, *better]), *few)


def _slivers(row: dict[str, Any]) -> tuple[str, ...]:
    if row["slivers"] <= max(MANY * row["batch_count"], row["slivers_aligned"]):
        return ()
    text = f"{row['slivers']:,} of {row['batch_count']:,} batches are slivers; {CALENDAR} would make "
    return (f"{text}{row['batch_count_aligned']:,} batches, {row['slivers_aligned']:,} of them slivers",)


def _clock_moved_by_others(trial: Trial, max_delay: int, too_old: int) -> list[str]:
    """Say how many messages are too old only because others moved their clock, if that holds for most."""
    moved = too_old_by_others(trial, max_delay)
    if moved <= MAJORITY * too_old:
        return []
    return [f"{moved:,} of these are too old only because others moved their clock: a source for each device helps"]


def too_old_by_others(trial: Trial, max_delay: int) -> int:
    """Count the messages that are too old for `max_delay`, but would not be if only they moved their clock."""
    return int(((trial.own_age <= max_delay) & (trial.age > max_delay)).sum())


def _window_too_short(rules: Rules, max_delay: int) -> list[str]:
    if rules.window_anchor != "arrival" or rules.window > max_delay + rules.max_lead:
        return []
    least = approximate_text(max_delay + rules.max_lead)
    return [f"then let the window be longer than {least} (max_delay + max_lead), or set {CALENDAR}"]
