"""Look for each planted bug and each removed guard in a process of its own, and record what was found.

A run may end at any time: the record in `build` has what is finished, and the next run goes on behind it. It begins
anew when the library, a scenario or what is explored has changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.explorer.bugs import BUGS
from tests.explorer.bugs import VARIABLE as BUG
from tests.explorer.search import SCENARIOS
from tests.guards import counting
from tests.guards.guard import GUARDS, LIBRARY, Guard
from tests.guards.guard import VARIABLE as GUARD

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "build" / "explorer.json"
IMPORTS = "runpy, tests.explorer.bugs, tests.guards.plugin, tests.guards.counting"
IN_A_PROCESS = f"import {IMPORTS}; runpy.run_module('tests.explorer.search', run_name='__main__')"
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, (%d, %d)); {IN_A_PROCESS}"
# What these do is done in memory here, or by nobody.
OUT_OF_REACH = (
    *("cli", "delta", "engine", "formats", "ingest", "producer", "replaying", "rows", "settings", "verify"),
    *("ledger/file", "ledger/headers", "ledger/pruning", "ledger/task_files", "runtime/maintenance", "runtime/parts"),
    *("runtime/recover", "source/embedded", "source/raw_parts", "topology/verify"),
)
ENDLESS_SECONDS = 120  # CPU time after which a scenario counts as endless; without a bug each ends within seconds
MAX_SECONDS = {"bug": 60.0, "guard": 30.0}  # CPU time after which no other scenario begins
Kind = Literal["bug", "guard"]


@dataclass(frozen=True, slots=True)
class Defect:
    """A planted bug, or a guard that is removed; `digest` tells what the code is with it."""

    kind: Kind
    name: str
    digest: str

    @property
    def key(self) -> str:
        """Return what tells it from all others."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a search gave: `broken` in a scenario, after so many schedules; None if no invariant broke."""

    digest: str
    schedules: int
    states: int
    scenario: str = ""
    broken: str | None = None


class Record:
    """What was found so far, in a file; only what the code of today gives."""

    def __init__(self, path: Path = RECORD) -> None:
        self._path, self._code = path, _digest_of_code()
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if stored.get("code") != self._code:
            stored = {"undisturbed": [], "findings": {}}
        self.undisturbed: list[dict[str, Any]] = stored["undisturbed"]
        self.findings = {key: Finding(**one) for key, one in stored["findings"].items()}

    def write(self) -> None:
        """Write the file."""
        self._path.parent.mkdir(exist_ok=True)
        findings = {key: asdict(one) for key, one in self.findings.items()}
        text = json.dumps({"code": self._code, "undisturbed": self.undisturbed, "findings": findings}, indent=1)
        partial = self._path.with_suffix(".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self._path)

    def has(self, defect: Defect) -> bool:
        """Tell whether a defect was looked for, as it is now."""
        found = self.findings.get(defect.key)
        return found is not None and found.digest == defect.digest


def _digest_of_code() -> str:
    names = ("exploration", "invariants", "scenarios", "scheduler", "search", "tables", "topologies")
    files = [*sorted(LIBRARY.rglob("*.py")), *(Path(__file__).with_name(f"{name}.py") for name in names)]
    return _digest(*(file.read_text(encoding="utf-8") for file in files))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def planted_bugs() -> list[Defect]:
    """Return the planted bugs."""
    return [Defect("bug", bug.name, _digest(bug.path, bug.text, bug.instead)) for bug in BUGS]


def explored_guards() -> list[Defect]:
    """Return the guards of the code that is explored."""
    return [
        Defect("guard", guard.name, _digest(guard.path, guard.left, str(guard.lines)))
        for guard in GUARDS
        if not is_out_of_reach(guard)
    ]


def is_out_of_reach(guard: Guard) -> bool:
    """Tell whether a guard is in code that no scenario runs."""
    return guard.on_spark or guard.path.startswith(OUT_OF_REACH)


def explore_undisturbed(record: Record) -> None:
    """Explore all scenarios without a defect, once: which guards they reach, and what they cost.

    Raises AssertionError if an invariant breaks.
    """
    done = [row["scenario"] for row in record.undisturbed]
    left = [name for name in SCENARIOS if name not in done]
    before = np.zeros((len(GUARDS), 2), np.int64)
    with tempfile.TemporaryDirectory() as directory:
        counts = {counting.VARIABLE: str(Path(directory) / "guards")}
        for explored in explore_with(counts, left, float("inf")) if left else ():
            assert explored["broken"] is None, explored
            counted = np.array(explored["counts"])
            record.undisturbed.append(explored | {"counts": (counted - before).tolist()})
            record.write()
            before = counted


def look_for(defects: Iterable[Defect], record: Record, until: float) -> Iterator[tuple[Defect, Finding]]:
    """Look for those that were not looked for yet, and record each; stop when it is late."""
    explore_undisturbed(record)
    for defect in defects:
        if time.monotonic() > until:
            return
        if not record.has(defect):
            record.findings[defect.key] = find_defect(defect, record)
            record.write()
            yield defect, record.findings[defect.key]


def find_defect(defect: Defect, record: Record) -> Finding:
    """Look for a defect where it may matter, in the cheapest scenarios first."""
    names = relevant_scenarios(defect, record.undisturbed)
    if not names:
        return Finding(defect.digest, 0, 0)
    variables = {BUG if defect.kind == "bug" else GUARD: defect.name}
    known = list(explore_with(variables, names, MAX_SECONDS[defect.kind]))
    schedules = sum(known_row["ends"] + (known_row["broken"] is not None) for known_row in known)
    states = sum(known_row["states"] for known_row in known)
    last = known[-1]
    scenario = last["scenario"] if last["broken"] is not None else ""
    return Finding(defect.digest, schedules, states, scenario, last["broken"])


def relevant_scenarios(defect: Defect, undisturbed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scenarios in which a defect can change anything, in the order in which they are explored.

    The schedules of a search are the same each time. So a guard that they never reach, or a condition of which they
    never meet the case, changes nothing in them. Those in which a guard strikes come first.
    """
    ordered = _by_cost_and_news(undisturbed)
    if defect.kind == "guard":
        guard = next(one for one in GUARDS if one.name == defect.name)
        number, column = counting.NAMES.index(guard.name), int(_only_strikes(guard))
        ordered = [row for row in ordered if row["counts"][number][column]]
        ordered.sort(key=lambda one: not one["counts"][number][1])
    return [str(row["scenario"]) for row in ordered]


def _by_cost_and_news(undisturbed: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return scenarios in their order: next comes where for its cost most guards do what they did in none before."""
    ordered, left, known = list[Mapping[str, Any]](), list(undisturbed), np.zeros((len(GUARDS), 2), np.bool_)
    while left:
        done = [np.array(one["counts"]) > 0 for one in left]
        worth = [(np.count_nonzero(each & ~known) + 0.01) / left[at]["seconds"] for at, each in enumerate(done)]
        best = int(np.argmax(worth))
        known |= done[best]
        ordered.append(left.pop(best))
    return ordered


def _only_strikes(guard: Guard) -> bool:
    """Tell whether a guard is a condition that does nothing else, and that is never met without it."""
    lines = guard.file.read_text(encoding="utf-8").splitlines()
    line = lines[guard.line - 1].strip()
    if not line.startswith("if ") or not line.endswith(":") or guard.left.strip() not in ("", "if False:"):
        return False
    return not any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(f"{line}\n    pass")))


def explore_with(variables: Mapping[str, str], names: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Explore scenarios in a process of its own, until one breaks or it is late; yield what each gave.

    What does not even begin is found at once.
    """
    code = IN_A_PROCESS if isinf(seconds) else LIMITED % (ENDLESS_SECONDS, ENDLESS_SECONDS + 1)
    ended, nothing = 0, {"states": 0, "ends": 0, "seconds": 0.0, "counts": []}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(seconds), *names],
            cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.startswith("{"):
                    ended += 1
                    yield json.loads(line)
        status = process.wait()
        if status == -signal.SIGXCPU:
            broken = f"progress: no end within {ENDLESS_SECONDS} s of CPU time"
            yield nothing | {"scenario": names[ended], "broken": broken}
        elif status:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no output"])[-1]
            yield nothing | {"scenario": "at once", "broken": last}
