"""The lock beside a local table."""

from __future__ import annotations

from pathlib import Path

import pytest

from windrow.engine import lock
from windrow.engine.lock import commit_lock
from windrow.errors import TableLocked


def test_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A table has one lock, by whichever name its writers come to it.
    """
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.05)
    (tmp_path / "table").mkdir()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(tmp_path / "table")
    with commit_lock(str(tmp_path / "table")), pytest.raises(TableLocked), commit_lock(str(link)):
        pass
    with commit_lock(str(link)), pytest.raises(TableLocked), commit_lock(f"file:{tmp_path}/table"):
        pass
