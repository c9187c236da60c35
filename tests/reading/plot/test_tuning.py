from typing import Any

import pyarrow as pa
import pytest

from tests.messages import SECOND
from tests.reading.test_tuning import late, recorded
from windrow.batching.rules import Rules
from windrow.errors import NotFoundError
from windrow.reading import plot
from windrow.reading.tuning import tune

pytest.importorskip("altair")

RULES = Rules()


@pytest.fixture(scope="module")
def tuned() -> pa.Table:
    """Return what six pairs of rules make of a log."""
    return tune(recorded(), ["2s", "10s"], ["1s", "5s", "9s"])


@pytest.fixture(scope="module")
def picture(tuned: pa.Table) -> dict[str, Any]:
    """Return the picture of it as Vega-Lite."""
    specification: dict[str, Any] = plot.tuning(tuned, RULES).to_dict()
    return specification


def test_every_pair_is_there(tuned: pa.Table, picture: dict[str, Any]) -> None:
    """The picture holds each pair once with its figures."""
    pairs = picture["datasets"]["pairs"]
    for name in ("window_us", "max_delay_us", "batch_count", "rejected_percent", "wait_seconds_median"):
        assert [pair[name] for pair in pairs] == tuned[name].to_pylist()


def test_cells_hold_what_they_show(tuned: pa.Table, tmp_path: Any) -> None:
    """Vega draws the numbers into the cells: the share rejected, the messages in a batch, the wait."""
    plot.save(plot.tuning(tuned, RULES), tmp_path / "tuning.svg")
    drawing = (tmp_path / "tuning.svg").read_text(encoding="utf-8")
    row = next(row for row in tuned.to_pylist() if (row["window_us"], row["max_delay_us"]) == (10**7, 5 * SECOND))
    assert f">{row['rejected_percent']:.2f} % ({row['rejected']:,})<" in drawing
    assert f">{row['batch_messages_mean']:,.1f}<" in drawing
    assert f">{row['wait_seconds_median']:.3g} s" in drawing


def test_the_rules_in_force_are_framed(tuned: pa.Table, picture: dict[str, Any]) -> None:
    """Exactly the pair in force is framed; without rules nothing is."""
    framed = [pair for pair in picture["datasets"]["pairs"] if pair["chosen"]]
    assert [(pair["window"], pair["max_delay"]) for pair in framed] == [("10s", "5s")]
    assert not any(pair["chosen"] for pair in plot.tuning(tuned).to_dict()["datasets"]["pairs"])


def test_short_windows_are_marked(picture: dict[str, Any]) -> None:
    """A pair with a warning has a star in its cells, and the title says what it means."""
    for pair in picture["datasets"]["pairs"]:
        assert pair["batch_messages_mean_text"].endswith("*") == (pair["warning"] is not None)
    assert any(line.startswith("*") for line in picture["title"]["subtitle"])


def test_nothing_closed() -> None:
    """Where no batch closed, the cell says so."""
    open_ = plot.tuning(tune(late(0, 0), ["1h"], ["5s"])).to_dict()
    assert open_["datasets"]["pairs"][0]["wait_seconds_median_text"] == "none closed"


def test_no_pair(tuned: pa.Table) -> None:
    """A table without a row is nothing to draw."""
    with pytest.raises(NotFoundError):
        plot.tuning(tuned.slice(0, 0))
