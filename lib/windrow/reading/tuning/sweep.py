"""The sweep: one row for each pair of window and max_delay, with all other rules fixed; and pairs worth trying."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.batching.rules import Rules, ShortWindowWarning
from windrow.columnar.compiled import Ints
from windrow.model.durations import UNITS, approximate_text, ceil_text, microseconds
from windrow.reading.tuning.trial import Row, Trial
from windrow.reading.warnings import OLDEST

Durations = Sequence[str | int]
Progress = Callable[[int, int], None]

CHOICES: dict[str, dict[str, Any]] = {
    "message": {"on_repeat": "split", "split_at": "message"},
    "midpoint": {"on_repeat": "split", "split_at": "midpoint"},
    "keep": {"on_repeat": "keep"},
    "aligned": {"on_repeat": "keep", "window_anchor": "aligned"},
}
SHARES = (0.9, 0.95, 0.99, 0.999)
NEAR = 0.9  # of the longest
FAR = 10  # times the delay that keeps all but a thousandth
ROUND_COUNTS = {
    "ms": (1, 2, 5, 10, 20, 50, 100, 200, 500),
    "s": (1, 2, 5, 10, 15, 20, 30, 45),
    "m": (1, 2, 5, 10, 15, 20, 30),
    "h": (1, 2, 6, 12),
    "d": (1, 2, 7),
}
ROUND = sorted(count * UNITS[unit] for unit, counts in ROUND_COUNTS.items() for count in counts)
COMPARED = ("intact_rounds_percent", "batch_count", "slivers")
_COUNTS = (
    "message_count", "accepted", "rejected", "too_old", "too_far_ahead", "duplicate", "invalid", "clock_ahead",
)  # fmt: skip
_FIGURES = (
    "batch_messages_mean", "batch_messages_median", "batch_messages_max",
    "wait_seconds_median", "wait_seconds_p95", "wait_seconds_max",
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("window", pa.string()),
        ("max_delay", pa.string()),
        ("window_us", pa.int64()),
        ("max_delay_us", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
        ("rejected_percent", pa.float64()),
        ("batch_count", pa.int64()),
        ("open_batch_count", pa.int64()),
        ("slivers", pa.int64()),
        *((name, pa.float64()) for name in _FIGURES),
        ("intact_rounds_percent", pa.float64()),
        *((f"intact_rounds_percent_{name}", pa.float64()) for name in CHOICES),
        *((f"{figure}_{name}", pa.int64()) for figure in COMPARED[1:] for name in CHOICES),
        ("warning", pa.string()),
    ]
)


def tune(
    messages: pa.Table,
    windows: Durations | None = None,
    delays: Durations | None = None,
    rules: Rules | None = None,
    progress: Progress = lambda done, total: None,
) -> pa.Table:
    """Return what each pair of window and max_delay makes of messages, one row per pair.

    Sources with wrong clocks are left out (`Trial.of`). `sweep` explains the columns.

    Args:
        messages: Messages as `windrow.batch` takes them.
        windows: Windows to try; by default, some that suit the messages.
        delays: Values of `max_delay` to try; by default, some that suit the messages.
        rules: All other rules.
        progress: Called with the number of pairs done and in total.

    Returns:
        The table.

    Raises:
        MessagesError: A column is missing or has another type.
        RulesError: A pair contradicts the other rules.
        SettingsError: A text is not a duration.
        NotFoundError: There is no message.

    Example:
        >>> import pyarrow as pa
        >>> from datetime import UTC, datetime
        >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
        >>> row = {"key": "pump-1", "type": "temperature", "event_time": noon, "received_at": noon}
        >>> windrow.tune(pa.Table.from_pylist([row]), windows=["10s", "1m"], delays=["5s"]).num_rows
        2
    """
    return sweep(Trial.of(messages, rules=rules), windows, delays, rules, progress)


def sweep(
    trial: Trial,
    windows: Durations | None = None,
    delays: Durations | None = None,
    rules: Rules | None = None,
    progress: Progress = lambda done, total: None,
) -> pa.Table:
    """Batch the messages of a trial under each pair of window and max_delay; one row per pair, ordered by both.

    `batch_count` counts all batches, `open_batch_count` those whose timeout the clock did not reach, `slivers` those
    with less than a quarter of the messages of their stream's median batch. `batch_messages_...` is how many messages a
    batch has, `wait_seconds_...` how long a message waits from `received_at` until its batch can close, in batches that
    the clock closed. `intact_rounds_percent` is how many `Rounds` stay whole. `intact_rounds_percent_...`,
    `batch_count_...` and `slivers_...` are the same with `split_at = "message"`, `split_at = "midpoint"`,
    `on_repeat = "keep"`, or `keep` with `window_anchor = "aligned"`. `warning` is Windrow's warning about these rules;
    among suggested pairs, only the one in force may have a warning. `progress` is called with the number of pairs done
    and of all pairs.
    """
    fixed = rules or Rules()
    own = suggest_grid(trial, fixed)
    pairs = list(product(_sort_durations(windows or own[0], "window"), _sort_durations(delays or own[1], "max_delay")))
    tried = [(*pair, *with_pair(fixed, *pair)) for pair in pairs]
    if not (windows or delays):
        tried = [pair for pair in tried if pair[3] is None or pair[:2] == (fixed.window, fixed.max_delay)]
    rows = []
    for done, (window, max_delay, changed, warning) in enumerate(tried):
        progress(done, len(tried))
        labels = {"window": approximate_text(window), "max_delay": approximate_text(max_delay), "warning": warning}
        rows.append({"window_us": window, "max_delay_us": max_delay, **labels, **_outcomes(trial, changed)})
    progress(len(tried), len(tried))
    return pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA})


def _outcomes(trial: Trial, rules: Rules) -> Row:
    """Return what the rules make of the messages, and what each way to treat repeated types would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortWindowWarning)
        chosen = {name: replace(rules, **choice) for name, choice in CHOICES.items()}
    outcomes = {name: trial.outcome(rules) for name, rules in chosen.items()}
    compared = {f"{figure}_{name}": row[figure] for figure in COMPARED for name, row in outcomes.items()}
    return outcomes["keep" if rules.on_repeat == "keep" else rules.split_at] | compared


def with_pair(rules: Rules, window: int, max_delay: int) -> tuple[Rules, str | None]:
    """Return the rules with another window and max_delay, and the warning that they raise, if any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ShortWindowWarning)
        offset = rules.window_offset % window if window else 0
        changed = replace(rules, window=window, max_delay=max_delay, window_offset=offset)
    return changed, str(caught[0].message) if caught else None


def _sort_durations(durations: Durations, name: str) -> list[int]:
    return sorted({microseconds(duration, name) for duration in durations})


def suggest_grid(trial: Trial, rules: Rules) -> tuple[list[int], list[int]]:
    """Return windows and delays (microseconds) that show the effect of the choice, including those of `rules`.

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
        late = {round_duration_up(delay) for delay in np.quantile(age, SHARES).tolist()}
        if longest <= FAR * max(late):
            late = {longest, *(delay for delay in late if delay < NEAR * longest)}
        delays |= late
    windows.add(rules.window)
    if rules.window_anchor == "arrival":
        least = [delay + rules.max_lead for delay in delays]
        windows |= {round_duration_up(length + 1) for length in least if length >= max(windows)}
    return sorted(windows), sorted(delays)


def round_duration_up(duration: float) -> int:
    """Return the shortest round duration that is at least this long, in microseconds."""
    return next((length for length in ROUND if length >= duration), round_up(int(duration) + 1))


def round_up(duration: int) -> int:
    """Round up to a duration that people would set, in microseconds."""
    return microseconds(ceil_text(duration))


def gaps_of(trial: Trial) -> Ints:
    """Return the times between consecutive messages of one type in a stream."""
    columns, event_time = trial.columns, trial.event_time
    order = np.lexsort((event_time, columns.numbers.list_of))
    same = np.diff(columns.numbers.list_of[order]) == 0
    gaps = np.diff(event_time[order])[same]
    return gaps[gaps > 0]
