"""The guards, what the page says of them, and that each has a test which needs it."""

from __future__ import annotations

import ast
import builtins
import os
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.docs.test_pages import known_tests
from tests.guards.counting import COUNTER, NAMES, VARIABLE, counted, counts
from tests.guards.guard import ENTRIES, GUARDS, LIBRARY, PAGE, ROOT, Guard, markers, written

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EMBEDDED = [guard for guard in GUARDS if not guard.on_spark]
SPARK = [guard for guard in GUARDS if guard.on_spark]


def test_markers_and_entries() -> None:
    """Each marker in the library has an entry in guards.toml, each entry one marker."""
    assert sorted(name for name, _ in markers()) == sorted(ENTRIES)


def test_page() -> None:
    """The table of docs/reference/guards.md is what markers and entries give; each test that it names is there."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run: make reference"
    assert page.count("| `tests/") >= len(GUARDS)
    assert {f"tests/{guard.test}" for guard in GUARDS} <= known_tests("tests")


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_can_be_taken_away(guard: Guard) -> None:
    """What is left without a guard is other code, can be compiled, and uses no name that the module does not know."""
    with_it, without = ast.parse(guard.file.read_text(encoding="utf-8")), ast.parse(guard.removed())
    assert ast.dump(without) != ast.dump(with_it)
    assert _used(without) <= _known(with_it) | _known(without, only=(ast.alias,))


def test_left_is_known() -> None:
    """What is left without a guard calls nothing that the library does not have, or its test would fail for that."""
    every = {name for file in LIBRARY.rglob("*.py") for name in _attributes(ast.parse(file.read_text("utf-8")))}
    unknown = {guard.name: _attributes(ast.parse(guard.removed())) - every for guard in GUARDS}
    assert not {name: attributes for name, attributes in unknown.items() if attributes}


def _attributes(tree: ast.Module) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_counted() -> None:
    """Each guard counts that it is reached, before its own line; those that are conditions, that they strike."""
    for guards in groupby(sorted(GUARDS, key=lambda guard: guard.path), key=lambda guard: guard.path):
        of_module = list(guards[1])
        tree = ast.unparse(counted(of_module))
        compile(tree, of_module[0].path, "exec")
        for guard in of_module:
            assert f"{COUNTER}({NAMES.index(guard.name)}, 0)" in tree


def test_counts_of_killed_processes(tmp_path: Path) -> None:
    """A process that is killed has counted."""
    killed = "import os, signal, tests, windrow; windrow.Rules(); from windrow.delta.locations import require_safe"
    code = f"{killed}; require_safe('depot', 'a'); os.kill(os.getpid(), signal.SIGKILL)"
    file = tmp_path / "guards"
    completed = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {VARIABLE: str(file)}, cwd=ROOT, check=False
    )
    assert completed.returncode == -signal.SIGKILL
    [unsafe] = [count for count in counts(file) if count.name == "unsafe-path"]
    assert (unsafe.reached, unsafe.struck) == (1, 0)


def _used(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _known(tree: ast.Module, only: tuple[type[ast.AST], ...] = (ast.AST,)) -> set[str]:
    """Return the names that a module uses, imports or defines, and those of Python."""
    names = set(dir(builtins))
    for node in (node for node in ast.walk(tree) if isinstance(node, only)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("guard", EMBEDDED, ids=lambda guard: guard.name)
def test_fails_without(guard: Guard) -> None:
    """Without the guard, and with all others, its test fails."""
    require_failure(guard)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not NIGHTLY, reason="each starts a Spark of its own: make test-nightly")
@pytest.mark.parametrize("guard", SPARK, ids=lambda guard: guard.name)
def test_fails_without_on_spark(guard: Guard) -> None:
    """The same of the guards on Spark."""
    require_failure(guard)


def require_failure(guard: Guard) -> None:
    """Run the guard's test without it: it fails, and is not only broken otherwise."""
    completed = guard.tried_without()
    assert completed.returncode == 1, completed.stdout[-2_000:]
    assert "failed" in completed.stdout
    broken = [line for line in completed.stdout.splitlines() if "NameError" in line or "UnboundLocalError" in line]
    assert not broken, broken
