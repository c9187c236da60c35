"""Import a module of the library from other source than its file has: without a guard, or with a bug.

Nothing is written: the module is compiled from the text that is given.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TypeAlias

Source: TypeAlias = str | ast.Module


class Loader(SourceFileLoader):
    """Compiles other source in place of a file."""

    def __init__(self, module: str, file: Path, source: Callable[[], Source]) -> None:
        super().__init__(module, str(file))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source."""
        return compile(self._source(), self.get_filename(fullname), "exec")


class Finder:
    """Finds one module with another loader."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the place of the module, None of any other."""
        spec = PathFinder.find_spec(name, path) if name == self._loader.name else None
        if spec is not None:
            spec.loader = self._loader
        return spec


def alter(module: str, file: Path, source: Callable[[], Source]) -> None:
    """Take a module from other source when it is imported, which must not have happened yet."""
    sys.meta_path.insert(0, Finder(Loader(module, file, source)))
