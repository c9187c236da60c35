"""The notebooks run as they stand, cell by cell, over a ledger of the bundled sample."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import windrow
from notebooks.jupyter.make_notebooks import HERE, SOURCES, cells, converted
from windrow.delta.creation import create_depot
from windrow.errors import NotFoundError
from windrow.settings.settings import Settings

pytest.importorskip("altair")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = SOURCES
HALF = "# Databricks notebook source\n# MAGIC %md\nx = 1\n"
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass
class Done:
    """What the cells of a notebook left: their names, the result of each SQL cell, and what was shown."""

    names: dict[str, Any]
    results: list[pa.Table] = field(default_factory=list)
    out: str = ""


@pytest.fixture
def run(sample: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Callable[..., Done]]:
    """Run a notebook in one namespace, with parameters: Python as it stands, SQL by the session."""

    def given(name: str, **parameters: str) -> Done:
        for parameter, value in ({"config": str(sample / "windrow.toml")} | parameters).items():
            monkeypatch.setenv(f"NOTEBOOK_{parameter.upper()}", value)
        outcome = Done({"spark": spark, "__name__": "__main__"})
        for cell in cells(ROOT / "notebooks" / f"{name}.py"):
            if cell.language == "python":
                exec(compile(cell.text, name, "exec"), outcome.names)  # noqa: S102 - our own notebooks
            elif cell.language == "sql":
                outcome.results.append(spark.sql(cell.text).toArrow())
        outcome.out = capsys.readouterr().out
        return outcome

    yield given
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


@pytest.mark.ci
def test_explore_batches(run: Callable[..., Done]) -> None:
    """Batches, their messages and the rejections add up to the sample, and the picture has the messages of one key."""
    notebook = run("explore_batches")
    by_key, inside, outcomes = notebook.results
    assert pc.sum(by_key["batches"]).as_py() == 18
    assert inside.num_rows == 20
    assert pc.sum(outcomes["messages"]).as_py() == 51_004
    refused = {row["outcome"] for row in outcomes.to_pylist()} - {"in a batch"}
    assert refused == {"too_old", "duplicate"}
    shares = outcomes.group_by("source").aggregate([("percent", "sum")])["percent_sum"].to_pylist()
    assert shares == pytest.approx([100] * len(shares), abs=0.02)
    assert notebook.names["by_type"].agg({"messages": "sum"}).first()[0] == pc.sum(by_key["messages"]).as_py()
    datasets = notebook.names["chart"].to_dict()["datasets"]
    assert datasets.get("messages") or datasets["bands"]
    assert {row["key"] for row in datasets["streams"]} == {notebook.names["key"]}


@pytest.mark.ci
def test_why_rejected(run: Callable[..., Done]) -> None:
    """Without parameters it takes the message that missed most, says which max_delay would have kept it, and draws
    it.
    """
    notebook = run("why_rejected")
    reasons, needed = notebook.results
    assert pc.sum(reasons["messages"]).as_py() == 338
    assert notebook.names["mine"]["missed_by_us"] == 25_922_104
    assert 'max_delay = "56s" would have kept it' in notebook.out
    assert max(needed["all_need_seconds"].to_pylist()) == 56
    drawn = notebook.names["chart"].to_dict()["datasets"]
    assert notebook.names["mine"]["id"] in {row["id"] for row in drawn.get("messages", drawn.get("bands"))}


@pytest.mark.ci
def test_why_rejected_by_identity(run: Callable[..., Done], sample: Path) -> None:
    """Asked for a key, type and time it shows each arrival of that message: the one in a batch and the duplicate."""
    duplicates = DeltaTable(sample / "ledger").to_pyarrow_table(filters=[("state", "=", "rejected")])
    twice = duplicates.filter(pc.equal(duplicates["reason"], "duplicate")).slice(0, 1).to_pylist()[0]
    notebook = run("why_rejected", key=twice["key"], type=twice["type"], time=twice["event_time"].isoformat())
    outcomes = sorted(row["outcome"] for row in notebook.names["arrivals"].collect())
    assert outcomes in (["closed", "duplicate"], ["duplicate", "open"])
    assert "the first one wins" in notebook.out
    assert {row["reason"] for row in notebook.results[0].to_pylist()} == {"duplicate"}
    notebook = run("why_rejected", key="nobody", type="", time="")
    assert "No rejected message matches the parameters" in notebook.out
    assert notebook.names["chart"] is None


@pytest.mark.ci
def test_tune_rules(run: Callable[..., Done]) -> None:
    """A row for each pair that the parameters ask for, with the rejections that the ledger has for the rules in
    force.
    """
    notebook = run("tune_rules", windows="10s, 45s", delays="5s,30s,56s")
    tuned = notebook.names["tuned"].to_pylist()
    assert [(row["window_us"] // 10**6, row["max_delay_us"] // 10**6) for row in tuned] == [
        (window, delay) for window in (10, 45) for delay in (5, 30, 56)
    ]
    as_it_is = tuned[4]
    assert (as_it_is["too_old"], as_it_is["duplicate"], as_it_is["batch_count"]) == (250, 88, 23)
    pairs = notebook.names["chart"].to_dict()["datasets"]["pairs"]
    assert [pair["chosen"] for pair in pairs] == [False, False, False, False, True, False]
    assert 'max_delay = "25s" rejects 413 of 51,004 as too old' in notebook.out


@pytest.mark.ci
def test_watch_batcher(run: Callable[..., Done], sample: Path) -> None:
    """It says where the ledger stands, that nothing waits, which sources there are, and which figure needs a look."""
    notebook = run("watch_batcher", minutes="0")
    stands, clocks, last, figures = (table.to_pylist() for table in notebook.results)
    assert [(row["depot_version"], row["microbatch"], row["paused"]) for row in stands] == [(1, 1, False)]
    assert "0 versions wait" in notebook.out
    assert {row["source"] for row in clocks} == {"edge-a", "edge-b", "edge-c"}
    assert [(row["message_count"], row["rejected"]) for row in last] == [(51_004, 338)]
    looks = {row["what"]: (row["figure"], row["look"]) for row in figures}
    assert looks["rejected in the last 10 microbatches, percent"] == (0.66, False)
    assert looks["the ledger is paused"] == (0, False)
    bars = notebook.names["chart"].to_dict()["datasets"]["bars"]
    assert [(bar["message_count"], bar["rejected"]) for bar in bars] == [(51_004, 338)]
    assert 0 < bars[0]["newest_ms"] < bars[0]["oldest_ms"]
    [noted] = windrow.reading.history(str(sample / "ledger"))["commit_ms"].to_pylist()
    [drawn] = notebook.names["history"]["commit_ms"].to_pylist()
    assert 0 < drawn == pytest.approx(noted, abs=1_000)  # Spark goes by the time of the log's file


@pytest.mark.ci
@pytest.mark.slow_unless({"name": "explore_batches"})
@pytest.mark.parametrize("name", ["explore_batches", "watch_batcher"])
def test_empty_ledger(run: Callable[..., Done], tmp_path: Path, name: str) -> None:
    """Over a ledger that has read nothing a notebook ends with the error that there is nothing yet."""
    depot, ledger = str(tmp_path / "depot"), str(tmp_path / "ledger")
    create_depot(depot, pa.string())
    windrow.run(Settings(depot=depot, ledger=ledger, engine="embedded"))
    (tmp_path / "windrow.toml").write_text(f'depot = "{depot}"\nledger = "{ledger}"\n')
    with pytest.raises(NotFoundError):
        run(name, config=str(tmp_path / "windrow.toml"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
class TestFormat:
    def test_begins_with_what_it_is_for(self, file: Path) -> None:
        """The first cell has a title and says what the notebook is for and which parameters it takes."""
        first = cells(file)[0]
        assert first.language == "md"
        assert re.match(r"# \w", first.text)
        assert "Parameters:" in first.text

    def test_imports_resolve(self, file: Path) -> None:
        """Whatever a cell imports is there."""
        code = [cell.text for cell in cells(file) if cell.language == "python"]
        imports = [
            node for text in code for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert imports
        for statement in imports:
            exec(ast.unparse(statement), {})  # noqa: S102 - our own notebooks

    def test_links_resolve(self, file: Path) -> None:
        """Every link in a text cell leads to a file of the repository."""
        links = [link for cell in cells(file) if cell.language == "md" for link in LINK.findall(cell.text)]
        assert links
        assert all((file.parent / link).exists() for link in links), links


class TestJupyter:
    @pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
    def test_up_to_date(self, file: Path) -> None:
        """Each notebook is what `make notebooks` makes of its source, valid, and its links lead to files."""
        made = HERE / f"{file.stem}.ipynb"
        assert made.read_text(encoding="utf-8") == converted(file)
        notebook = nbformat.read(made, as_version=4)
        nbformat.validate(notebook)
        links = [link for cell in notebook.cells if cell.cell_type == "markdown" for link in LINK.findall(cell.source)]
        assert links
        assert all((HERE / link).exists() for link in links), links

    def test_no_other(self) -> None:
        """There is no notebook without a source."""
        assert {file.stem for file in HERE.glob("*.ipynb")} == {file.stem for file in NOTEBOOKS}

    def test_without_spark(self, sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        """The notebook that needs no Spark runs cell by cell, and shows the rules as one writes them."""
        monkeypatch.setenv("NOTEBOOK_CONFIG", str(sample / "windrow.toml"))
        names = run_jupyter("tune_rules")
        assert "spark" not in names
        out = capsys.readouterr().out
        assert re.search(r"max_delay +30s", out)
        assert "Rules(" not in out

    @pytest.mark.ci
    def test_sql(self, sample: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        """A cell of SQL shows its rows."""
        monkeypatch.setenv("NOTEBOOK_CONFIG", str(sample / "windrow.toml"))
        run_jupyter("explore_batches", spark=spark)
        out = capsys.readouterr().out
        assert "in a batch" in out
        assert re.search(r"messages\s+each|messages each", out)
        assert "in a batch" in out

    @pytest.mark.parametrize("text", ["x = 1", "# Databricks notebook source\n# MAGIC %r\n", HALF])
    def test_refused(self, tmp_path: Path, text: str) -> None:
        """What is no notebook of a known kind is refused with its reason."""
        (tmp_path / "some.py").write_text(text)
        with pytest.raises(ValueError, match=r"some\.py|'%r'|either magic or Python"):
            converted(tmp_path / "some.py")


def run_jupyter(name: str, **names: Any) -> dict[str, Any]:
    """Run the code of an .ipynb cell by cell, and return the names that it left."""
    for cell in nbformat.read(HERE / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, name, "exec"), names)  # noqa: S102 - our own notebooks
    return names


class TestPage:
    """The blocks of docs/notebooks.md."""

    PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """Return the blocks of a language."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.PAGE, re.DOTALL | re.MULTILINE)

    @pytest.mark.slow
    def test_console(self, sample: Path, tmp_path: Path) -> None:
        """Each notebook that the page starts runs as a program, with a session of its own, from the project's
        directory.
        """
        lines = [line for line in self.blocks("console")[0].splitlines() if not line.startswith("make ")]
        assert len(lines) == 2
        for line in lines:
            command = line.replace("demo/windrow.toml", str(sample / "windrow.toml"))
            command = command.replace(".venv/bin/python", sys.executable)
            completed = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
            assert completed.returncode == 0, completed.stderr
            assert completed.stdout

    @pytest.mark.ci
    def test_python(self, sample: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        """The Python of the page runs in a notebook of one's own, and shows the streams."""
        monkeypatch.setenv("NOTEBOOK_CONFIG", str(sample / "windrow.toml"))
        for block in self.blocks("python"):
            exec(block, {"spark": spark})  # noqa: S102 - our own page
        assert "edge-a" in capsys.readouterr().out
