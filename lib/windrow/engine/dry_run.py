"""The engine of a dry run: it reads the tables and commits to memory.

A dry run does everything that a run does, one microbatch after another, but keeps the live rows in memory and leaves
the tables unchanged.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from windrow.columnar.arrow import plain
from windrow.delta.log import Table
from windrow.engine.protocol import Engine
from windrow.errors import EngineUnavailable
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Fold, latest, written
from windrow.model import tables
from windrow.model.tables import CHANGED


class DryRunEngine:
    """Wraps an engine: reads pass through, commits stay in memory."""

    def __init__(self, engine: Engine) -> None:
        """Read with `engine`. Raises EngineUnavailable if another process would do the reading."""
        if getattr(engine, "remote", False):
            raise EngineUnavailable(
                "a dry run needs Spark in this process, not Spark Connect",
                "Use a classic session, or --engine embedded.",
            )
        self._engine, self.name = engine, f"{engine.name} (dry run)"
        self._live: pa.Table | None = None

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the engine."""
        return getattr(self._engine, name)

    def mend(self) -> None:
        """Mend nothing."""

    def ledger(self) -> Table | None:
        """Return the ledger's identity, or the depot's for a ledger that exists only in memory."""
        return self._engine.ledger() if self._live is None else self._engine.depot()

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Keep the first rows in memory."""
        self._live = first

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nothing: only topologies add columns, and they have no dry run."""

    def create_views(self, missing: bool = False) -> list[str]:
        """Create nothing."""
        return []

    def live(self) -> Live:
        """Return the live rows after the microbatches so far."""
        if self._live is None:
            live = self._engine.live()
            self._live = pa.concat_tables([live.rows, live.open.wanted(None)])
        return Live.held(self._live, 0)

    def commit_result(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> None:
        """Apply the rows to the live rows in memory."""
        rows = processed.rows
        if not isinstance(rows, pa.Table):  # the rows of a Spark frame that are live or replace live rows
            rows = plain(rows.where(f"{CHANGED} AND (known OR {tables.ARE_LIVE})").toArrow()).drop_columns([CHANGED])
        rows = rows.select([*control.schema.names, "known"])
        rows = rows.cast(control.schema.append(pa.field("known", pa.bool_())))
        new = pa.concat_tables([written(one, live.revision + 1) for one in (rows, control)])
        before = self._live if self._live is not None else self.live().rows
        both = pa.concat_tables([before, new.filter(tables.are_live(new["state"]))])
        self._live = latest(both).combine_chunks()

    def fold(self, live: Live, fold: Fold) -> None:
        """Drop nothing: memory has only what counts."""
