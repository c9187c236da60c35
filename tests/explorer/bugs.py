"""Bugs planted by hand, beside the guards: a text of the library, and what stands there instead (`bugs.toml`)."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.altered import alter
from tests.guards.guard import LIBRARY, module_of

ENTRIES = Path(__file__).with_name("bugs.toml")
VARIABLE = "PLANTED_BUG"


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug: in a file of the library, `instead` stands where the code has `text`, which is there once.

    `test` fails with one that an exploration misses.
    """

    name: str
    path: str
    text: str
    instead: str
    test: str = ""

    @property
    def module(self) -> str:
        """Return the name by which the module is imported."""
        return module_of(self.path)

    @property
    def file(self) -> Path:
        """Return where the module is."""
        return LIBRARY / self.path

    def planted(self) -> str:
        """Return the source of the module with the bug."""
        source = self.file.read_text(encoding="utf-8")
        if source.count(self.text) != 1:
            raise ValueError(f"{self.path} has {self.text!r} {source.count(self.text)} times")
        return source.replace(self.text, self.instead)


BUGS = [Bug(name, **of) for name, of in tomllib.loads(ENTRIES.read_text(encoding="utf-8")).items()]


for bug in BUGS:
    if bug.name == os.environ.get(VARIABLE):
        alter(bug.module, bug.file, bug.planted)
