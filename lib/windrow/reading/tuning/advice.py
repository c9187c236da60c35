"""Advice: the shortest max_delay that keeps a given share of the messages, with the reasons in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windrow.batching.rules import CALENDAR, Rules
from windrow.model.durations import span, text
from windrow.reading.tuning.grid import settable
from windrow.reading.tuning.trial import Trial
from windrow.reading.warnings import OLDEST

CENTISECOND = 10_000
SETTINGS = {
    "message": 'split_at = "message"',
    "midpoint": 'split_at = "midpoint"',
    "keep": 'repeats = "keep"',
    "aligned": CALENDAR,
}


@dataclass(frozen=True, slots=True)
class Advice:
    """The shortest `max_delay_us` that keeps `keep_percent` of the messages that are at most 30 days old, and why.

    `too_old` counts the messages that it rejects, `now_too_old` those that the rules in force reject. Both counts
    include older messages, whose clocks are more likely wrong than late: no `max_delay` is proposed for their sake.
    """

    keep_percent: float
    max_delay_us: int
    too_old: int
    now_too_old: int
    why: tuple[str, ...]


def advise(trial: Trial, rules: Rules | None = None, keep_percent: float = 99.0) -> Advice:
    """Return the shortest max_delay that keeps `keep_percent` of the messages, rounded up to a usual duration.

    Only lateness decides: whether a message is too old follows from its age and max_delay alone, whatever the window
    is. There is no best window to advise: the window is what belongs together downstream. Messages older than 30 days
    do not count; when all are, the advice is the max_delay in force.
    """
    now, age = rules or Rules(), np.sort(np.maximum(trial.age, 0))
    counted = age[: np.searchsorted(age, OLDEST, side="right")]
    max_delay, why = now.max_delay, _left_out(trial, age.size - counted.size)
    if counted.size:
        most = int(counted.size * (1 - keep_percent / 100) + 1e-9)
        needed = int(counted[counted.size - 1 - min(most, counted.size - 1)])
        max_delay = settable(needed)
        reached = f"{keep_percent:g} % of the messages were at most {_age(needed)} old when they were processed"
        why.append(f"{reached}, the oldest {_age(int(counted[-1]))}")
    too_old, now_too_old = (age.size - np.searchsorted(age, [max_delay, now.max_delay], side="right")).tolist()
    costs = f'max_delay = "{text(max_delay)}" rejects {too_old:,} of {age.size:,} as too old'
    why.append(f"{costs}; {span(now.max_delay)}, as it is, {now_too_old:,}")
    if now.window_start == "arrival" and now.window <= max_delay + now.max_leap:
        least = span(max_delay + now.max_leap)
        why.append(f"then let the window be longer than {least} (max_delay + max_leap), or set {CALENDAR}")
    return Advice(keep_percent, max_delay, too_old, now_too_old, tuple(why))


def _age(microseconds: int) -> str:
    return span(-(-microseconds // CENTISECOND) * CENTISECOND)


def _left_out(trial: Trial, older: int) -> list[str]:
    """Say what does not count, because its clock is wrong."""
    sources = ", ".join(f"{source!r} ({count:,})" for source, count in trial.left_out.items())
    said = [f"sources that are nearly all too old or too futuristic are left out, check their clocks: {sources}"]
    more = [f"{older:,} messages older than {span(OLDEST)} do not count: check the clocks of their sources"]
    return [*(said if sources else []), *(more if older else [])]


def advise_repeats(row: dict[str, Any]) -> tuple[str, ...]:
    """Say what share of the rounds stays whole under the pair of a row of `sweep`, and which choice keeps more."""
    whole = row["whole_percent"]
    if whole is None:
        return ()
    said = f"with window = {row['window']} and max_delay = {row['max_delay']}, {whole:.0f} % of the rounds stay whole"
    better = [
        f"{setting} would keep {row[f'whole_percent_{name}']:.0f} %, in {row[f'batches_{name}']:,} batches"
        for name, setting in SETTINGS.items()
        if row[f"whole_percent_{name}"] >= whole + 1
    ]
    return ("; ".join([said, *better]),)
