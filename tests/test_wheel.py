"""The wheel: what is in it, and the job that it runs where nothing else of this repository is installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.bundle import ROOT, project
from tests.messages import SECOND, message, table

LIBRARY = ROOT / "lib" / "windrow"
PIP = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")


def ran(*command: object, cwd: Path | None = None) -> str:
    """Run a command where nothing points back to this repository, and return its output; it must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WINDROW_"))}
    given = list(map(str, command))
    ended = subprocess.run(given, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def build(into: Path) -> Path:
    """Build the wheel as databricks.yml does."""
    ran(sys.executable, "-m", "pip", "wheel", *PIP, "--no-deps", "--wheel-dir", into, ROOT)
    [wheel] = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    return build(tmp_path_factory.mktemp("dist"))


def test_content(wheel: Path) -> None:
    """
    The wheel has every file of the library, its data and its mark of being typed, its licence, and nothing else.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}
    files = {file for file in LIBRARY.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert names == {str(file.relative_to(LIBRARY.parent)) for file in files}
    assert {"windrow/py.typed", "windrow/data/collectd.parquet"} <= names
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert wheel.name == f"windrow-{project()['version']}-py3-none-any.whl"


def test_same_again(wheel: Path, tmp_path: Path) -> None:
    """
    The same sources give the same bytes.
    """
    one, other = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, build(tmp_path)))
    assert one == other


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.spark])])
def test_runs_the_job(wheel: Path, tmp_path: Path, engine: str) -> None:
    """
    In a fresh environment with the wheel and the extra of an engine alone, the job batches a depot, and what it wrote
    is verified there.
    """
    ran(sys.executable, "-m", "venv", tmp_path / "venv")
    python, windrow = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "windrow"
    ran(python, "-m", "pip", "install", *PIP, "-c", ROOT / "constraints.txt", f"{wheel}[{engine}]")
    (tmp_path / "windrow.toml").write_text(f'depot = "depot"\nledger = "ledger"\nengine = "{engine}"\n')
    rows = [message("a", second * SECOND, second * SECOND, payload=str(second)) for second in range(100, 160)]
    pq.write_table(table(rows), tmp_path / "messages.parquet")
    ran(windrow, "ingest", "messages.parquet", cwd=tmp_path)
    said = ran(python, ROOT / "jobs" / "run_batches.py", "--depot=depot", "--ledger=ledger", cwd=tmp_path)
    assert "60 messages read, 60 accepted" in said
    ran(windrow, "verify", cwd=tmp_path)
    where = ran(python, "-c", "import windrow; print(windrow.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
