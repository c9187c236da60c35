import warnings

from windrow.errors import SettingsError
from windrow.operate.doctor import check_settings, load
from windrow.settings.settings import Settings


def test_refused() -> None:
    """Settings that cannot be read are one error with the code and the hint of the exception."""

    def read() -> Settings:
        raise SettingsError("unknown setting 'max_retires'", "Did you mean max_retries?")

    settings, [finding] = load(read)
    assert settings is None
    assert (finding.level, finding.code) == ("error", "settings")
    assert finding.message == "WINDROW-SETTINGS: unknown setting 'max_retires'"
    assert finding.hint == "Did you mean max_retries?"


def test_warnings_become_findings() -> None:
    """Warnings of the rules become findings, and nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings, _ = load(lambda: Settings(rules={"window": "5s"}))
        assert settings is not None
        assert codes(settings) == {"window"}
    assert codes(Settings()) == set()


def test_skew() -> None:
    """A `max_clock_skew` above an hour is a warning."""
    assert codes(Settings(max_clock_skew="2h")) == {"max-clock-skew"}
    assert codes(Settings(max_clock_skew="1h")) == set()


def codes(settings: Settings) -> set[str]:
    """Return the codes of the warnings about settings."""
    return {finding.code for finding in check_settings(settings, "embedded") if finding.level == "warning"}
