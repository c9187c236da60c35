"""Engines that lose what they read or commit, beside the points at which a test can interfere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from windrow.ledger.live import Live
from windrow.source.arrivals import Arrivals
from windrow.source.slices import Slice
from windrow.testing.points import Probed, Wrapper


class Mute(Probed):
    """An engine that commits and does not say so."""

    def commit_result(self, rows: Any, control: pa.Table, live: Live, token: str, note: str) -> None:
        """Commit, and return nothing."""
        self.inner.commit_result(rows, control, live, token, note)


class Lossy(Probed):
    """An engine whose slices lost their first row."""

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        return cast("Arrivals", LossyArrivals(arrivals, self.at))


class LossyArrivals(Wrapper):
    """Arrivals whose slices lost their first row."""

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Slice | None:
        """Return the next slice without its first row."""
        arrived = self.inner.after(version, max_messages, upto)
        if arrived is None:
            return None
        held = arrived.rows.held
        left = held.slice(1) if isinstance(held, pa.Table) else held.offset(1)
        return replace(arrived, rows=replace(arrived.rows, held=left))
