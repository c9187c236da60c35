import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__
from benchmarks.suite import BENCHMARKS


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_runs(
    name: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each benchmark prints and writes at least one row, its values are finite and its ratios positive."""
    monkeypatch.setattr(__main__, "session", lambda: spark)
    assert __main__.main([name, "--quick", "--rounds", "1", "--json", str(tmp_path / "bench.json")]) == 0
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert rows
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1
    assert {row["benchmark"] for row in rows} == {name}
    for row in rows:
        assert math.isfinite(row["ours"])
        assert row["ratio"] is None or 0 < row["ratio"] < math.inf


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """--list has a line for each benchmark, which says more than its name."""
    assert __main__.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHMARKS)
    assert all(len(line.split()) > 5 for line in lines)


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that nobody knows is an error that says which there are."""
    with pytest.raises(SystemExit):
        __main__.main(["kernel", "kernal"])
    output = capsys.readouterr().err
    assert "kernal" in output
    assert all(name in output for name in BENCHMARKS)


def test_page_has_every_benchmark() -> None:
    """docs/performance.md says what each benchmark means, and its table has rows of each."""
    names = list(BENCHMARKS)
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    assert re.findall(r"^\*\*(\w+)\*\*:", page, re.MULTILINE) == names
    rows = re.findall(r"^\| (\w+) \|(?:[^|]*\|){4}$", page, re.MULTILINE)
    assert list(dict.fromkeys(rows)) == ["benchmark", *names]
