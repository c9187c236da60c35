"""`make setup` with the Makefile of this repository, over a project that is quick to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bundle import ROOT

PROJECT = """
[project]
name = "quick"
version = "1"
dependencies = ["iniconfig{}"]

[project.optional-dependencies]
all = []

[tool.setuptools]
packages = []

[dependency-groups]
test = []
stores = []
check = []
"""


def set_up(directory: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Set up the project in a directory, with a version of what it needs."""
    (directory / "pyproject.toml").write_text(PROJECT.format(version))
    for file in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / file, directory)
    command = ["make", "setup", f"PYTHON={sys.executable}"]
    environment = os.environ | {"PIP_NO_CACHE_DIR": "1"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow  # who runs the tests has made the setup
def test_says_how_far_it_is(tmp_path: Path) -> None:
    """Each package that is downloaded is a line with its number, and a second time there is nothing to do."""
    first = set_up(tmp_path, "")
    assert first.returncode == 0, first.stderr
    constraints = (ROOT / "constraints.txt").read_text().partition("\n# What make")[0].count("==")
    assert f" of at most {constraints}: iniconfig-" in first.stdout
    for file in ("pyproject.toml", "constraints.txt"):
        os.utime(tmp_path / file, (0, 0))
    again = subprocess.run(["make", "setup"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Nothing to be done" in again.stdout


@pytest.mark.slow
def test_failure(tmp_path: Path) -> None:
    """What pip cannot install fails, with the error of pip, and the next setup begins again, also where one had
    succeeded.
    """
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    os.utime(tmp_path / ".venv" / ".installed", (0, 0))
    completed = set_up(tmp_path, ">=99")
    assert completed.returncode == 2
    assert "ERROR" in completed.stderr
    assert not (tmp_path / ".venv" / ".installed").exists()


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.spark), "embedded"])
def test_demo_says_at_once_what_it_does(tmp_path: Path, engine: str) -> None:
    """Before it installs anything the demo says what is ahead."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "constraints.txt").touch()
    shown = subprocess.run(
        ["make", "--no-print-directory", "demo", f"ENGINE={engine}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.startswith("The demo first installs ")
    assert ("Spark" in shown.stdout.splitlines()[0]) == (engine == "spark")


@pytest.mark.parametrize(("engine", "extras"), [("spark", "spark,plot"), ("embedded", "plot")])
def test_demo_installs_what_it_needs(tmp_path: Path, engine: str, extras: str) -> None:
    """The demo installs neither development tools nor, without Spark, Spark; where all is installed, it takes that."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for file in ("constraints.txt", "pyproject.toml"):
        (tmp_path / file).touch()

    def planned(target: str) -> list[str]:
        command = ["make", "--dry-run", target, f"ENGINE={engine}"]
        lines = subprocess.check_output(command, cwd=tmp_path, text=True).splitlines()
        return [line for line in lines if " -e '" in line]

    [demo] = planned("demo")
    assert f"-e '.[{extras}]' &&" in demo
    [everything] = planned("setup")
    assert "-e '.[all]' --group test" in everything
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    assert planned("demo") == []
