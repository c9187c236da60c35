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
    return [Check(one["name"], one["model"], one["with"]) for one in _entries()["run"]]


def bugs() -> list[Check]:
    """Return the runs with bugs."""
    return [Check(one["name"], one["model"], flag=one["flag"]) for one in _entries()["bug"]]


def missing() -> list[str]:
    """Return what has to be installed."""
    return [name for name in NEEDED if shutil.which(name) is None]


def check(wanted: Check) -> CheckResult:
    """Try every schedule of a model. Raises RuntimeError if the checker does not finish."""
    began = time.monotonic()
    flags = [f"-D{name}={value}" for name, value in wanted.constants.items()]
    flags += [f"-D{flag}" for flag in wanted.flag.split()]
    with tempfile.TemporaryDirectory(prefix="windrow-model-") as place:
        shutil.copy(HERE / f"{wanted.model}.pml", place)
        _called(place, "spin", "-a", *flags, f"{wanted.model}.pml")
        _called(place, "gcc", *OPTIONS, *(["-DBFS"] if wanted.flag else []), "-o", "pan", "pan.c")
        said = _called(place, "./pan", "-E", "-m1000000")
    states, broken = STATES.search(said), BROKEN.search(said)
    if states is None or (broken is None and NOT_ALL in said):
        raise RuntimeError(f"{wanted.name}: the checker did not finish:\n{said[-2_000:]}")
    bounds = ", ".join(f"{value} {name.lower()}" for name, value in wanted.constants.items())
    found = (broken[1], int(broken[2])) if broken else (None, None)
    return CheckResult(wanted.name, bounds, int(states[1]), round(time.monotonic() - began, 1), *found)


def _entries() -> dict[str, list[dict[str, object]]]:
    return tomllib.loads((HERE / "runs.toml").read_text(encoding="utf-8"))


def _called(place: str, *command: str) -> str:
    completed = subprocess.run(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if completed.returncode and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)}:\n{completed.stdout[-2_000:]}")
    return completed.stdout
