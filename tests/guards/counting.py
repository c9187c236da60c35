"""How often guards are reached, and how often they strike, in all processes of a trial.

A guard is *reached* when its line runs. One that is an `if` or an `except` *strikes* when what follows runs, which
raises, waits or leaves something out; of any other the line itself is the guard, and no more can be told.

With the environment variable COUNT_GUARDS each process of the tests counts into one file, which is mapped into its
memory, so that a process that is killed has counted too.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.altered import alter
from tests.guards.guard import GUARDS, Guard

VARIABLE = "COUNT_GUARDS"
COUNTER = "_count_guard"
NAMES = [guard.name for guard in GUARDS]


class GuardCount(NamedTuple):
    """How often a guard was reached and struck; `struck` is None if that cannot be told."""

    name: str
    path: str
    reached: int
    struck: int | None


def count_into(file: Path) -> None:
    """Let this process, and those that it starts, count into a file."""
    os.environ[VARIABLE] = str(file)
    if not file.exists():
        np.zeros((len(GUARDS), 2), np.int64).tofile(file)  # by the first process, before it starts others
    counts = np.memmap(file, np.int64, "r+", shape=(len(GUARDS), 2))

    def count(number: int, struck: int) -> None:
        counts[number, struck] += 1

    sys.modules["builtins"].__dict__[COUNTER] = count
    by_module = defaultdict[str, list[Guard]](list)
    for guard in GUARDS:
        by_module[guard.module].append(guard)
    for module, guards in by_module.items():
        alter(module, guards[0].file, partial(counted, guards))


def counted(guards: list[Guard]) -> ast.Module:
    """Return the module of these guards, in which each of them counts."""
    tree = ast.parse(guards[0].file.read_text(encoding="utf-8"))
    for guard in guards:
        statement, block = _statement(tree, guard.line)
        number = NAMES.index(guard.name)
        if (struck := _struck(statement, guard.line)) is not None:
            struck.insert(0, _call(number, 1, statement))
        block.insert(block.index(statement), _call(number, 0, statement))
    return tree


def _statement(tree: ast.Module, line: int) -> tuple[ast.stmt, list[ast.stmt]]:
    """Return the innermost statement that has a line, and the block in which it is."""
    innermost: tuple[ast.stmt, list[ast.stmt]] | None = None
    blocks: list[list[ast.stmt]] = [tree.body]
    while blocks:
        block = blocks.pop()
        for statement in block:
            if statement.lineno <= line <= (statement.end_lineno or 0):
                innermost = statement, block
                blocks = [of for name in ("body", "orelse", "finalbody") if (of := getattr(statement, name, None))]
                blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    assert innermost is not None, line
    return innermost


def _struck(statement: ast.stmt, line: int) -> list[ast.stmt] | None:
    """Return the block that runs when a guard strikes: that of its `if` or `except`; None of any other statement."""
    if isinstance(statement, ast.If):
        return statement.body
    handlers = statement.handlers if isinstance(statement, ast.Try) else []
    return next((handler.body for handler in handlers if handler.lineno == line), None)


def _call(number: int, struck: int, at: ast.stmt) -> ast.stmt:
    call = ast.Expr(ast.Call(ast.Name(COUNTER, ast.Load()), [ast.Constant(number), ast.Constant(struck)], []))
    return ast.fix_missing_locations(ast.copy_location(call, at))


def counts(file: Path) -> list[GuardCount]:
    """Return what was counted into a file."""
    numbers = np.fromfile(file, np.int64).reshape(len(GUARDS), 2).tolist()
    guard_counts = []
    for guard, (reached, struck) in zip(GUARDS, numbers, strict=True):
        tree = ast.parse(guard.file.read_text(encoding="utf-8"))
        tells = _struck(_statement(tree, guard.line)[0], guard.line) is not None
        guard_counts.append(GuardCount(guard.name, guard.path, reached, struck if tells else None))
    return guard_counts


if VARIABLE in os.environ:
    count_into(Path(os.environ[VARIABLE]))
