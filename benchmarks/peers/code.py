"""How much one writes: lines of a program that are neither blank nor comment nor docstring."""

from __future__ import annotations

import ast
from pathlib import Path


def lines(program: str) -> int:
    """Return the lines of code of a program beside this file."""
    text = (Path(__file__).parent / program).read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstring_lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in docstring_lines
        for number, line in enumerate(text.splitlines(), 1)
    )
