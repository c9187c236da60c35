"""A guard of the protocol: what it holds, where it stands, what the code is without it, the test that fails then."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "WITHOUT_GUARD"


@dataclass(frozen=True, slots=True)
class Guard:
    """What a guard holds, the module it stands in, its text, what is left without it, and the test that fails then."""

    holds: str
    path: str
    text: str
    left: str
    test: str

    @property
    def module(self) -> str:
        """Return the name by which its module is imported."""
        return f"windrow.{self.path.removesuffix('.py').replace('/', '.')}"

    @property
    def file(self) -> Path:
        """Return where its module is."""
        return ROOT / "lib" / "windrow" / self.path

    @property
    def where(self) -> str:
        """Return the place as the table has it: the module and the innermost function or class around the text."""
        source = self.file.read_text(encoding="utf-8")
        line = source[: source.index(self.text)].count("\n") + 1
        around = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        innermost = max(around, key=lambda node: node.lineno, default=None)
        return f"{self.path}::{innermost.name}" if innermost else self.path

    @property
    def on_spark(self) -> bool:
        """Tell whether its test needs Spark."""
        return self.path.startswith("engine/spark/") or "spark" in self.test

    def removed(self) -> str:
        """Return the module's source without the guard. Raises ValueError unless the guard is there once."""
        source = self.file.read_text(encoding="utf-8")
        if source.count(self.text) != 1:
            raise ValueError(f"{self.path} has this {source.count(self.text)} times: {self.text}")
        return source.replace(self.text, self.left)

    def tried_without(self, tests: str = "") -> subprocess.CompletedProcess[str]:
        """Run its test, or others, without the guard, in a process of their own."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.guards.plugin"]
        command += [
            "-m",
            "spark" if self.on_spark else "not spark",
            "--tb=line",
            *(f"tests/{one}" for one in (tests or self.test).split()),
        ]
        environment = os.environ | {VARIABLE: self.holds}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


GUARDS = [
    Guard(**guard)
    for guard in tomllib.loads(Path(__file__).with_name("guards.toml").read_text(encoding="utf-8"))["guard"]
]
