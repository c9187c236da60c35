"""A plugin of pytest that takes away the guard named by WITHOUT_GUARD when its module is imported.

Nothing is written: the module is compiled from what is left of its source.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType

from tests.guards.guard import GUARDS, VARIABLE, Guard


class Loader(SourceFileLoader):
    """Loads a module without a guard."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard.module, str(guard.file))
        self._guard = guard

    def get_code(self, fullname: str) -> CodeType:
        """Compile what is left."""
        return compile(self._guard.removed(), str(self._guard.file), "exec")


class Finder:
    """Finds the module that a guard is to be taken away from."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the place of the module with another loader."""
        found = PathFinder.find_spec(name, path) if name == self._guard.module else None
        if found is not None:
            found.loader = Loader(self._guard)
        return found


sys.meta_path[:0] = [Finder(guard) for guard in GUARDS if guard.name == os.environ.get(VARIABLE)]
