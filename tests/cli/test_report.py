from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.test_topologies import counting  # noqa: F401 - a fixture
from tests.report.parsed import parsed
from windrow.reading.plot import extra
from windrow.report import page


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the packages that draw, which take seconds; tests/report draws."""
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "vl_convert" else find_spec(name))


def test_writes(filled: Command, tmp_path: Path) -> None:
    """The command says what it wrote and the verdict, also as one document; the page is there by its usual name."""
    result = filled("report")
    assert result.status == 0, result.err
    assert "Wrote report.html (" in result.out
    assert "No pictures: pictures need vl_convert" in result.out
    document = filled("report", "--out", "other.html", "--json").json()
    assert document["byte_count"] == (tmp_path / "other.html").stat().st_size
    assert document["charts"] == []
    assert "windrow-delta[plot]" in document["no_charts"]
    [late] = [problem for problem in document["problems"] if problem["code"] == "rejected-too_old"]
    assert (late["level"], late["since"]) == ("note", "1970-01-01T00:02:11Z")
    assert parsed(tmp_path / "report.html").rows["rejections"] == parsed(tmp_path / "other.html").rows["rejections"]


def test_alarm(filled: Command, tmp_path: Path) -> None:
    """A condition that holds is on the page and on standard error, and ends the command with 1."""
    result = filled("report", "--fail-if", "rejected>0", "--json")
    assert (result.status, result.json()["verdict"], result.json()["failed"]) == (1, "alarm", [result.err.strip()])
    assert "rejected>0 holds: rejected is 1" in parsed(tmp_path / "report.html").text("verdict")


def test_topology(counting: Command, tmp_path: Path) -> None:  # noqa: F811
    """The page about a topology has its states, what is due, its microbatches and the checks."""
    missing = counting("report", "seen:topology")
    assert (missing.status, "never ran" in missing.err) == (2, True), missing.err
    counting("run", "seen:topology")
    result = counting("report", "seen:topology", "--fail-if", "lag>1h", "--json")
    assert result.status == 0, result.err
    shown = parsed(tmp_path / "report.html")
    assert shown.rows["states"] == [["state", "rows"], ["seen", "1"]]
    assert shown.column("due", 0) == ["hour"]
    assert set(shown.column("microbatches", 2)) == {"messages"}
    assert "messages read 5" in shown.text("figures")
    assert shown.column("tables", 0) == ["messages", "ledger"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--out", "r.pdf"), 2, "is not an .html file"),
        (("--out", "nowhere/r.html"), 2, "cannot be written"),
        (("--fail-if", "moon>1"), 2, "there is no figure 'moon'"),
        (("--ledger", "nowhere"), 3, "nowhere"),
        (("seen:topology", "--ledger", "x"), 2, "--ledger does not apply to a topology"),
    ],
)
def test_mistakes(filled: Command, arguments: tuple[str, ...], status: int, says: str) -> None:
    """What cannot be written or read is said in words, and no page is left behind."""
    result = filled("report", *arguments)
    assert (result.status, says in result.err) == (status, True), result.err
    assert not Path("report.html").exists()


def test_missing_extra(filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without templates, the error names the extra before anything is read."""
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    result = filled("report", "--ledger", "nowhere")
    assert result.status == 2
    assert "windrow-delta[report]" in result.err
