"""Bugs planted by hand, beside the guards: a text of the library, and what stands there instead (`bugs.toml`)."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

LIBRARY = Path(__file__).parents[2] / "lib" / "windrow"
ENTRIES = Path(__file__).with_name("bugs.toml")
VARIABLE = "PLANTED_BUG"


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug: in a file of the library, `instead` stands where the code has `text`, which is there once."""

    name: str
    path: str
    text: str
    instead: str

    @property
    def module(self) -> str:
        """Return the name by which the module is imported."""
        return f"windrow.{self.path.removesuffix('.py').replace('/', '.')}"

    def planted(self) -> str:
        """Return the source of the module with the bug."""
        source = (LIBRARY / self.path).read_text(encoding="utf-8")
        if source.count(self.text) != 1:
            raise ValueError(f"{self.path} has {self.text!r} {source.count(self.text)} times")
        return source.replace(self.text, self.instead)


BUGS = [Bug(name, **of) for name, of in tomllib.loads(ENTRIES.read_text(encoding="utf-8")).items()]


class Loader(SourceFileLoader):
    """Loads a module with a bug."""

    def __init__(self, bug: Bug) -> None:
        super().__init__(bug.module, str(LIBRARY / bug.path))
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        """Compile what was planted."""
        return compile(self._bug.planted(), str(LIBRARY / self._bug.path), "exec")


class Finder:
    """Finds the module in which a bug is planted."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the place of the module with another loader."""
        found = PathFinder.find_spec(name, path) if name == self._bug.module else None
        if found is not None:
            found.loader = Loader(self._bug)
        return found


sys.meta_path[:0] = [Finder(bug) for bug in BUGS if bug.name == os.environ.get(VARIABLE)]
