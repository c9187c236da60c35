"""Advice: the shortest max_delay that keeps as many messages as one wants, with the reason in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windrow.batching.rules import Rules
from windrow.model.durations import span, text
from windrow.reading.tuning.grid import settable
from windrow.reading.tuning.trial import Trial

MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Advice:
    """The shortest `max_delay_us` that rejects at most the rest of `keep_percent` as too old, and why.

    `too_old` counts the messages that are rejected nevertheless, `now_too_old` those under the rules in force.
    """

    keep_percent: float
    max_delay_us: int
    too_old: int
    now_too_old: int
    why: tuple[str, ...]


def advise(trial: Trial, rules: Rules | None = None, keep_percent: float = 99.0) -> Advice:
    """Return the shortest max_delay that keeps `keep_percent` of the messages, rounded up to what one would write.

    Only lateness decides: whether a message is too old follows from its age and max_delay alone, whatever the window
    is. There is no best window to advise: it is what belongs together downstream.
    """
    now, age = rules or Rules(), np.sort(np.maximum(trial.age, 0))
    most = int(age.size * (1 - keep_percent / 100) + 1e-9)
    needed = int(age[age.size - 1 - min(most, age.size - 1)])
    max_delay = settable(needed)
    too_old = _older(age, max_delay)
    now_too_old = _older(age, now.max_delay)
    ages = f"{keep_percent:g} % of the messages were at most {span(needed)} old when they were processed"
    costs = f"max_delay = {text(max_delay)} rejects {too_old:,} of {age.size:,} as too old"
    why = (
        f"{ages}, the oldest {span(int(age[-1]))}",
        f"{costs}; {text(now.max_delay)}, as it is, {now_too_old:,}",
        *_moved_clock(trial, max_delay, too_old),
        *_too_long(now, max_delay),
    )
    return Advice(keep_percent, max_delay, too_old, now_too_old, why)


def _older(age: np.ndarray, max_delay: int) -> int:
    return int(age.size - np.searchsorted(age, max_delay, side="right"))


def _moved_clock(trial: Trial, max_delay: int, too_old: int) -> list[str]:
    """Say how many messages are too old only because others moved their clock, where most are."""
    moved = too_old_by_others(trial, max_delay)
    if moved <= MOSTLY * too_old:
        return []
    return [f"{moved:,} of these are too old only because others moved their clock: a source for each device helps"]


def too_old_by_others(trial: Trial, max_delay: int) -> int:
    """Count the messages that are too old for `max_delay`, and would not be if they alone moved their clock."""
    return int(((trial.own_age <= max_delay) & (trial.age > max_delay)).sum())


def _too_long(rules: Rules, max_delay: int) -> list[str]:
    if rules.window_start != "arrival" or rules.window > max_delay + rules.max_leap:
        return []
    least = span(max_delay + rules.max_leap)
    return [f'then let the window be longer than {least} (max_delay + max_leap), or set window_start = "event_time"']
