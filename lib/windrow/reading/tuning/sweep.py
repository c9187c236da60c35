"""The sweep: one row for each pair of window and max_delay, the other rules being fixed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pyarrow as pa

from windrow.batching.rules import Rules, ShortWindowWarning
from windrow.model.durations import microseconds
from windrow.reading.tuning.grid import suggested
from windrow.reading.tuning.trial import Trial

Durations = Sequence[str | int]
Progress = Callable[[int, int], None]

_COUNTS = (
    "messages", "accepted", "rejected", "too_old", "too_futuristic", "duplicate", "invalid", "clock_ahead",
)  # fmt: skip
_FIGURES = (
    "batch_messages_mean", "batch_messages_median", "batch_messages_largest",
    "wait_seconds_median", "wait_seconds_p95", "wait_seconds_longest",
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("window_us", pa.int64()),
        ("max_delay_us", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
        ("rejected_percent", pa.float64()),
        ("batches", pa.int64()),
        ("open_batches", pa.int64()),
        *((name, pa.float64()) for name in _FIGURES),
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
    """Return what each pair of window and max_delay makes of `messages` (as `windrow.batch` takes them), a row each.

    Windows and delays that are not given are chosen to suit the messages; all other rules are those of `rules`.
    `sweep` explains the columns. Raises MessagesError, RulesError, SettingsError, and NotFound without messages.
    """
    return sweep(Trial.of(messages), windows, delays, rules, progress)


def sweep(
    trial: Trial,
    windows: Durations | None = None,
    delays: Durations | None = None,
    rules: Rules | None = None,
    progress: Progress = lambda done, total: None,
) -> pa.Table:
    """Batch the messages of a trial under each pair of window and max_delay; a row each, ordered by both.

    `batches` counts all, `open_batches` those that the clock did not reach. `batch_messages_...` is how many messages
    a batch has, `wait_seconds_...` how long a message waits from `received_at` until its batch can close, in batches
    that the clock closed. `warning` is the warning that Windrow gives for such rules. `progress` is called with the
    number of pairs done and of all pairs.
    """
    fixed = rules or Rules()
    own = suggested(trial, fixed)
    pairs = list(product(_ordered(windows or own[0], "window"), _ordered(delays or own[1], "max_delay")))
    rows = []
    for done, (window, max_delay) in enumerate(pairs):
        progress(done, len(pairs))
        tried, warning = paired(fixed, window, max_delay)
        row = {"window_us": window, "max_delay_us": max_delay, **trial.outcome(tried), "warning": warning}
        rows.append(row)
    progress(len(pairs), len(pairs))
    return pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA})


def paired(rules: Rules, window: int, max_delay: int) -> tuple[Rules, str | None]:
    """Return the rules with another window and max_delay, and the warning that they give, if any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ShortWindowWarning)
        changed = replace(rules, window=window, max_delay=max_delay)
    return changed, str(caught[0].message) if caught else None


def _ordered(durations: Durations, name: str) -> list[int]:
    return sorted({microseconds(duration, name) for duration in durations})
