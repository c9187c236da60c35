"""Where the files of a table are kept, so that those which a clean-up deleted come back."""

from __future__ import annotations

import os
from pathlib import Path


class Attic:
    """Keeps a second name of every file of a table beside it."""

    def __init__(self, table: str) -> None:
        self._table, self._kept = Path(table), Path(f"{table}.attic")

    def keep(self) -> None:
        """Keep what is there."""
        _link(self._table, self._kept)

    def bring_back(self) -> None:
        """Bring back what was kept and is gone."""
        if self._kept.exists():
            _link(self._kept, self._table)


def _link(origin: Path, into: Path) -> None:
    for file in origin.rglob("*"):
        place = into / file.relative_to(origin)
        if file.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)
