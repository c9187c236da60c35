"""Tests of Spark once more, unchanged, in a process whose session is another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engine.processes import ROOT


def run_apart(tests: Sequence[str], directory: Path, environment: Mapping[str, str], least: int) -> None:
    """Run tests of Spark in a process with an environment, and require that all of them pass, `least` at the least."""
    variables = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}"} | dict(environment)
    command = [sys.executable, "-m", "pytest", "-m", "spark", "-p", "no:cacheprovider"]
    with (directory / "output.txt").open("wb") as output:
        status = subprocess.run(
            [*command, f"--basetemp={directory / 'run'}", *tests],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    text = (directory / "output.txt").read_text(errors="replace")
    assert status == 0, text[-6_000:]
    passed = re.search(r"(\d+) passed", text)
    assert passed
    assert int(passed[1]) >= least
