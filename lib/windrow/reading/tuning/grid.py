"""Choose windows and delays worth trying from the messages themselves."""

from __future__ import annotations

import numpy as np

from windrow.batching.rules import Rules
from windrow.columnar.compiled import Ints
from windrow.model.durations import UNITS, ceil_text, microseconds
from windrow.reading.tuning.trial import Trial
from windrow.reading.warnings import OLDEST

SHARES = (0.9, 0.95, 0.99, 0.999)
NEAR = 0.9  # of the longest
FAR = 10  # times the delay that keeps all but a thousandth
_COUNTS = {
    "ms": (1, 2, 5, 10, 20, 50, 100, 200, 500),
    "s": (1, 2, 5, 10, 15, 20, 30, 45),
    "m": (1, 2, 5, 10, 15, 20, 30),
}
ROUND = sorted(
    count * UNITS[unit] for unit, counts in {**_COUNTS, "h": (1, 2, 6, 12), "d": (1, 2, 7)}.items() for count in counts
)


def suggest_grid(trial: Trial, rules: Rules) -> tuple[list[int], list[int]]:
    """Return windows and delays (microseconds) that show what the choice does, those of `rules` among them.

    Windows follow the time between two messages of one type in a stream, because a second one splits a window; with
    `arrival`, each delay has a window that is long enough. Delays follow how old messages were when they were
    processed; the longest keeps every message that is at most 30 days old, unless a few stragglers need far more than
    the others.
    """
    gaps, age = gaps_of(trial), np.maximum(trial.age, 0)
    age = age[age <= OLDEST]
    usual = np.quantile(gaps, [0.5, 0.9]).tolist() if gaps.size else [rules.window / 2]
    windows = {round_duration_up(factor * gap) for gap in usual for factor in (0.5, 1, 2, 4)}
    delays = {rules.max_delay}
    if age.size:
        longest = round_up(int(age.max()))
        late = [round_duration_up(delay) for delay in np.quantile(age, SHARES).tolist()]
        delays |= (
            {*late} if longest > FAR * late[-1] else {longest, *(delay for delay in late if delay < NEAR * longest)}
        )
    windows.add(rules.window)
    if rules.window_anchor == "arrival":
        windows |= {
            round_duration_up(least + 1)
            for least in (delay + rules.max_lead for delay in delays)
            if least >= max(windows)
        }
    return sorted(windows), sorted(delays)


def round_duration_up(duration: float) -> int:
    """Return the next round duration that is no shorter, in microseconds."""
    return next((length for length in ROUND if length >= duration), round_up(int(duration) + 1))


def round_up(duration: int) -> int:
    """Return the next duration that one would set, in microseconds."""
    return microseconds(ceil_text(duration))


def gaps_of(trial: Trial) -> Ints:
    """Return the times between consecutive messages of one type in a stream."""
    columns, event_time = trial.columns, trial.event_time
    order = np.lexsort((event_time, columns.numbers.list_of))
    same = np.diff(columns.numbers.list_of[order]) == 0
    gaps = np.diff(event_time[order])[same]
    return gaps[gaps > 0]
