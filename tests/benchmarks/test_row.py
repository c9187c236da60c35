import pytest

from benchmarks.row import Measurement, at_least, at_most, memory, rate, speeds, times


class TestAim:
    @pytest.mark.parametrize(
        ("aim", "value", "holds"),
        [
            (at_least(2), 2.0, True),
            (at_least(2), 1.999, False),
            (at_most(2), 2.0, True),
            (at_most(2), 2.001, False),
        ],
    )
    def test_bound_is_included(self, aim: object, value: float, holds: bool) -> None:
        """An aim holds on its side of the bound and on the bound."""
        assert aim.holds(value) is holds  # type: ignore[attr-defined]

    def test_is_of_the_ratio(self) -> None:
        """Where there is a ratio, the aim is one of the ratio, unless it says that it is of our own value."""
        assert Measurement("a", 5, "s", ratio=0.5, aim=at_most(1)).met is True
        assert Measurement("a", 5, "s", ratio=0.5, aim=at_most(1, own=True)).met is False
        assert Measurement("a", 5, "s", aim=at_most(1)).met is False
        assert Measurement("a", 5, "s").met is None


class TestRatio:
    def test_times_and_speeds(self) -> None:
        """Who takes twice as long has twice the time and half the speed of the other; values are medians."""
        ours, theirs = [2.0, 4.0, 60.0], [1.0, 2.0, 30.0]
        time, speed = times("a", ours, "b", theirs), speeds("a", ours, "b", theirs)
        assert (time.ratio, speed.ratio) == (2.0, 0.5)
        assert (time.ours, time.theirs) == (speed.ours, speed.theirs) == (4.0, 2.0)


def test_rate_is_of_the_median() -> None:
    """A rate is in million messages a second, by the median of the seconds."""
    assert rate("a", 6_000_000, [1.0, 2.0, 9.0]).ours == 3.0


def test_memory_is_in_gib() -> None:
    """Memory is in units of 2^30 bytes."""
    assert memory("a", 3 * 2**29).ours == 1.5
