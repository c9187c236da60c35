"""The tree in which mutmut works: a copy of sources and tests that it can change.

Two things differ from the original, and neither changes what the code does. The sources lie in `src`, because mutmut
takes the package's name from there. Functions that numba compiles have no decorator, because mutmut leaves decorated
functions alone; without its compiler the decorator does nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPILED = re.compile(r"^@(compile_lazily|compiled_in_place|inline|njit)\b.*$", re.MULTILINE)
WORDED = [r"\braise \w+\(", r"\brefuse\(", r"\bwarnings\.warn\("]  # what a message says is no rule


def plant(tree: Path, module: str, tests: Sequence[str]) -> None:
    """Make the tree for mutants of a module (`lib/windrow/model/clock.py`), and the tests that may notice them."""
    shutil.rmtree(tree, ignore_errors=True)
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lib", tree / "src", ignore=without_caches)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=without_caches)
    for source in (tree / "src").rglob("*.py"):
        source.write_text(_interpreted(source.read_text(encoding="utf-8")), encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tree / "pyproject.toml").write_text(project + _settings(module, tests), encoding="utf-8")


def in_tree(module: str) -> Path:
    """Return where a module of `lib` lies in the tree."""
    return Path("src", *Path(module).parts[1:])


def _interpreted(source: str) -> str:
    """Return a source that runs without a compiler, with the same lines."""
    return COMPILED.sub("#", source)


def _settings(module: str, tests: Sequence[str]) -> str:
    """Return what mutmut is told."""
    values = {
        "source_paths": ["src"],
        "only_mutate": [str(in_tree(module))],
        "do_not_mutate_patterns": WORDED,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", "not slow and not spark"],
        "pytest_add_cli_args_test_selection": list(tests),
        "timeout_multiplier": 3.0,
        "timeout_constant": 5.0,
    }
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
    switched_off = ["track_dependencies = false\n", "use_git_change_detection = false\n"]
    return "".join(["\n[tool.mutmut]\n", *lines, *switched_off])
