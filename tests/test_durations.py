import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.durations import LONGEST, microseconds, text
from windrow.errors import SettingsError


@pytest.mark.parametrize(
    ("written", "expected"),
    [("500ms", 500_000), ("10s", 10_000_000), ("1h30m", 5_400_000_000), ("0", 0), ("1d 2h", 93_600_000_000), (7, 7)],
)
def test_reads(written: str | int, expected: int) -> None:
    """
    A duration is a sum of whole numbers with units; a plain number is microseconds.
    """
    assert microseconds(written) == expected


@pytest.mark.parametrize(
    "written", ["", "10", "s", "1.5s", "-1s", "10 apples", True, None, -1, LONGEST + 1, "9999999d"]
)
def test_refuses(written: object) -> None:
    """
    Anything else is an error, never a guess.
    """
    with pytest.raises(SettingsError):
        microseconds(written)  # type: ignore[arg-type]


@given(st.integers(0, LONGEST))
def test_text_is_read_back(duration: int) -> None:
    """
    What is written for people reads as the same number of microseconds.
    """
    assert microseconds(text(duration)) == duration
