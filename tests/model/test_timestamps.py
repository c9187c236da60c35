import pytest

from windrow.errors import SettingsError
from windrow.model import timestamps as moments


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T01:00:00.000001+01:00", 1),
        ("1969-12-31T23:59:59.999999", -1),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000),
    ],
)
def test_iso_8601(text: str, microseconds: int) -> None:
    """A time with a zone is what it says, one without is UTC, to the microsecond and before 1970 too."""
    counted = moments.microseconds(text, "--event-time")
    assert (counted, type(counted)) == (microseconds, int)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "12:00"])
def test_no_time(text: str) -> None:
    """What is not a time is an error that names the option it was given to, and shows how to write one."""
    with pytest.raises(SettingsError, match=r"--event-time .* is not a time\nWrite it like 2026-01-31T12:00:00Z"):
        moments.microseconds(text, "--event-time")


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_700_000_000_120_000, "2023-11-14T22:13:20.12Z"),
        (2**62, f"{2**62} us"),
    ],
)
def test_written(microseconds: int, text: str) -> None:
    """A time is written in UTC without zeros at its end; one in no year of ISO 8601 as its number."""
    assert moments.time_text(microseconds) == text
