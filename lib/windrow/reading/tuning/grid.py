"""Windows and delays worth trying, from the messages themselves."""

from __future__ import annotations

import numpy as np

from windrow.batching.columns import Ints
from windrow.batching.rules import Rules
from windrow.model.durations import LONGEST, UNITS, enough, microseconds
from windrow.reading.tuning.trial import Trial

SHARES = (0.5, 0.8, 0.95, 0.99, 0.999)
_COUNTS = {"ms": (1, 2, 5, 10, 20, 50, 100, 200, 500), "s": (1, 2, 5, 10, 20, 30), "m": (1, 2, 5, 10, 20, 30)}
ROUND = sorted(
    count * UNITS[unit] for unit, counts in {**_COUNTS, "h": (1, 2, 6, 12), "d": (1, 2, 7)}.items() for count in counts
)


def suggested(trial: Trial, rules: Rules) -> tuple[list[int], list[int]]:
    """Return windows and delays (microseconds) that show what the choice does, those of `rules` among them.

    Windows go by the time between two messages of one type in a stream, because a second one splits a window; delays
    by how old messages were when they were processed. The longest delay keeps every message, as far as one can set it.
    """
    gaps, age = _gaps(trial), trial.age
    usual = np.quantile(gaps, [0.5, 0.9]).tolist() if gaps.size else [rules.window / 2]
    windows = {rounded(factor * gap) for gap in usual for factor in (0.5, 1, 2, 4)}
    delays = {rounded(late) for late in np.quantile(np.maximum(age, 0), SHARES).tolist()}
    longest = settable(int(age.max(initial=0)))
    shorter = {late for late in delays if late < longest}
    return sorted(windows | {rules.window}), sorted(shorter | {longest, rules.max_delay})


def rounded(duration: float) -> int:
    """Return the next round duration that is no shorter, in microseconds."""
    return next((one for one in ROUND if one >= duration), settable(int(duration) + 1))


def settable(duration: int) -> int:
    """Return the next duration that one would set, in microseconds; the longest there is, if that is too short."""
    return microseconds(enough(min(duration, LONGEST)))


def _gaps(trial: Trial) -> Ints:
    """Return the times between two messages of one type, one after the other in their stream."""
    columns, event_time = trial.columns, trial.event_time
    order = np.lexsort((event_time, columns.list_of))
    same = np.diff(columns.list_of[order]) == 0
    gaps = np.diff(event_time[order])[same]
    return gaps[gaps > 0]
