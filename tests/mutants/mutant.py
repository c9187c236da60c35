"""A mutant: one change in one line of a function, and what became of it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.tree import in_tree

MANGLED = re.compile(r"\bx(?:_|ǁ\w+?ǁ)(?=\w+__mutmut_)|__mutmut_(?:orig|\d+)\b")
SURVIVED = {0: "survived", 33: "not tested", 5: "not tested"}
KILLED = {1: "killed", 3: "killed"}
UNFINISHED = {None: "not tried", 2: "interrupted"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """What was changed where, from `was` to `becomes`, and its fate: killed, timeout, survived, not tested."""

    module: str
    line: int
    function: str
    was: str
    becomes: str
    fate: str


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a source: the line of its `def`, and its lines."""

    start: int
    lines: list[str]


def mutants(tree: Path, module: str) -> list[Mutant]:
    """Return the mutants of a module that mutmut has tried, in the order of the lines."""
    path = in_tree(module)
    original = dict(_functions(tree / path))
    changed = dict(_functions(tree / "mutants" / path))
    codes = json.loads((tree / "mutants" / f"{path}.meta").read_text(encoding="utf-8"))["exit_code_by_key"]
    tried = [_mutant(module, name.rpartition(".")[2], code, original, changed) for name, code in codes.items()]
    return sorted(tried, key=lambda mutant: mutant.line)


def _mutant(
    module: str, name: str, code: int | None, original: dict[str, _Function], changed: dict[str, _Function]
) -> Mutant:
    mangled = name.partition("__mutmut_")[0]
    function = mangled.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    before, after = changed[f"{mangled}__mutmut_orig"].lines, changed[name].lines
    first = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    ends = zip(reversed(before[first:]), reversed(after[first:]), strict=False)
    same = next((at for at, (left, right) in enumerate(ends) if left != right), 0)
    was, becomes = (_joined(lines[first : len(lines) - same]) for lines in (before, after))
    fate = (SURVIVED | KILLED | UNFINISHED).get(code, "timeout")
    return Mutant(module, original[function].start + first, function, was, becomes, fate)


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _functions(path: Path) -> Iterator[tuple[str, _Function]]:
    """Return the functions and methods of a file; those of mutmut are named by it, the others by class and name."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    module = ast.parse(text)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    for prefix, body in (("", module.body), *((f"{node.name}.", node.body) for node in classes)):
        for node in body:
            if isinstance(node, ast.FunctionDef):
                of_mutmut = "__mutmut_" in node.name
                own = lines[node.lineno - 1 : node.end_lineno]
                own[0] = MANGLED.sub("", own[0])
                yield node.name if of_mutmut else prefix + node.name, _Function(node.lineno, own)
