"""Check the settings: whether they can be read, which engine they select, and consequences that are easy to miss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from windrow.batching.rules import CALENDAR
from windrow.errors import WindrowError
from windrow.model import durations
from windrow.model.durations import UNITS
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.settings.settings import Settings

LONG_SKEW = UNITS["h"]


def load(read: Callable[[], Settings]) -> tuple[Settings | None, list[Finding]]:
    """Read the settings; return None and a finding with the reason if they cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `check_settings` makes findings of them
            settings = read()
    except WindrowError as refused:
        return None, [error("settings", f"{refused.code}: {refused.message}", refused.hint)]
    return settings, [ok("settings", f"depot {settings.depot}, ledger {settings.ledger}")]


def check_settings(settings: Settings, engine: str) -> Iterator[Finding]:
    """Report the engine, and check the rules and `max_clock_skew`."""
    why = "" if settings.engine != "auto" else f" (auto: Spark {'can' if engine == 'spark' else 'cannot'} run here)"
    yield ok("engine", f"the {engine} engine{why}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings.rules.build()
    for short in caught:
        yield warning("window", str(short.message), f"Set a longer window, or {CALENDAR}.")
    if settings.max_clock_skew > LONG_SKEW:
        skew = durations.format_duration(settings.max_clock_skew)
        yield warning(
            "max-clock-skew",
            f"max_clock_skew is {skew}: one stamp that far ahead makes its whole source late for as long",
            'Keep it as short as the clocks allow, such as "5m".',
        )
