import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.model.durations import MAX_DURATION, approximate_text, ceil_text, format_duration, microseconds


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 500_000),
        ("10s", 10_000_000),
        ("1h30m", 5_400_000_000),
        ("0", 0),
        ("1d 2h", 93_600_000_000),
        ("2 min 30 s", 150_000_000),
        (7, 7),
        ("1_000ms", 1_000_000),
        (MAX_DURATION, MAX_DURATION),
    ],
)
def test_reads(written: str | int, expected: int) -> None:
    """A duration is a sum of whole numbers with units; a plain number is microseconds."""
    assert microseconds(written) == expected


@pytest.mark.parametrize(
    "written",
    ["", "10", "s", "1.5s", "-1s", "5mins", "30 mins", "10 apples", True, None, -1, MAX_DURATION + 1, "9999999d"],
)
def test_refuses(written: object) -> None:
    """Anything else is an error, never a guess."""
    with pytest.raises(SettingsError):
        microseconds(written)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", ["soon", -1, None])
def test_says_which(written: object) -> None:
    """The error names the setting that is wrong, and without a name says that it is a duration."""
    with pytest.raises(SettingsError, match=r"max_delay (is|=) "):
        microseconds(written, "max_delay")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"duration (is|=) "):
        microseconds(written)  # type: ignore[arg-type]


@given(st.integers(0, MAX_DURATION))
def test_text_is_read_back(duration: int) -> None:
    """What is written for people reads as the same number of microseconds."""
    assert microseconds(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 s"),
        (1, "0.000001 s"),
        (7_200_000, "7.2 s"),
        (100_000_000, "100 s"),
        (120_000_000, "2 min"),
        (150_000_000, "2 min 30 s"),
        (8_000_500_000, "2 h 13 min 20 s"),
        (-8_000_500_000, "-2 h 13 min 20 s"),
        (-1, "-0.000001 s"),
    ],
)
def test_span(microseconds: int, text: str) -> None:
    """A length of time is exact below two minutes, and to the second above."""
    assert approximate_text(microseconds) == text


@pytest.mark.parametrize(
    ("microseconds", "setting"),
    [
        (7_200_000, "8s"),
        (8_000_000, "8s"),
        (8_000_001, "9s"),
        (1_000_000, "1s"),
        (999_001, "1s"),
        (250_000, "250ms"),
        (1, "1ms"),
    ],
)
def test_enough(microseconds: int, setting: str) -> None:
    """What would have kept a message is never shorter than it needs, and less than a unit longer."""
    assert ceil_text(microseconds) == setting
