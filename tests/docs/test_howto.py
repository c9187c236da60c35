"""The how-to pages about deploying and scheduling: units, crontab, commands and SQL are tried, names are looked up."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlglot
import typer
from databricks.bundles.jobs import Job
from databricks.bundles.pipelines import Pipeline
from deltalake import DeltaTable
from ruamel.yaml import YAML

from tests.bundle import ROOT, bundle, jobs
from tests.clocks import NOW
from tests.messages import SECOND, Row, message, table
from windrow.cli import app, main
from windrow.model import messages, tables
from windrow.model.timestamps import time_text
from windrow.reading import alarms

pytestmark = pytest.mark.ci

PAGES = ROOT / "docs" / "howto"
HOME = "/srv/windrow"
WINDROW = f"{HOME}/.venv/bin/windrow"
FIELDS = {"minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 7}
SCRIPT = "#!/bin/sh\nexec {python} -c 'import sys; from windrow.cli import main; sys.exit(main())' \"$@\"\n"


def page(name: str) -> str:
    """Return a page."""
    return (PAGES / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return the blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)


def units() -> dict[str, str]:
    """Return the units of the page by their names."""
    return {Path(block.splitlines()[0].removeprefix("# ")).name: block for block in blocks("schedule.md", "ini")}


def parsed(unit: str) -> configparser.ConfigParser:
    """Return a unit as sections of keys; a key may be there once only."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    return parser


def require_known(line: str) -> None:
    """Require that the windrow commands of a line, their flags and conditions are those of the command line."""
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, rest in re.findall(r"bin/windrow (\w+)(.*?)(?= \|\| |$)", line, re.MULTILINE):
        words = shlex.split(rest)
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
        for flag, value in pairwise(words):
            if flag == "--fail-if":
                alarms.parse(value)


class TestUnits:
    def test_names(self) -> None:
        """Every timer has its service, and what is called on failure is there."""
        units_by_name = units()
        assert len(units_by_name) >= 6
        for name, unit in units_by_name.items():
            assert not name.endswith(".timer") or name.replace(".timer", ".service") in units_by_name
            for called in re.findall(r"^OnFailure=(.*)$", unit, re.MULTILINE):
                assert called.replace("%n", "") in units_by_name

    def test_commands(self) -> None:
        """What a service starts is a command with flags it has; a run is ended by a signal to itself alone, and wrong
        settings do not start it again.
        """
        for name, unit in units().items():
            require_known(unit)
            if " run" in unit and name.endswith(".service"):
                service = parsed(unit)["Service"]
                assert service["KillMode"] == "mixed"
                assert ("Restart" in service) == ("RestartPreventExitStatus" in service)

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
    def test_systemd_takes_them(self, tmp_path: Path) -> None:
        """Nothing is wrong with any unit for systemd, where the programs that it starts are there."""
        for name, unit in units().items():
            (tmp_path / name).write_text(re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", unit, flags=re.MULTILINE))
        for name in units():
            file = tmp_path / name.replace("@.", "@some.")
            verify = ["systemd-analyze", "verify", "--man=no", str(file)]
            ended = subprocess.run(verify, capture_output=True, text=True, check=False)
            complaints = [line for line in ended.stderr.splitlines() if "windrow" in line or str(tmp_path) in line]
            assert (ended.returncode, complaints) == (0, []), name


class TestCrontab:
    def lines(self) -> list[tuple[list[str], str]]:
        """Return the fields and the command of each line that starts something."""
        [crontab] = blocks("schedule.md", "cron")
        entries = [line for line in crontab.splitlines() if not re.match(r"#|\w+=", line)]
        return [(line.split(maxsplit=5)[:5], line.split(maxsplit=5)[5]) for line in entries]

    def test_fields(self) -> None:
        """Each line has five fields of times in their ranges, and a command without a bare %."""
        assert len(self.lines()) == 4
        for fields, command in self.lines():
            for field, most in zip(fields, FIELDS.values(), strict=True):
                assert re.fullmatch(r"(\*|\d+|\d+-\d+)(/\d+)?(,\d+)*", field)
                assert all(int(number) <= most for number in re.findall(r"\d+", field))
            assert not re.search(r"(?<!\\)%", command)
            require_known(command)

    @pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
    def test_runs(self, home: Path) -> None:
        """Each line does its work and says nothing; after a failure it says the reason, for cron to send."""
        outputs = [sh(home, command) for _, command in self.lines()]
        assert outputs == [""] * 4
        assert '"event": "run ended"' in (home / "run.log").read_text()
        (home / "windrow.toml").write_text("depot = 7\n")
        assert "WINDROW-SETTINGS" in sh(home, self.lines()[0][1])

    @pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
    def test_takes_turns(self, home: Path) -> None:
        """While a run works the next one ends with success, and has done nothing."""
        with subprocess.Popen(["flock", "run.lock", "cat"], cwd=home, stdin=subprocess.PIPE) as other:
            while not subprocess.run(["flock", "--nonblock", "run.lock", "true"], cwd=home, check=False).returncode:
                assert other.poll() is None
            assert sh(home, self.lines()[0][1]) == ""
            other.communicate()
        assert (home / "run.log").read_text() == ""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page calls /srv/windrow: a command, settings of the embedded engine, a depot and a ledger."""
    monkeypatch.chdir(tmp_path)
    command = tmp_path / ".venv" / "bin" / "windrow"
    command.parent.mkdir(parents=True)
    command.write_text(SCRIPT.format(python=sys.executable))
    command.chmod(0o755)
    (tmp_path / "windrow.toml").write_text('depot = "depot"\nledger = "ledger"\nengine = "embedded"\n')
    pq.write_table(table([message("a", 100 * SECOND, 100 * SECOND)]), tmp_path / "messages.parquet")
    assert main(["ingest", "messages.parquet"]) == 0
    assert main(["run"]) == 0
    return tmp_path


def sh(home: Path, command: str) -> str:
    """Run a command as cron would, at a home of its own, and return what it would mail."""
    arguments = ["/bin/sh", "-c", command.replace(HOME, str(home))]
    return subprocess.run(
        arguments, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=os.environ
    ).stdout


class TestDatabricks:
    def test_jobs_and_variables(self) -> None:
        """The page's tables have every job and every variable of the bundle, and no other."""
        rows = [row.split("|") for row in page("databricks.md").splitlines() if row.startswith("| `")]
        named = [set(re.findall(r"`(\w+)`", row[1])) for row in rows]
        assert set().union(*named) == jobs().keys() | bundle()["variables"].keys()

    def test_commands(self) -> None:
        """Every target, job and variable that the page's commands name is there."""
        lines = [line for line in page("databricks.md").split("`") if "databricks bundle " in line]
        words = [shlex.split(line) for block in lines for line in block.splitlines() if line.startswith("databricks")]
        assert len(words) >= 5
        for line in words:
            assert line[line.index("-t") + 1] in bundle()["targets"]
            if "--var" in line:
                assert line[line.index("--var") + 1].split("=")[0] in bundle()["variables"]
            if line[2] == "run":
                assert line[-1] in jobs()

    def test_resources(self) -> None:
        """Each trigger and the permissions take the place of what run_batches has, and the pipeline is one."""
        documents = [YAML(typ="safe", pure=True).load(block) for block in blocks("databricks.md", "yaml")]
        assert [key for document in documents for key in document] == ["permissions", "trigger", "trigger", "pipelines"]
        for own in documents[:-1]:
            job = jobs()["run_batches"] | own
            assert Job.from_dict(job).as_dict() == job
        [pipeline] = documents[-1]["pipelines"].values()
        assert Pipeline.from_dict(pipeline).as_dict() == pipeline

    def test_sql(self) -> None:
        """The statements are Databricks' SQL, the depot that they make has the columns and properties of a depot, and
        what they read is in a view.
        """
        made = [sqlglot.parse(block, dialect="databricks") for block in blocks("databricks.md", "sql")]
        [table_] = [
            statement
            for block in made
            for statement in block
            if isinstance(statement, sqlglot.exp.Create) and statement.this.find(sqlglot.exp.ColumnDef)
        ]
        assert [column.name for column in table_.find_all(sqlglot.exp.ColumnDef)] == messages.schema().names
        [create] = [block for block in blocks("databricks.md", "sql") if "CREATE TABLE IF" in block]
        # A catalog that manages tables refuses a table without deletion vectors.
        properties = {name: value for name, value in tables.PROPERTIES.items() if "DeletionVectors" not in name}
        assert all(f"{name} = {value}" in create for name, value in properties.items())
        [select] = [statement for block in made for statement in block if isinstance(statement, sqlglot.exp.Select)]
        history = tables.views("ledger")["microbatches"]
        assert all(column.name in history for column in select.find_all(sqlglot.exp.Column))


def test_exit_statuses() -> None:
    """The page tells every exit status once."""
    rows = [row for row in page("schedule.md").splitlines() if re.match(r"\| \d ", row)]
    assert [row[2] for row in rows] == ["0", "1", "2", "3"]


class TestSparkSubmit:
    def command(self) -> list[str]:
        """Return the words of the page's command."""
        [block] = blocks("schedule.md", "console")
        return shlex.split(block.replace("\\\n", ""))

    def test_packages(self) -> None:
        """Delta comes in the version that the library is tested with, for the same Spark."""
        pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
        spark = ".".join(pinned["pyspark"].split(".")[:2])
        assert f"io.delta:delta-spark_{spark}_2.13:{pinned['delta-spark']}" in self.command()
        assert (ROOT / "jobs" / "run_batches.py").is_file()

    @pytest.mark.slow
    @pytest.mark.spark
    def test_runs(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a local master the command batches what is new, and its exit status is that of Windrow."""
        shutil.rmtree(home / "ledger")
        ours = {f"{HOME}/.venv/bin/python": sys.executable, "spark://spark-master:7077": "local[2]"}
        ours |= {"jobs/run_batches.py": str(ROOT / "jobs" / "run_batches.py"), HOME: str(home)}
        words = ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
        for word in self.command()[1:]:
            for theirs, here in ours.items():
                word = word.replace(theirs, here)  # noqa: PLW2901 - one after the other
            words.append(word)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        submit = ["spark-submit", *words]
        (home / "windrow.toml").write_text(f'depot = "{home}/depot"\nledger = "{home}/ledger"\nengine = "spark"\n')
        ended = subprocess.run(submit, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert "1 message read, 1 accepted" in ended.stdout
        (home / "windrow.toml").write_text("depot = 7\n")
        assert subprocess.run(submit, capture_output=True, check=False).returncode == 2


class TestForeachBatch:
    """Streams of pages, followed with a fleet of which one device is ten minutes ahead, and in every file first."""

    def follow(self, spark: Any, tmp_path: Path, block: str, arrive: Callable[[Path, list[Row]], None]) -> None:
        """Run a stream twice, each time after ten messages of each device have arrived."""
        arriving = tmp_path / "data" / "arriving"
        arriving.mkdir(parents=True)
        for number in range(2):
            times = [NOW + (10 * number + at) * SECOND for at in range(10)]
            ahead = {"fast": 600 * SECOND, "a": 0, "b": 0}
            rows = [message("t", at + by, payload="1.5", key=key) for key, by in ahead.items() for at in times]
            arrive(arriving / str(number), rows)
            exec(block.replace("data/", f"{tmp_path}/data/"), {"spark": spark})  # noqa: S102 - our own page

    @pytest.mark.slow
    def test_stream(self, tmp_path: Path, spark: Any) -> None:
        """The stream of the page batches what has arrived, and the fast device costs the others no message."""

        def arrive(place: Path, rows: list[Row]) -> None:
            pq.write_table(table(rows).select(["key", "type", "event_time", "payload"]), f"{place}.parquet")

        block = blocks("foreach-batch.md", "python")[0]
        self.follow(spark, tmp_path, block, arrive)
        assert_all_kept(tmp_path / "data" / "ledger")

    @pytest.mark.slow
    def test_files(self, tmp_path: Path, spark: Any) -> None:
        """The same of the stream of files on the page about Kafka."""

        def arrive(place: Path, rows: list[Row]) -> None:
            lines = [
                f'{{"device": "{row["key"]}", "kind": "t", "at": "{time_text(row["event_time"])}", "value": 1.5}}\n'
                for row in rows
            ]
            place.with_suffix(".json").write_text("".join(lines))

        self.follow(spark, tmp_path, blocks("kafka.md", "python")[1], arrive)
        assert_all_kept(tmp_path / "data" / "file_ledger")


def assert_all_kept(ledger: Path) -> None:
    """Require that 60 messages are in batches, and none was rejected."""
    rows = DeltaTable(str(ledger)).to_pyarrow_table().to_pylist()
    assert [row["reason"] for row in rows if row["state"] == "rejected"] == []
    assert sum(len(row["messages"]) for row in rows if row["state"] in ("open", "closed")) == 60
