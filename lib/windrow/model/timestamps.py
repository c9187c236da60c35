"""Convert times between ISO 8601 text (`2026-01-31T12:00:00Z`) and microseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from windrow.errors import SettingsError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def microseconds(text: str, name: str) -> int:
    """Return an ISO 8601 time in microseconds; without a zone it is UTC. Raises SettingsError with the name given."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(f"{name} {text!r} is not a time", "Write it like 2026-01-31T12:00:00Z.") from error
    return microseconds_of(moment)


def event_range(start: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Return the times of --from and --to in microseconds. Raises SettingsError unless both are times in this order."""
    first = None if start is None else microseconds(start, "--from")
    last = None if end is None else microseconds(end, "--to")
    if first is not None and last is not None and first > last:
        raise SettingsError(f"--to {end} is before --from {start}", "Swap them.")
    return first, last


def microseconds_of(moment: datetime) -> int:
    """Return a time in microseconds; without a zone it is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // MICROSECOND


def time_text(microseconds: int) -> str:
    """Return a time as ISO 8601 text in UTC; as `1234 us` if the year is outside ISO 8601."""
    try:
        written = (EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    except OverflowError:
        return f"{microseconds} us"
    return written.removesuffix("+00:00").rstrip("0").rstrip(".") + "Z"
