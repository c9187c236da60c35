"""What notebooks share: parameters, tables and pictures, wherever they run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import windrow
from tests.messages import log, table
from windrow.notebook import Notebook

FEED = {"delta.enableChangeDataFeed": "true"}


@dataclass
class Wait:
    """A result with a duration."""

    waited_us: int
    messages: int


class Widgets:
    """Widgets as Databricks has them: made with a default, kept when made again."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def text(self, name: str, default: str) -> None:
        """Make a widget."""
        self.values.setdefault(name, default)

    def get(self, name: str) -> str:
        """Return its value."""
        return self.values[name]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with settings, three versions of a depot and a ledger that has read the first two."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "windrow.toml").write_text('depot = "depot"\nledger = "ledger"\n[rules]\nwindow = "7s"\n')
    for version, rows in enumerate(log(3, size=10)):
        write_deltalake("depot", table(rows), mode="append", configuration=FEED)
        if version == 1:
            windrow.run(windrow.Settings.load(engine="embedded"))
    return tmp_path


class TestParameter:
    def test_a_widget(self) -> None:
        """Where there are widgets, a parameter is one: made with its default, and what somebody chose wins."""
        widgets = Widgets(key="pump-1")
        at = Notebook({"dbutils": SimpleNamespace(widgets=widgets)})
        assert (at.parameter("key"), at.parameter("minutes", "5")) == ("pump-1", "5")
        assert widgets.values == at.parameters == {"key": "pump-1", "minutes": "5"}

    def test_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Elsewhere it is an environment variable, or the default."""
        monkeypatch.setenv("NOTEBOOK_KEY", "pump-2")
        at = Notebook({})
        assert (at.parameter("key", "pump-1"), at.parameter("minutes", "5")) == ("pump-2", "5")

    def test_tables(self, directory: Path) -> None:
        """The parameters depot and ledger win over the settings file, which wins over the defaults."""
        assert Notebook({}).settings.ledger == "ledger"
        chosen = Notebook({"dbutils": SimpleNamespace(widgets=Widgets(ledger="main.silver.ledger"))}).settings
        assert (chosen.depot, chosen.ledger) == ("depot", "main.silver.ledger")


class TestTables:
    def test_without_spark(self, directory: Path) -> None:
        """Messages and rules of tables on this disk are read without a session."""
        at = Notebook({"spark": None})
        assert at.messages().num_rows == 30
        assert at.messages(5)["version"].to_pylist() == [2] * 5
        assert at.rules.window == 7_000_000

    @pytest.mark.slow
    def test_spark_reads_the_same(self, directory: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Spark reads the same messages, the same rules, and says which versions wait."""
        at = Notebook({"spark": spark})
        by_all = [(name, "ascending") for name in ("version", "received_at", "payload")]
        for most in (30, 15):
            mine, theirs = at.messages(most).sort_by(by_all), at.messages_by_spark(most).sort_by(by_all)
            assert mine.select(theirs.column_names).cast(theirs.schema).equals(theirs)
        assert at.waiting().select(["version", "messages"]).to_pylist() == [{"version": 2, "messages": 10}]
        here = at.rules
        monkeypatch.setattr("windrow.notebook._is_here", lambda location: False)
        assert at.rules == here


class TestShow:
    def test_a_picture(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A picture goes to the notebook as HTML that needs no network; in plain Python it is a file whose name is
        said.
        """
        alt = pytest.importorskip("altair")
        chart = alt.Chart(alt.Data(values=[{"a": 1}])).mark_point()
        shown: list[str] = []
        Notebook({"displayHTML": shown.append}).show(chart)
        assert "<html" in shown[0]
        assert 'src="http' not in shown[0]
        Notebook({}).show(chart, "points")
        name, _, file = capsys.readouterr().out.strip().partition(": ")
        assert name == "points"
        assert "<html" in Path(file).read_text(encoding="utf-8")

    def test_a_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A table goes to the notebook, or is printed."""
        rows = pa.table({"key": ["pump-1"], "messages": [3]})
        shown: list[Any] = []
        Notebook({"display": shown.append}).show(rows)
        assert shown[0].to_dict("records") == rows.to_pylist()
        Notebook({}).show(rows)
        assert "pump-1" in capsys.readouterr().out

    def test_a_long_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Of a long table the first 20 rows are printed, long values are cut, and it is said that there are more."""
        Notebook({}).show(pa.table({"number": range(21), "payload": [["x" * 99]] * 21, "share": [1234.5] * 21}))
        lines = capsys.readouterr().out.splitlines()
        assert sum("xxx" in line for line in lines) == 20
        assert all("…" in line and "1,234.50" in line for line in lines if "xxx" in line)
        assert "the first 20 rows" in lines[-1]

    def test_rules(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A dataclass is a table of its fields, rules as one writes them, durations in words."""
        Notebook({}).show(windrow.Rules(window="1m30s", max_delay="5s"))
        out = capsys.readouterr().out
        assert re.search(r"window +1m30s", out)
        assert "Rules(" not in out
        Notebook({}).show(Wait(waited_us=150_000_000, messages=3))
        assert re.search(r"waited +2 min 30 s\s+messages +3", capsys.readouterr().out)

    def test_in_jupyter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Jupyter gets the table as HTML."""
        shown: list[Any] = []
        monkeypatch.setattr("builtins.display", shown.append, raising=False)
        Notebook({}).show(pa.table({"key": ["pump-1"]}))
        assert "pump-1" in shown[0]._repr_mimebundle_(include=None, exclude=None)["text/html"]

    def test_sql(self, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """A query is shown like any other table."""
        Notebook({"spark": spark}).sql("SELECT 'pump-1' AS key, 2 AS messages")
        assert re.search(r"key +messages[\s─]+pump-1 +2", capsys.readouterr().out)
