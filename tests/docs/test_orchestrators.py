"""The pages about Dagster, Airflow, dbt and containers, and the dashboard of Grafana: tried, or looked up."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import promql_parser
import pyarrow.parquet as pq
import pytest
import sqlglot
from deltalake import DeltaTable
from ruamel.yaml import YAML

from tests.bundle import ROOT
from tests.messages import SECOND, message, table
from windrow.cli import main
from windrow.model import tables
from windrow.operate.metrics import PrometheusMetrics

pytestmark = pytest.mark.ci

PAGES = ROOT / "docs" / "howto"
BLOCKS = {"windrow_dagster.py": "orchestrators.md", "windrow_airflow.py": "orchestrators.md", "make_tests.py": "dbt.md"}
COUNTS = {"messages": 1, "accepted": 1, "rejected": 0, "closed": 0}
MACROS = {"$__rate_interval": "5m", "$__range": "1h", "$ledger": "data/ledger"}
SOURCE = "{{ source('windrow', 'ledger') }}"


def block(page: str, name: str) -> str:
    """Return the block of a page whose first line is a comment with the name of its file."""
    text = (PAGES / page).read_text(encoding="utf-8")
    [content] = re.findall(rf"^```\w+\n((?:#|--) {re.escape(name)}\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(content)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with settings of the embedded engine and a depot with a message that nobody has read."""
    monkeypatch.chdir(tmp_path)
    places = f'depot = "{tmp_path}/depot"\nledger = "{tmp_path}/ledger"\n'
    (tmp_path / "windrow.toml").write_text(f'{places}engine = "embedded"\n')
    pq.write_table(table([message("a", 100 * SECOND, 100 * SECOND)]), tmp_path / "messages.parquet")
    assert main(["ingest", "messages.parquet"]) == 0
    return tmp_path


def run_with(home: Path, name: str, program: str) -> Any:
    """Run a program beside a block of the pages, in a process of its own, and return the JSON of its last line."""
    (home / name).write_text(block(BLOCKS[name], name).replace("/srv/windrow", str(home)))
    environment = os.environ | {"AIRFLOW_HOME": str(home / "airflow"), "DAGSTER_HOME": "", "PYTHONPATH": str(home)}
    del environment["DAGSTER_HOME"]
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", BLOCKS)
def test_is_python(name: str) -> None:
    """Each block is Python, and every name that it takes from Windrow is there."""
    taken = []
    for node in ast.walk(ast.parse(block(BLOCKS[name], name))):
        if isinstance(node, ast.ImportFrom | ast.Import) and "windrow" in ast.unparse(node):
            exec(ast.unparse(node), {})  # noqa: S102 - our own page
            taken.append(ast.unparse(node))
    assert bool(taken) == (name != "make_tests.py")


class TestDagster:
    @pytest.mark.skipif(not find_spec("dagster"), reason="needs dagster: make test-orchestrators")
    def test_materializes(self, home: Path) -> None:
        """The asset has the counts of the run, its check passes, and the schedule starts it."""
        program = """
import json
from windrow_dagster import defs
done = defs.resolve_implicit_global_asset_job_def().execute_in_process()
[made] = done.asset_materializations_for_node("ledger")
[checked] = done.get_asset_check_evaluations()
cron = defs.resolve_schedule_def("every_five_minutes").cron_schedule
print(json.dumps([{name: value.value for name, value in made.metadata.items()}, checked.passed, cron]))
"""
        assert run_with(home, "windrow_dagster.py", program) == [COUNTS, True, "*/5 * * * *"]
        assert DeltaTable(home / "ledger").version() >= 1

    @pytest.mark.skipif(not find_spec("dagster"), reason="needs dagster: make test-orchestrators")
    def test_wrong_settings(self, home: Path) -> None:
        """Wrong settings fail the asset, and tell Dagster not to try again."""
        program = """
import json
import dagster
import windrow_dagster
windrow_dagster.SETTINGS = "absent.toml"
try:
    windrow_dagster.ledger()
except dagster.Failure as failure:
    print(json.dumps([failure.description, failure.allow_retries]))
"""
        description, again = run_with(home, "windrow_dagster.py", program)
        assert "WINDROW-SETTINGS" in description
        assert not again


class TestAirflow:
    @pytest.mark.skipif(not find_spec("airflow"), reason="needs apache-airflow: make test-orchestrators")
    def test_executes(self, home: Path) -> None:
        """The operator returns the counts of the run; wrong settings fail the task for good."""
        program = """
import json
from airflow.sdk.exceptions import AirflowFailException
from windrow_airflow import dag
task = dag.get_task("run")
counts = task.execute({})
task.config = "absent.toml"
try:
    task.execute({})
except AirflowFailException as error:
    print(json.dumps([counts, str(error), dag.max_active_runs]))
"""
        counts, message, runs = run_with(home, "windrow_airflow.py", program)
        assert (counts, runs) == (COUNTS, 1)
        assert "WINDROW-SETTINGS" in message


class TestDbt:
    def test_source(self) -> None:
        """The source names the table that the program and the model read, and asks for columns of a ledger."""
        sources = YAML(typ="safe", pure=True).load(block("dbt.md", "models/windrow.yml"))["sources"]
        [source] = sources
        [ledger] = source["tables"]
        assert f"{{{{ source('{source['name']}', '{ledger['name']}') }}}}" == SOURCE
        place = f'LEDGER = ("{source["database"]}", "{source["schema"]}", "{ledger["name"]}")'
        assert place in block("dbt.md", "make_tests.py")
        for query in (ledger["config"]["loaded_at_query"], block("dbt.md", "models/closed_batches.sql")):
            read = sqlglot.parse_one(re.sub(r"\{%.*?%\}|\{\{ config.*?\}\}", "", plain(query)), dialect="databricks")
            columns = {column.name for column in read.find_all(sqlglot.exp.Column)}
            assert columns
            assert columns <= set(tables.ledger_schema().names)

    def test_tests(self, home: Path) -> None:
        """The program writes a dbt test of each invariant that `windrow quality --sql` prints: with its severity, over
        the source, in SQL that can be parsed.
        """
        bin_ = home / "bin"
        bin_.mkdir()
        (bin_ / "windrow").write_text(f'#!/bin/sh\nexec {sys.executable} -m windrow "$@"\n')
        (bin_ / "windrow").chmod(0o755)
        (home / "make_tests.py").write_text(block("dbt.md", "make_tests.py"))
        environment = os.environ | {"PATH": f"{bin_}:{os.environ['PATH']}"}
        printed = subprocess.check_output(["windrow", "quality", "--sql"], cwd=home, env=environment, text=True)
        subprocess.run([sys.executable, "make_tests.py"], cwd=home, env=environment, check=True)
        severities = dict(re.findall(r"^-- (\w+) \((\w+)\): ", printed, re.MULTILINE))
        files = {file.stem.removeprefix("windrow_"): file.read_text() for file in (home / "tests").rglob("*.sql")}
        assert files.keys() == {name for name in severities if not name.startswith("format_")}
        for name, text in files.items():
            severity = "error" if severities[name] == "critical" else "warn"
            assert f"config(severity='{severity}')" in text
            assert SOURCE in text
            assert "`main`" not in text
            assert sqlglot.parse_one(re.sub(r"\{\{ config.*?\}\}", "", plain(text)), dialect="databricks")


def plain(query: str) -> str:
    """Return a query of dbt with tables in place of what dbt puts there."""
    return query.replace(SOURCE, "ledger").replace("{{ this }}", "ledger")


class TestContainer:
    def test_linter(self, tmp_path: Path) -> None:
        """Hadolint finds nothing, not even something to note."""
        file = tmp_path / "Containerfile"
        file.write_text(block("container.md", "Containerfile"))
        linter = Path(sys.executable).with_name("hadolint")
        linted = subprocess.run([linter, "--no-color", file], capture_output=True, text=True, check=False)
        assert (linted.returncode, linted.stdout) == (0, "")

    def test_command(self) -> None:
        """The image starts a command that is there, with options that it has."""
        text = block("container.md", "Containerfile")
        [entry], [arguments] = (re.findall(rf"^{word} (.*)$", text, re.MULTILINE) for word in ("ENTRYPOINT", "CMD"))
        command = [*json.loads(entry), *json.loads(arguments)]
        assert command[:3] == ["tini", "--", "windrow"]
        assert main([*command[3:], "--help"]) == 0


class TestDashboard:
    DASHBOARD = json.loads((ROOT / "docs" / "howto" / "grafana.json").read_text(encoding="utf-8"))

    def queries(self) -> list[str]:
        """Return the queries of all panels, as Grafana would send them."""
        queries = [target["expr"] for panel in self.DASHBOARD["panels"] for target in panel.get("targets", [])]
        for macro, value in MACROS.items():
            queries = [query.replace(macro, value) for query in queries]
        return queries

    def test_metrics(self) -> None:
        """Every query can be parsed, and asks for metrics and labels that are registered."""
        registry = PrometheusMetrics().registry
        known = {name for metric in registry.collect() for name in names(metric.name, metric.type)}
        labels = {label for collector in registry._collector_to_names for label in collector._labelnames} | {"le"}
        metrics: set[str] = set()
        for query in self.queries():
            promql_parser.parse(query)
            metrics |= set(re.findall(r"\bwindrow_\w+", query))
            used = re.findall(r"(\w+)=~?\"", query) + re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", query)))
            assert used
            assert set(used) <= labels
        assert len(metrics) > 10
        assert metrics <= known

    def test_panels(self) -> None:
        """Each panel has a title, a description, queries, and a place and a number of its own."""
        panels = self.DASHBOARD["panels"]
        assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels)
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len(panels)
        assert [variable["name"] for variable in self.DASHBOARD["templating"]["list"]] == ["datasource", "ledger"]


def names(metric: str, kind: str) -> list[str]:
    """Return the names of the series of a metric."""
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return [metric + ending for ending in endings.get(kind, [""])]
