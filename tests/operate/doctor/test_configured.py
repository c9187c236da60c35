import warnings

import pytest

from windrow.errors import SettingsError
from windrow.operate.doctor.configured import check_settings, check_window, load
from windrow.settings.settings import RulesPart, Settings


class TestLoad:
    def test_refused(self) -> None:
        """Settings that cannot be read are one error with the code and the hint of the exception."""

        def read() -> Settings:
            raise SettingsError("unknown setting 'retires'", "Did you mean retries?")

        settings, [found] = load(read)
        assert settings is None
        assert (found.level, found.code) == ("error", "settings")
        assert found.what == "WINDROW-SETTINGS: unknown setting 'retires'"
        assert found.todo == "Did you mean retries?"

    def test_warnings_become_findings(self) -> None:
        """Warnings from reading the settings become findings."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settings, _ = load(lambda: Settings(rules={"window": "5s"}))
        assert settings is not None
        assert "window" in {found.code for found in check_settings(settings, "embedded") if found.level == "warning"}


class TestWindow:
    @pytest.mark.parametrize(("window", "level"), [("6s1us", "ok"), ("6s", "warning"), ("3s", "warning")])
    def test_not_longer_than_delay_and_leap(self, window: str, level: str) -> None:
        """A window up to max_delay + max_leap is a warning that says from which length on there is none."""
        finding = check_window(RulesPart(window=window, max_delay="5s", max_leap="1s"))  # type: ignore[arg-type]
        assert finding.level == level
        assert level == "ok" or "Set window above 6s" in finding.todo

    @pytest.mark.parametrize(
        ("window_start", "window", "level"),
        [
            ("aligned", "1s", "ok"),
            ("event_time", "1s", "warning"),
            ("event_time", "4999ms", "warning"),
            ("event_time", "5s", "ok"),
        ],
    )
    def test_start(self, window_start: str, window: str, level: str) -> None:
        """Windows on the calendar may be of any length; those that begin at a message are not advised for a long
        delay.
        """
        found = check_window(RulesPart(window=window, window_start=window_start))  # type: ignore[arg-type]
        assert found.level == level
        assert level == "ok" or found.todo == 'Set window_start = "aligned" with repeats = "keep".'


def test_skew() -> None:
    """A `max_clock_skew` above an hour is a warning that says what one stamp can do."""
    found = {one.code: one for one in check_settings(Settings(max_clock_skew="2h"), "spark")}
    assert (found["max-clock-skew"].level, "2h" in found["max-clock-skew"].what) == ("warning", True)
    assert "max-clock-skew" not in {one.code for one in check_settings(Settings(max_clock_skew="1h"), "spark")}
