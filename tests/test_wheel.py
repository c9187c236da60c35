"""The wheel: what is in it, and the job that it runs where nothing else of this repository is installed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.bundle import ROOT, project, wheel_name
from tests.engine.restricted.server import restricted_server
from tests.messages import SECOND, message, table

pytestmark = pytest.mark.ci

LIBRARY = ROOT / "lib" / "windrow"
# Everything in the wheel that is no Python.
DATA = (
    "windrow/data/collectd.parquet",
    "windrow/engine/spark/java/log_store.jar",
    "windrow/engine/spark/java/windrow/ConditionalLogStore.java",
    "windrow/py.typed",
    "windrow/report/templates/layout.html",
    "windrow/report/templates/macros.html",
    "windrow/report/templates/page.css",
    "windrow/report/templates/page.html",
    "windrow/report/templates/report.html",
    "windrow/ui/templates/failed.html",
    "windrow/ui/templates/forms.css",
    "windrow/ui/templates/live.html",
    "windrow/ui/templates/live.js",
    "windrow/ui/templates/live_layout.html",
    "windrow/ui/templates/tables.html",
)
PIP = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")


def ran(*command: object, cwd: Path | None = None, **variables: str) -> str:
    """Run a command where nothing points back to this repository, and return its output; it must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WINDROW_"))}
    clean |= variables
    given = list(map(str, command))
    ended = subprocess.run(given, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def build(into: Path) -> Path:
    """Build the wheel as databricks.yml does."""
    ran(sys.executable, "-m", "pip", "wheel", *PIP, "--no-deps", "--wheel-dir", into, ROOT)
    [wheel] = into.glob("*.whl")
    return wheel


def metadata(wheel: Path) -> Message:
    """Return what a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        [file] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return Parser().parsestr(archive.read(file).decode())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    return build(tmp_path_factory.mktemp("dist"))


def test_content(wheel: Path) -> None:
    """The wheel has every module of the library, the data that is listed here, its licence, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}
    files = {file for file in LIBRARY.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert names == {str(file.relative_to(LIBRARY.parent)) for file in files}
    assert tuple(sorted(name for name in names if not name.endswith(".py"))) == DATA
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert wheel.name == wheel_name() == f"windrow_delta-{project()['version']}-py3-none-any.whl"


def test_extras(wheel: Path) -> None:
    """`all` brings what every other extra brings, and no package that only has our name."""
    about = metadata(wheel)
    needed = [Requirement(text) for text in about.get_all("Requires-Dist")]
    brings = {
        extra: {
            (one.name, str(one.specifier)) for one in needed if one.marker and one.marker.evaluate({"extra": extra})
        }
        for extra in about.get_all("Provides-Extra")
    }
    assert all(brings.values())
    assert brings["all"] == set().union(*(found for extra, found in brings.items() if extra != "all"))
    assert not [one.name for one in needed if one.name.startswith("windrow")]


def test_pythons(wheel: Path) -> None:
    """The wheel, `make setup` and the README name the same Pythons."""
    pythons = re.findall(r"Python :: (3\.\d+)", str(metadata(wheel).get_all("Classifier")))
    bounds = SpecifierSet(project()["requires-python"])
    assert pythons == list(bounds.filter(f"3.{minor}" for minor in range(30)))
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md")]
    assert f"in {'|'.join(pythons)}) break" in texts[0]
    for text in texts:
        assert f"Python {', '.join(pythons[:-1])} or {pythons[-1]}" in text


def test_hints_name_the_distribution() -> None:
    """Whatever the library says how to install is this distribution with one of its extras."""
    texts = [file.read_text(encoding="utf-8") for file in LIBRARY.rglob("*.py")]
    said = [found for text in texts for found in re.findall(r"pip install '([\w-]+)\[([\w{},]+)\]'", text)]
    assert len(said) > 8
    assert {name for name, _ in said} == {project()["name"]}
    assert {extra for _, extra in said} - {"{extra}"} <= set(project()["optional-dependencies"])


def test_same_again(wheel: Path, tmp_path: Path) -> None:
    """The same sources give the same bytes."""
    one, other = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, build(tmp_path)))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "extra"), [("embedded", ""), pytest.param("spark", "[spark]", marks=pytest.mark.spark)]
)
def test_runs_the_job(wheel: Path, tmp_path: Path, engine: str, extra: str) -> None:
    """In a fresh environment with the wheel, and with the extra of Spark where it runs, the job batches a depot,
    what it wrote is verified there, and the demo runs in an empty directory.
    """
    ran(sys.executable, "-m", "venv", tmp_path / "venv")
    python, windrow = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "windrow"
    ran(python, "-m", "pip", "install", *PIP, "-c", ROOT / "constraints.txt", f"{wheel}{extra}")
    (tmp_path / "windrow.toml").write_text(f'depot = "depot"\nledger = "ledger"\nengine = "{engine}"\n')
    rows = [message("a", second * SECOND, second * SECOND, payload=str(second)) for second in range(100, 160)]
    pq.write_table(table(rows), tmp_path / "messages.parquet")
    ran(windrow, "ingest", "messages.parquet", cwd=tmp_path)
    said = ran(python, ROOT / "jobs" / "run_batches.py", "--depot=depot", "--ledger=ledger", cwd=tmp_path)
    assert "60 messages read, 60 accepted" in said
    ran(windrow, "verify", cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "closed batches" in ran(windrow, "demo", "--engine", engine, cwd=empty)
    assert {place.name for place in empty.iterdir()} == {"demo"}
    where = ran(python, "-c", "import windrow; print(windrow.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)


@pytest.mark.slow
@pytest.mark.spark
def test_runs_on_the_restricted_server(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment with the wheel, on a server that refuses what Databricks' serverless compute refuses, and
    whose functions run in that environment, the jobs batch, check and maintain managed tables; these are verified and
    replayed.
    """
    ran(sys.executable, "-m", "venv", tmp_path / "venv")
    python, windrow = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "windrow"
    ran(python, "-m", "pip", "install", *PIP, "-c", ROOT / "constraints.txt", f"{wheel}[spark,connect,quality]")
    tables = {"depot": "fresh.depot", "ledger": "fresh.ledger", "checkpoint_location": str(tmp_path / "checkpoints")}
    (tmp_path / "windrow.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in tables.items()))
    rows = [message("a", second * SECOND, second * SECOND, payload=str(second)) for second in range(100, 160)]
    pq.write_table(table(rows), tmp_path / "messages.parquet")
    with restricted_server(tmp_path / "server", python, ()) as server:
        run = partial(ran, cwd=tmp_path, SPARK_REMOTE=server.remote)
        run(python, "-c", f"import pyspark.sql as s; {SESSION}.sql('CREATE SCHEMA fresh').collect()")
        run(windrow, "init")
        run(windrow, "ingest", "messages.parquet")
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in tables.items()]
        assert "60 messages read, 60 accepted" in run(python, ROOT / "jobs" / "run_batches.py", *flags)
        run(python, ROOT / "jobs" / "check_quality.py", "--ledger=fresh.ledger")
        run(python, ROOT / "jobs" / "maintain_tables.py", *flags[:2])
        assert "no difference" in run(windrow, "verify")
        assert "equal, to the last byte" in run(windrow, "replay")


SESSION = "s.SparkSession.builder.getOrCreate()"
