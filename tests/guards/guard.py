"""A guard of the protocol: what it holds, where it stands, what the code is without it, the test that fails then.

A comment `# guard: name` above a line of the library marks it; `guards.toml` has the rest by the name.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "lib" / "windrow"
ON_SPARK = (
    "engine/spark/",
    "ingest/spark",
    "ledger/merge",
    "ledger/open_batches",
    "ledger/spark",
    "rows/frame",
    "rows/session_settings",
    "runtime/executors",
    "runtime/foreach_batch",
    "source/raw_executors",
    "source/spark",
)
PAGE = ROOT / "docs" / "reference" / "guards.md"
TABLE = re.compile(r"(?<=\n\| guard \| where, below `lib/windrow` \| test \|\n\|---\|---\|---\|\n)(?:\|.*\n)*")
MARKER = re.compile(r"^ *# guard: ([a-z-]+)$")
VARIABLE = "WITHOUT_GUARD"


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard: `lines` lines below its marker, in the file `path` of the library; `left` is there without it.

    `holds` tells what it holds, `test` names the tests that fail without it.
    """

    name: str
    path: str
    holds: str
    left: str
    test: str
    lines: int = 1

    @property
    def module(self) -> str:
        """Return the name by which its module is imported."""
        return module_of(self.path)

    @property
    def file(self) -> Path:
        """Return where its module is."""
        return LIBRARY / self.path

    @property
    def where(self) -> str:
        """Return the place as the table has it: the module and the innermost function or class around the guard."""
        source, line = self.file.read_text(encoding="utf-8"), self.line
        around = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        innermost = max(around, key=lambda node: node.lineno, default=None)
        return f"{self.path}::{innermost.name}" if innermost else self.path

    @property
    def line(self) -> int:
        """Return the number of its first line, from 1."""
        return self._guarding(self.file.read_text(encoding="utf-8").splitlines())[0] + 1

    @property
    def on_spark(self) -> bool:
        """Tell whether its test needs Spark."""
        return self.path.startswith(ON_SPARK) or "spark" in self.test

    def removed(self) -> str:
        """Return the module's source without the guard: `left` stands there, as far to the right."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        first, *others = self._guarding(lines)
        start = lines[first][: -len(lines[first].lstrip())]
        lines[first] = "\n".join(start + line for line in self.left.splitlines())
        for other in others:
            lines[other] = ""
        return "\n".join(lines)

    def tried_without(self, tests: str = "") -> subprocess.CompletedProcess[str]:
        """Run its test, or others, without the guard, in a process of their own."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.guards.plugin"]
        command += [
            "-m",
            "spark" if self.on_spark else "not spark",
            "--tb=line",
            *(f"tests/{path}" for path in (tests or self.test).split()),
        ]
        environment = os.environ | {VARIABLE: self.name}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    def _guarding(self, lines: list[str]) -> list[int]:
        """Return which lines of its module guard: those below the marker that are no markers themselves."""
        marker = next(at for at, line in enumerate(lines) if (match := MARKER.match(line)) and match[1] == self.name)
        below = (at for at in range(marker, len(lines)) if not MARKER.match(lines[at]))
        return list(islice(below, self.lines))


def module_of(path: str) -> str:
    """Return the name by which a file of the library is imported."""
    return f"windrow.{path.removesuffix('.py').replace('/', '.')}"


def markers() -> Iterator[tuple[str, str]]:
    """Yield name and path of every marker in the library."""
    for file in sorted(LIBRARY.rglob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := MARKER.match(line):
                yield match[1], file.relative_to(LIBRARY).as_posix()


def written(page: str) -> str:
    """Return the page with the table of the guards as it should be."""
    rows = [f"| {guard.holds} | `{guard.where}` | `tests/{guard.test}` |\n" for guard in GUARDS]
    return TABLE.sub(lambda _: "".join(rows), page)


ENTRIES = tomllib.loads(Path(__file__).with_name("guards.toml").read_text(encoding="utf-8"))
PLACES = dict(markers())
GUARDS = [Guard(name=name, path=PLACES[name], **entry) for name, entry in ENTRIES.items() if name in PLACES]
