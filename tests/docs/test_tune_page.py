"""docs/howto/tune.md: the numbers in its text are those of the sample."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command, windrow  # noqa: F401 - a fixture
from windrow.reading.tuning.sweep import CHOICES

pytestmark = pytest.mark.ci


def test_numbers(windrow: Command, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811 - the fixture
    """The numbers in the page's text are those of the sample."""
    monkeypatch.chdir(sample.parent)
    for name, value in (("WINDOW", "10s"), ("MAX_DELAY", "5s"), ("ON_REPEAT", "split")):  # the defaults, as on the page
        monkeypatch.setenv(f"WINDROW_RULES__{name}", value)
    rules = ("--windows", "1s,2s,10s,30s", "--delays", "1s,5s,25s,56s")
    rows = windrow("tune", "--config", "demo/windrow.toml", *rules, "--json").json()["pairs"]
    pairs = {(row["window_us"] // 10**6, row["max_delay_us"] // 10**6): row for row in rows}
    assert [round(pairs[10, delay]["rejected_percent"]) for delay in (1, 5, 25)] == [18, 6, 1]
    assert pairs[10, 56]["rejected"] == pairs[10, 56]["duplicate"]
    assert [round(pairs[10, delay]["wait_seconds_median"]) for delay in (1, 5, 25, 56)] == [2, 6, 26, 57]
    whole = [[pairs[10, delay][f"intact_rounds_percent_{name}"] for name in CHOICES] for delay in (5, 56)]
    assert [round(percent) for percent in whole[0]] == [91, 92, 85, 92]
    assert [round(percent) for percent in whole[1]][:2] == [98, 100]
    sizes = [(pairs[window, 5]["batch_count"], round(pairs[window, 5]["batch_messages_mean"])) for window in (1, 2)]
    assert sizes == [(552, 87), (455, 105)]
    assert [round(pairs[window, 5]["wait_seconds_max"]) for window in (10, 30)] == [15, 35]
    for key, needed in (("edge-a", 23), ("edge-b", 22), ("edge-c", 51)):
        document = windrow("tune", "--config", "demo/windrow.toml", "--key", key, *rules, "--json").json()
        assert document["advice"]["max_delay_us"] == needed * 10**6
    assert round(next(row for row in document["pairs"] if row["max_delay_us"] == 5 * 10**6)["rejected_percent"]) == 42
    monkeypatch.setenv("WINDROW_RULES__WINDOW_ANCHOR", "aligned")
    monkeypatch.setenv("WINDROW_RULES__ON_REPEAT", "keep")
    row = windrow("tune", "--config", "demo/windrow.toml", "--windows", "10s", "--delays", "25s", "--json").json()
    assert [(pair["batch_count"], pair["slivers"], pair["warning"]) for pair in row["pairs"]] == [(85, 1, None)]
