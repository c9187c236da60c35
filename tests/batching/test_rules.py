import warnings

import pytest

from windrow import Rules
from windrow.batching.rules import ShortWindowWarning
from windrow.errors import RulesError, WindrowError


class TestRules:
    def test_durations_in_words_or_microseconds(self) -> None:
        """A duration may be text or microseconds; no limit may be 0 or None."""
        assert Rules(window="20s", max_batch_bytes=None) == Rules(window=20_000_000, max_batch_bytes=0)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"window": 0},
            {"max_batch_bytes": -1},
            {"max_batch_bytes": 1.5},
            {"window_anchor": "no"},
            {"on_repeat": "no"},
            {"split_at": "no"},
            {"max_delay": "x"},
            {"window_offset": "1s"},
            {"window_offset": "10s", "window_anchor": "aligned"},
        ],
    )
    def test_refuses_what_makes_no_sense(self, wrong: dict[str, object]) -> None:
        """A rule out of its range is an error that says what to give."""
        with pytest.raises(WindrowError) as caught:
            Rules(**wrong)  # type: ignore[arg-type]
        assert caught.value.hint

    def test_offset(self) -> None:
        """An offset that no window has is told with what to give instead; a shorter one than the window is taken."""
        with pytest.raises(RulesError, match="moves no window with window_anchor = 'arrival'"):
            Rules(window_offset="1s")
        with pytest.raises(RulesError, match=r"\(25s\) is not shorter than window \(10s\)") as caught:
            Rules(window_offset="25s", window_anchor="aligned")
        assert caught.value.hint == "The windows are the same with 5s."
        assert Rules(window_offset="9s", window_anchor="aligned").window_offset == 9_000_000

    @pytest.mark.parametrize("name", ["window", "max_delay", "max_lead", "window_offset"])
    def test_names_the_duration(self, name: str) -> None:
        """What is no duration is told with the name of the rule."""
        with pytest.raises(WindrowError, match=f": {name} = "):
            Rules(**{name: "soon"})  # type: ignore[arg-type]

    def test_names_the_choices(self) -> None:
        """Who gives no window start that there is, is told all that there are."""
        with pytest.raises(RulesError) as caught:
            Rules(window_anchor="no")  # type: ignore[arg-type]
        assert caught.value.hint == "Choose arrival, event_time or aligned."

    def test_short_window_warns(self) -> None:
        """With arrival, a window not longer than delay and lead together is a warning; otherwise it is none."""
        with pytest.warns(ShortWindowWarning):
            Rules(window="6s", max_delay="5s", max_lead="1s")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Rules(window="6s", max_delay="5s", max_lead="1s", window_anchor="event_time")
            Rules(window="6s", max_delay="5s", max_lead="1s", window_anchor="aligned")

    def test_recorded_and_read_back(self) -> None:
        """The form that the ledger records reads back as the same rules."""
        others = {"window_anchor": "aligned", "window_offset": "3s", "on_repeat": "keep", "split_at": "midpoint"}
        rules = Rules(window="1m", max_delay="7s", max_lead=0, max_batch_bytes=10, **others)  # type: ignore[arg-type]
        assert Rules.from_json(rules.to_json()) == rules

    def test_cannot_change(self) -> None:
        """Rules are a value."""
        with pytest.raises(AttributeError):
            Rules().window = 1  # type: ignore[misc]

    def test_window_zero_is_a_rules_error(self) -> None:
        """The error for a rule carries its own code."""
        with pytest.raises(RulesError, match="WINDROW-RULES"):
            Rules(window=0)
