"""The package of docs/howto/format.md is found by its entry point, and works through the command on both engines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deltalake import DeltaTable

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "format.md").read_text(encoding="utf-8")
PROGRAM = "import sys; from windrow.cli import main; sys.exit(main())"


def blocks(language: str) -> list[str]:
    """Return the page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the page's settings and log, and beside it the package as pip would install it."""
    (tmp_path / "home").mkdir()
    install(tmp_path / "packages", blocks("python")[0])
    (tmp_path / "home" / "windrow.toml").write_text(blocks("toml")[1], encoding="utf-8")
    (tmp_path / "home" / "pumps.log").write_text(blocks("text")[0], encoding="utf-8")
    return tmp_path / "home"


def install(packages: Path, module: str) -> None:
    """Put a module and the entry points of the page's project into a directory."""
    project = tomllib.loads(blocks("toml")[0])["project"]
    described = packages / f"windrow_logfmt-{project['version']}.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    [(group, entries)] = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (packages / "windrow_logfmt.py").write_text(module, encoding="utf-8")


def windrow(home: Path, *words: str, program: str = PROGRAM, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with the package on its path."""
    path = os.pathsep.join([str(home.parent / "packages"), str(ROOT / "lib")])
    environment = os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable} | variables
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)


def outcome(home: Path, ledger: str) -> list[tuple[object, ...]]:
    """Return the messages and rejects of a ledger."""
    rows = DeltaTable(str(home / "data" / ledger)).to_pyarrow_table().to_pylist()
    messages = [
        (row["key"], message["payload"]) for row in rows if row["state"] == "open" for message in row["messages"]
    ]
    refused = [(row["reason"], row["detail"], row["content"]) for row in rows if row["state"] == "rejected"]
    return sorted([*messages, *refused])


def test_example_is_short() -> None:
    """The page's package has at most 40 lines."""
    assert len(blocks("python")[0].splitlines()) <= 40


def test_commands(home: Path) -> None:
    """The page's commands print what the page says."""
    commands = re.split(r"^\$ windrow ", blocks("console")[0], flags=re.MULTILINE)[1:]
    for command in commands:
        line, _, output = command.partition("\n")
        result = windrow(home, *line.split())
        assert result.returncode in {0, 1}, result.stderr
        assert result.stdout.startswith(output)
    assert [row[:2] for row in outcome(home, "ledger") if len(row) == 2] == [("pump-1", "20.50"), ("pump-1", "21.25")]


@pytest.mark.slow
@pytest.mark.spark
def test_executors(home: Path) -> None:
    """Spark's executors give the same messages and rejects as the embedded engine."""
    cut = {"WINDROW_INGEST__CHUNK_BYTES": "32", "WINDROW_FORMAT__EXECUTOR_CHUNKS": "2"}
    assert windrow(home, "ingest", "pumps.log", "--format", "logfmt", **cut).returncode == 0
    assert windrow(home, "run", "--once").returncode == 0
    result = windrow(home, "run", "--once", "--engine", "spark", "--ledger", "data/spark", **cut)
    assert result.returncode == 0, result.stderr
    rows = DeltaTable(str(home / "data" / "spark")).to_pyarrow_table().to_pylist()
    assert [row["processed_on"] for row in rows if row["state"] == "microbatch"] == ["executors"]
    assert outcome(home, "spark") == outcome(home, "ledger")
    assert len(outcome(home, "spark")) == 4


def test_kit(home: Path) -> None:
    """The page's test passes, and fails for a format that looks behind its record."""
    program = blocks("python")[1] + "\ntest_logfmt()\n"
    result = windrow(home, program=program)
    assert result.returncode == 0, result.stderr
    ahead = 'ends=lambda data, at: end if 0 < (end := data.find(b"\\n", at) + 1) < len(data) else None'
    install(home.parent / "packages", blocks("python")[0].replace('ends=b"\\n"', ahead))
    result = windrow(home, program=program)
    assert "a record needs bytes after its last one" in result.stderr


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import nothing_of_this_name", "cannot be loaded from windrow_logfmt:build: ModuleNotFoundError"),
        pytest.param("build = 1", "cannot be built: TypeError", marks=pytest.mark.slow),
        ("def build(settings, fields): return 1", "returns int, not a Format"),
        ("def build(settings, fields): return 1 / 0", "cannot be built: ZeroDivisionError"),
    ],
)
def test_broken_package(home: Path, module: str, message: str) -> None:
    """A package that cannot be used is an error that names the format."""
    install(home.parent / "packages", module)
    result = windrow(home, "ingest", "--check", "pumps.log")
    assert (result.returncode, result.stderr.count("WINDROW-FORMAT-PLUGIN: the format 'logfmt' ")) == (2, 1), (
        result.stderr
    )
    assert message in result.stderr


def test_unknown(home: Path) -> None:
    """An unknown type names the installed formats, those of packages too."""
    result = windrow(home, "ingest", "--check", "pumps.log", WINDROW_FORMAT__TYPE="logfnt")
    assert result.returncode == 2
    assert "installed: csv, json, native, lines, length-prefixed, logfmt" in result.stderr
