from functools import partial
from pathlib import Path

from benchmarks.turns import ratio, run_in_fresh_directory, time_interleaved, timed


class TestInTurns:
    def test_order(self) -> None:
        """Each round calls `before` with its number and then every run once, in the order given."""
        calls: list[object] = []

        def run(name: str) -> float:
            calls.append(name)
            return 0.0

        time_interleaved({name: partial(run, name) for name in "AB"}, 2, 1, calls.append)
        assert calls == [0, "A", "B", 1, "A", "B", 2, "A", "B"]

    def test_warm_up_is_dropped(self) -> None:
        """The seconds of the first rounds are not among those returned, the others are, in their order."""
        seconds = iter([9.0, 8.0, 1.0, 2.0, 3.0])
        assert time_interleaved({"A": lambda: next(seconds)}, 3, 2) == {"A": [1.0, 2.0, 3.0]}

    def test_tells(self) -> None:
        """Before each run it is told which one it is, of which round."""
        lines: list[str] = []
        time_interleaved({"A": lambda: 0.0, "B": lambda: 0.0}, 1, 1, tell=lines.append)
        assert lines == ["round 1 of 2: A", "round 1 of 2: B", "round 2 of 2: A", "round 2 of 2: B"]


def test_ratio_is_of_the_same_round() -> None:
    """The median is that of the ratios, so a round that was slow for both does not move it."""
    assert ratio([1.0, 50.0, 3.0], [2.0, 100.0, 4.0]) == 0.5


def test_afresh(tmp_path: Path) -> None:
    """A run that writes into a directory finds none there, and leaves none."""
    into = tmp_path / "out"
    for _ in range(2):
        assert run_in_fresh_directory(Path.mkdir, into) > 0
        assert not into.exists()


def test_timed() -> None:
    """A call is made once, and its time is positive."""
    called: list[int] = []
    assert timed(lambda: called.append(1)) > 0
    assert called == [1]
