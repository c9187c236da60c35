"""Tables that lose what they read or commit, and points of folds, beside those at which a test can interfere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import Enum
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa

from windrow.ledger.files import LedgerFiles
from windrow.ledger.live import Live
from windrow.ledger.versions import Fold
from windrow.source.arrivals import Arrivals
from windrow.source.slices import Slice
from windrow.testing.points import EngineProxy, Point, ProbedLedger, ProbedSource


class FoldPoint(Enum):
    """A point at which a fold can be interrupted; Spark has none where files are written and not committed."""

    BEFORE_FOLD = "before_fold"
    FILES_WRITTEN = "files_written"
    AFTER_FOLD = "after_fold"


POINTS: tuple[Any, ...] = (*Point, *FoldPoint)


def point_of(value: str) -> Any:
    """Return the point with a value."""
    return next(point for point in POINTS if point.value == value)


class Folding(ProbedLedger):
    """A ledger with the points of its folds too."""

    def fold(self, live: Live, fold: Fold) -> None:
        """Fold between points."""
        at: Callable[[Any], None] = self.at
        at(FoldPoint.BEFORE_FOLD)
        with _before_commit(live, lambda: at(FoldPoint.FILES_WRITTEN)):
            self.inner.fold(live, fold)
        at(FoldPoint.AFTER_FOLD)


def _before_commit(live: Live, act: Callable[[], None]) -> AbstractContextManager[Any]:
    """Have something done when the files of a fold are written and nothing is committed."""
    files = live.open
    if not isinstance(files, LedgerFiles):
        return nullcontext()
    commit = files._commit

    def late(*arguments: Any) -> None:
        act()
        commit(*arguments)

    return patch.object(files, "_commit", late)


class Mute(ProbedLedger):
    """A ledger that commits and does not say so."""

    def commit(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> None:
        """Commit, and return nothing."""
        self.inner.commit(rows, control, live, token, note)


class Lossy(ProbedSource):
    """A depot whose slices lost their first row."""

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        return cast("Arrivals", LossyArrivals(arrivals, self.at))


class LossyArrivals(EngineProxy):
    """Arrivals whose slices lost their first row."""

    def after(self, version: int, max_messages: int, last_version: int | None = None) -> Slice | None:
        """Return the next slice without its first row."""
        arrived = self.inner.after(version, max_messages, last_version)
        if arrived is None:
            return None
        content = arrived.rows.content
        left = content.slice(1) if isinstance(content, pa.Table) else content.offset(1)
        return replace(arrived, rows=replace(arrived.rows, content=left))
