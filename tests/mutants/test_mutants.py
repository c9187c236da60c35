"""The tree that mutants are tried in is of the code as it stands, and each mutant is told by what was changed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOMS
from tests.mutants.mutant import mutants
from tests.mutants.tree import ROOT, in_tree, plant
from windrow.columnar import compiled

COMPILING = {"njit", *vars(compiled)}


def decorators(function: ast.FunctionDef) -> set[str]:
    """Return the names in the decorators of a function."""
    nodes = (node for decorator in function.decorator_list for node in ast.walk(decorator))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def test_modules_and_tests_are_there() -> None:
    """Every module whose code is changed is there, and so is every test file that is run against it."""
    for module, tests in ROOMS.items():
        assert (ROOT / module).is_file()
        assert tests
        for test in tests:
            assert (ROOT / test.partition("::")[0]).is_file()


@pytest.mark.parametrize("module", ROOMS)
def test_tree_runs_without_a_compiler(module: str, tmp_path: Path) -> None:
    """In the tree that mutmut works in no function is compiled, and every line stands where it stood."""
    plant(tmp_path / "tree", module, ROOMS[module])
    source = (tmp_path / "tree" / in_tree(module)).read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    assert functions
    assert not any(COMPILING & decorators(function) for function in functions)
    assert source.count("\n") == (ROOT / module).read_text(encoding="utf-8").count("\n")


def test_mutants_are_told_by_what_was_changed(tmp_path: Path) -> None:
    """A mutant is told by its line, its function, what stood there and what stands there now, and its fate."""
    module = "lib/windrow/model/clock.py"
    path = in_tree(module)
    for directory in (tmp_path, tmp_path / "mutants"):
        (directory / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("#\n\ndef one(a):\n    b = a\n    return b + 1\n", encoding="utf-8")
    bodies = {"orig": "b + 1", "1": "b - 1", "2": "b + 2", "3": "b"}
    changed = [f"def x_one__mutmut_{name}(a):\n    b = a\n    return {body}\n" for name, body in bodies.items()]
    (tmp_path / "mutants" / path).write_text("\n".join(changed), encoding="utf-8")
    codes = ", ".join(f'"windrow.model.clock.x_one__mutmut_{n}": {code}' for n, code in ((1, 1), (2, 0), (3, -24)))
    (tmp_path / "mutants" / f"{path}.meta").write_text(f'{{"exit_code_by_key": {{{codes}}}}}', encoding="utf-8")
    rows = [(each.line, each.function, each.was, each.becomes, each.fate) for each in mutants(tmp_path, module)]
    assert rows == [
        (5, "one", "return b + 1", "return b - 1", "killed"),
        (5, "one", "return b + 1", "return b + 2", "survived"),
        (5, "one", "return b + 1", "return b", "timeout"),
    ]
