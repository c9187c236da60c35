"""Check the settings: whether they can be read, which engine they select, and consequences that are easy to miss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from windrow.batching.rules import CALENDAR
from windrow.errors import WindrowError
from windrow.model import durations
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.settings.settings import RulesPart, Settings

LONG_SKEW = 3_600_000_000


def load(read: Callable[[], Settings]) -> tuple[Settings | None, list[Finding]]:
    """Read the settings; return None and a finding with the reason if they cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the findings below say it in more words
            settings = read()
    except WindrowError as refused:
        return None, [error("settings", f"{refused.code}: {refused.message}", refused.hint)]
    return settings, [ok("settings", f"depot {settings.depot}, ledger {settings.ledger}")]


def check_settings(settings: Settings, engine: str) -> Iterator[Finding]:
    """Report the engine, and check the rules and `max_clock_skew`."""
    why = "" if settings.engine != "auto" else f" (auto: Spark {'can' if engine == 'spark' else 'cannot'} run here)"
    yield ok("engine", f"the {engine} engine{why}")
    yield check_window(settings.rules)
    if settings.max_clock_skew > LONG_SKEW:
        skew = durations.text(settings.max_clock_skew)
        yield warning(
            "max-clock-skew",
            f"max_clock_skew is {skew}: one stamp that far ahead makes its whole source late for as long",
            'Keep it as short as the clocks allow, such as "5m".',
        )


def check_window(rules: RulesPart) -> Finding:
    """Explain the effect of a window that is too short for max_delay and window_start."""
    window, delay, leap = (durations.text(value) for value in (rules.window, rules.max_delay, rules.max_leap))
    reach = rules.max_delay + rules.max_leap
    if rules.window_start == "event_time" and rules.max_delay > rules.window:
        return warning(
            "window",
            f'max_delay {delay} is longer than window {window}: with window_start = "event_time" a late message falls '
            "before an open window and opens a small one of its own",
            f"Set {CALENDAR}.",
        )
    if rules.window_start != "arrival" or rules.window > reach:
        return ok("window", f"window {window}, max_delay {delay}, max_leap {leap}, window_start {rules.window_start}")
    return warning(
        "window",
        f"window {window} is not longer than max_delay {delay} + max_leap {leap}: a message that is nearly as late or "
        "as far ahead as they allow begins a window of its own, and windows then have gaps",
        f"Set window above {durations.text(reach)}, or {CALENDAR}.",
    )
