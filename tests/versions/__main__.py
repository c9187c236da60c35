"""Install Windrow with other versions of Python and Spark, each in an environment of its own, and run a short suite."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".versions"
# Spark's own packages are pinned by the version that is tried.
PINNED = re.compile(r"^(pyspark|py4j)==.*\n", re.MULTILINE)
# Older releases of py4j leave sockets to the garbage collector.
QUIET = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
SUITE = ["tests/engine/test_contract.py", "tests/engine/test_fence.py", "tests/runtime/test_foreach_batch.py"]
SUITE += [
    "tests/expressions",
    "tests/batching/test_cases.py",
    "tests/formats/test_csv.py",
    "tests/formats/test_json.py",
]


@dataclass(frozen=True, slots=True)
class Versions:
    """A version of Python and one of Spark; Delta's jars are those that it builds for this Spark."""

    python: str
    spark: str

    @property
    def directory(self) -> Path:
        """Return where they are installed."""
        return ENVIRONMENTS / f"python-{self.python}-spark-{self.spark}"

    def install(self) -> None:
        """Install them with the pins of the development, in a new environment unless it is there."""
        python = self.directory / "bin" / "python"
        if not python.exists():
            interpreter = which(f"python{self.python}")
            if interpreter is None:
                raise SystemExit(f"There is no python{self.python} on the path.")
            subprocess.run([interpreter, "-m", "venv", str(self.directory)], check=True)
        pins = self.directory / "constraints.txt"
        pins.write_text(PINNED.sub("", (ROOT / "constraints.txt").read_text(encoding="utf-8")), encoding="utf-8")
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


# Databricks' long-term runtimes have Spark 4.0 and 4.1.
ALL = [Versions("3.11", "4.0.1"), Versions("3.12", "4.1.1"), Versions("3.13", "4.2.0")]


def main() -> int:
    """Try all versions, or those whose Spark is named; exit status 1 when a test failed."""
    parser = argparse.ArgumentParser(prog="make test-versions", description=__doc__)
    parser.add_argument("spark", nargs="*", help="such as 4.0.1; all unless told")
    parser.add_argument("--tests", default=" ".join(SUITE), help="other tests than the short suite")
    asked = parser.parse_args()
    failed = False
    for versions in ALL:
        if not asked.spark or versions.spark in asked.spark:
            versions.install()
            result = versions.run(asked.tests.split())
            failed |= "failed" in result or "error" in result or "passed" not in result
            sys.stdout.write(f"Python {versions.python}, Spark {versions.spark}: {result}\n")
            sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
