"""Install Windrow with other versions of Python, Spark and its dependencies, each in an environment of its own, and run
a short suite.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".versions"
# Spark's own packages are pinned by the version that is tried.
PINNED = re.compile(r"^(pyspark|py4j)==.*\n", re.MULTILINE)
# The first version of a range, such as the 1.6 of `deltalake>=1.6,<2`.
RANGE = re.compile(r"^(?P<name>[\w-]+)>=(?P<first>[\d.]+)")
# A later one would bring jars that were never tried.
DELTA = re.compile(r"^delta-spark==.*\n", re.MULTILINE)
# A typer from before it had a click of its own warns of what a later click deprecates.
CLICK = "click==8.1.8\n"
# Older releases of py4j leave sockets to the garbage collector.
QUIET = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
SUITE = ["tests/engine/test_contract.py", "tests/engine/test_fence.py", "tests/runtime/test_foreach_batch.py"]
SUITE += [
    "tests/expressions",
    "tests/batching/test_cases.py",
    "tests/cli/test_quality.py",
    "tests/cli/test_help.py",
    "tests/cli/test_show.py",
    "tests/formats/test_csv.py",
    "tests/formats/test_json.py",
    "tests/engine/test_restricted.py",
]


@dataclass(frozen=True, slots=True)
class Versions:
    """A version of Python and one of Spark, whose Delta jars are those for it, with the other packages that are pinned.

    Instead of the pinned ones, `lowest` takes the first version of each range of `dependencies` in pyproject.toml.
    """

    python: str
    spark: str
    lowest: bool = False

    @property
    def name(self) -> str:
        """Return what they are called."""
        return f"Python {self.python}, Spark {self.spark}{', lowest of each range' if self.lowest else ''}"

    @property
    def directory(self) -> Path:
        """Return where they are installed."""
        return ENVIRONMENTS / f"python-{self.python}-spark-{self.spark}{'-lowest' if self.lowest else ''}"

    def install(self) -> None:
        """Install them in a new environment, or in that of an earlier time."""
        python = self.directory / "bin" / "python"
        if not python.exists():
            interpreter = which(f"python{self.python}")
            if interpreter is None:
                raise SystemExit(f"There is no python{self.python} on the path.")
            of_pyenv = {"PYENV_VERSION": self.python}  # else its python3.12 refuses where another version is chosen
            subprocess.run([interpreter, "-m", "venv", self.directory], check=True, env=os.environ | of_pyenv)
        pins = self.directory / "constraints.txt"
        pins.write_text(first_versions() if self.lowest else other_pins(), encoding="utf-8")
        command = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        command += [
            "-c",
            pins,
            "-e",
            f"{ROOT}[all]",
            f"pyspark=={self.spark}",
            "--group",
            f"{ROOT}/pyproject.toml:test",
        ]
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
        subprocess.run(command, check=True)

    def run(self, tests: list[str]) -> str:
        """Run the tests and return the last line that pytest prints."""
        python = self.directory / "bin" / "python"
        command = [python, "-m", "pytest", "-q", "-m", "not kafka", "-p", "no:cacheprovider", *QUIET, *tests]
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, env=os.environ)
        if ended.returncode:
            sys.stdout.write(ended.stdout)
        return ended.stdout.splitlines()[-1]


def other_pins() -> str:
    """Return the pins of the development, but those of Spark's packages."""
    return PINNED.sub("", (ROOT / "constraints.txt").read_text(encoding="utf-8"))


def first_versions() -> str:
    """Return a pin to the first version of the range of each dependency that every user installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    matches = [match for requirement in project["dependencies"] if (match := RANGE.match(requirement))]
    delta = DELTA.findall((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    return "".join([CLICK, *delta, *(f"{match['name']}=={match['first']}\n" for match in matches)])


# Databricks' long-term runtimes have Spark 4.0 and 4.1.
ALL = [
    Versions("3.11", "4.0.1"),
    Versions("3.12", "4.1.1"),
    Versions("3.13", "4.2.0"),
    Versions("3.11", "4.2.0", lowest=True),
]


def main() -> int:
    """Try all versions, or those whose Spark is named; exit status 1 when a test failed."""
    parser = argparse.ArgumentParser(prog="make test-versions", description=__doc__)
    parser.add_argument("only", nargs="*", help="such as 4.0.1, or lowest; all unless told")
    parser.add_argument("--tests", default=" ".join(SUITE), help="other tests than the short suite")
    arguments = parser.parse_args()
    failed = False
    for versions in ALL:
        if not arguments.only or versions.spark in arguments.only or (versions.lowest and "lowest" in arguments.only):
            versions.install()
            result = versions.run(arguments.tests.split())
            failed |= "failed" in result or "error" in result or "passed" not in result
            sys.stdout.write(f"{versions.name}: {result}\n")
            sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
