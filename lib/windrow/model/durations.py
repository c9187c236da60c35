"""Convert durations between text (`500ms`, `10s`, `5m`, `1h30m`, `2 min 30 s`) and microseconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from windrow.errors import SettingsError

UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
OF_RULES = ("window", "max_delay", "max_lead", "window_offset")
MAX_DURATION = 36_500 * UNITS["d"]
MILLISECOND, SECOND, LONG = UNITS["ms"], UNITS["s"], 2 * UNITS["m"]

_READ = UNITS | {"min": UNITS["m"]}
_PART = re.compile(r"(\d+)(us|ms|s|min|m|h|d)")


def microseconds(duration: str | int | timedelta, name: str = "duration") -> int:
    """Return a duration in microseconds; an int already is in microseconds.

    Raises SettingsError for anything that is not a sum of whole numbers with units, or longer than a century.
    """
    if isinstance(duration, timedelta):
        duration = duration // timedelta(microseconds=1)
    if isinstance(duration, bool) or not isinstance(duration, str | int):
        raise SettingsError(f"{name} is {duration!r}, not a duration", "Write it like 500ms, 10s, 5m or 1h30m.")
    value = duration if isinstance(duration, int) else _parse(duration, name)
    if not 0 <= value <= MAX_DURATION:
        raise SettingsError(f"{name} is {duration!r}, out of range", "Use a duration between 0 and 36500d.")
    return value


def format_duration(microseconds: int) -> str:
    """Return a duration as text, in the largest units that keep it exact."""
    rest, parts = microseconds, []
    for unit, size in sorted(UNITS.items(), key=lambda item: -item[1]):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def to_toml(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return rules as they are written in `windrow.toml`: durations in microseconds become text."""
    return {
        name: format_duration(value) if name in OF_RULES and isinstance(value, int) else value
        for name, value in rules.items()
    }


def approximate_text(microseconds: int) -> str:
    """Return a duration for people to read: `7.2 s`, from two minutes on `2 min 30 s` or `2 h 13 min 20 s`."""
    if abs(microseconds) < LONG:
        return f"{microseconds / SECOND:.6f}".rstrip("0").rstrip(".") + " s"
    sign = "-" if microseconds < 0 else ""
    parts = _PART.findall(format_duration(abs(microseconds) // SECOND * SECOND))
    return sign + " ".join(f"{count} {'min' if unit == 'm' else unit}" for count, unit in parts)


def ceil_text(microseconds: int) -> str:
    """Return the duration as text, rounded up to whole seconds, below one second to whole milliseconds."""
    unit = SECOND if microseconds > SECOND else MILLISECOND
    return format_duration(-(-microseconds // unit) * unit)


def _parse(duration: str, name: str) -> int:
    compact = duration.replace(" ", "").replace("_", "")
    if compact == "0":
        return 0
    if not compact or _PART.sub("", compact):
        raise SettingsError(f"{name} = {duration!r} is not a duration", "Write it like 500ms, 10s, 5m or 1h30m.")
    return sum(int(count) * _READ[unit] for count, unit in _PART.findall(compact))
