"""Clean-ups of a table, and where its files are kept, so that those which were deleted come back."""

from __future__ import annotations

import os
from pathlib import Path

from deltalake import DeltaTable

DAYS = 24 * 3_600


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


def age(table: str, seconds: int) -> None:
    """Let the files of a table's log look so much older than they are."""
    for file in Path(table, "_delta_log").iterdir():
        since = file.stat().st_mtime - seconds
        os.utime(file, (since, since))


def clean_up(table: str) -> None:
    """Trim the log of a table to its latest version, compact it, and delete every file that it does not need then."""
    DeltaTable(table).create_checkpoint()
    age(table, 100 * DAYS)
    DeltaTable(table).cleanup_metadata()
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def _link(origin: Path, into: Path) -> None:
    for file in origin.rglob("*"):
        place = into / file.relative_to(origin)
        if file.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)
