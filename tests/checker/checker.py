"""Run the checker Spin on the models beside this file: it makes a C program that tries every schedule."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
NEEDED = ("spin", "gcc")
# Safety only, states compressed without loss; the shortest schedule of a bug, so breadth first.
OPTIONS = ("-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=8000")
BROKEN = re.compile(r"assertion violated (\w+) \(at depth (\d+)\)")
STATES = re.compile(r"(\d+) states, stored")
NOT_ALL = "Search not completed"


@dataclass(frozen=True, slots=True)
class Check:
    """A run of a model: with these constants, and perhaps a bug, which is planted by its flag or several."""

    name: str
    model: str
    constants: Mapping[str, int] = field(default_factory=dict)
    flag: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the checker found: how many states there are, and the property that broke, after so many steps."""

    name: str
    bounds: str
    states: int
    seconds: float
    broken: str | None
    steps: int | None


def runs() -> list[Check]:
    """Return the runs without bugs."""
    return [Check(entry["name"], entry["model"], entry["with"]) for entry in _entries()["run"]]


def bugs() -> list[Check]:
    """Return the runs with bugs."""
    return [Check(entry["name"], entry["model"], flag=entry["flag"]) for entry in _entries()["bug"]]


def missing() -> list[str]:
    """Return what has to be installed."""
    return [name for name in NEEDED if shutil.which(name) is None]


def check(case: Check) -> CheckResult:
    """Try every schedule of a model. Raises RuntimeError if the checker does not finish."""
    began = time.monotonic()
    flags = [f"-D{name}={value}" for name, value in case.constants.items()]
    flags += [f"-D{flag}" for flag in case.flag.split()]
    with tempfile.TemporaryDirectory(prefix="windrow-model-") as place:
        shutil.copy(HERE / f"{case.model}.pml", place)
        _called(place, "spin", "-a", *flags, f"{case.model}.pml")
        _called(place, "gcc", *OPTIONS, *(["-DBFS"] if case.flag else []), "-o", "pan", "pan.c")
        output = _called(place, "./pan", "-E", "-m1000000")
    states, broken = STATES.search(output), BROKEN.search(output)
    if states is None or (broken is None and NOT_ALL in output):
        raise RuntimeError(f"{case.name}: the checker did not finish:\n{output[-2_000:]}")
    bounds = ", ".join(f"{value} {name.lower()}" for name, value in case.constants.items())
    failure = (broken[1], int(broken[2])) if broken else (None, None)
    return CheckResult(case.name, bounds, int(states[1]), round(time.monotonic() - began, 1), *failure)


def _entries() -> dict[str, list[dict[str, object]]]:
    return tomllib.loads((HERE / "runs.toml").read_text(encoding="utf-8"))


def _called(place: str, *command: str) -> str:
    completed = subprocess.run(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if completed.returncode and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)}:\n{completed.stdout[-2_000:]}")
    return completed.stdout
